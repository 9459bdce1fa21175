"""Taking records, in a write transaction: nobody else writes meanwhile, so nothing is locked or looked at twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.errors import TableUnsuitable
from stowhand.store import ClaimRequest, JobId, Lease
from stowhand.stores.table.backend import Taken
from stowhand.stores.table.sqlite import leaving
from stowhand.stores.table.sqlite.moments import DAY, SECOND, parameters
from stowhand.stores.table.sqlite.table import Table
from stowhand.text import clean

MANY = 1000
"""Due records; so many are sorted in about a millisecond."""
CANCELED_AT_ONCE = 500
"""Records that a claim may find canceled and put away; the others are left to the next one."""


def is_due(connection: sqlite3.Connection, table: Table, now: int) -> bool:
    """Is anything due, whoever may claim it?"""
    return _due(connection, table, now, 1) > 0


def is_worth_it(connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest) -> bool:
    """Is there anything to claim? A look without the write lock, which most claims of an idle worker end with."""
    return is_due(connection, table, now) and bool(_candidates(connection, table, now, request, 1))


def claim(connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest) -> list[Taken]:
    """Take up to ``limit`` due records in order; those with ``cancel`` set go to canceled instead."""
    counts: dict[JobId, tuple[int, int]] = {}
    canceled = 0
    full, refused = True, None
    while full and len(counts) < request.limit and canceled < CANCELED_AT_ONCE:
        room = request.limit - len(counts) + CANCELED_AT_ONCE // 10
        found = _candidates(connection, table, now, request, room)
        full = len(found) == room
        before = len(counts) + canceled
        put_away, trouble = _change(connection, table, now, request, found, counts)
        canceled, refused = canceled + put_away, trouble or refused
        # A trigger of the application's may keep a record from being changed at all.
        full = full and len(counts) + canceled > before
    if refused is not None and not counts and not canceled:
        raise refused
    return _read(connection, table, request.token, counts) if counts else []


def _candidates(
    connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest, room: int
) -> list[tuple[JobId, int]]:
    # Few are sorted; of many, the first ones are found by an index of their order, if there is one.
    in_order = table.walks and _due(connection, table, now, MANY) == MANY
    query = table.selecting.candidates(request.conditions, suspects=request.suspects, in_order=in_order)
    return connection.execute(query.text, {**query.values, **_bounds(table, now), "limit": room}).fetchall()


def _change(
    connection: sqlite3.Connection,
    table: Table,
    now: int,
    request: ClaimRequest,
    found: Sequence[tuple[JobId, int]],
    counts: dict[JobId, tuple[int, int]],
) -> tuple[int, Exception | None]:
    """Take them, or put them away; how many were put away, and why one could not be changed."""
    canceling = {key for key, cancel in found if cancel}

    def change(key: JobId) -> int | None:
        if key in canceling:
            return table.run(connection, "cancel_waiting", now, {"id": key}).rowcount
        if len(counts) < request.limit and key not in counts:
            _take(connection, table, now, request, key, counts)
        return None

    done, refused = leaving.each(connection, (key for key, _ in found if _is_key(key)), change)
    return sum(done), refused


def _is_key(value: object) -> bool:
    """SQLite keeps texts that are none (no UTF-8), and nobody could be asked for such a key again."""
    return not isinstance(value, str) or clean(value, len(value) * 4 + 1) == value


def _due(connection: sqlite3.Connection, table: Table, now: int, limit: int) -> int:
    number: int = connection.execute(table.selecting.due(), {**_bounds(table, now), "limit": limit}).fetchone()[0]
    return number


def _take(
    connection: sqlite3.Connection,
    table: Table,
    now: int,
    request: ClaimRequest,
    key: JobId,
    counts: dict[JobId, tuple[int, int]],
) -> None:
    given = {"id": key, "worker": request.worker, "token": request.token}
    taken = table.run(connection, "take", now, given).fetchone()
    if taken is not None:
        counts[key] = taken


def _read(
    connection: sqlite3.Connection, table: Table, token: str, counts: dict[JobId, tuple[int, int]]
) -> list[Taken]:
    """The view's columns, as they are after the update."""
    query = table.selecting.records()
    cursor = connection.execute(query.text, {**query.values, "ids": msgspec.json.encode(list(counts)).decode()})
    names = tuple(column[0] for column in cursor.description[1:])
    rows: dict[JobId, tuple[Any, ...]] = {}
    for row in cursor:
        if row[0] in rows:
            raise _unsuitable(table, row[0], "shows it more than once: its joins must give one row for each record")
        rows[row[0]] = row[1:]
    taken: list[Taken] = []
    for key, (failures, resets) in counts.items():
        if key not in rows:
            raise _unsuitable(
                table, key, "does not show it any more, now that its state is processing: the view must not leave out"
                " records by the columns that a claim changes"
            )  # fmt: skip
        (epoch,) = connection.execute(table.statements.record["epoch"], {"id": key}).fetchone()
        taken.append(Taken(Lease(key, token, epoch), rows[key], names, failures, resets))
    return taken


def _unsuitable(table: Table, key: JobId, trouble: str) -> TableUnsuitable:
    return TableUnsuitable(
        f"{'.'.join(table.shape.view.parts)}: record {key!r} was claimed, but the view {trouble}. The claim was undone"
    )


def _bounds(table: Table, now: int) -> dict[str, Any]:
    late, soon = now - round(table.options.retry_delay * SECOND), now + 2 * DAY
    return {**parameters("now", now), **parameters("late", late), **parameters("soon", soon)}
