"""Claiming records, in a write transaction: no other program writes meanwhile, so no row is locked or read twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowhand.errors import TableUnsuitable
from stowhand.jobs.conditions import apart
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import may_make_way
from stowhand.jobs.text import clean
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.database.sqlite_savepoint import attempt
from stowhand.stores.sqlite.table import finish
from stowhand.stores.sqlite.table.moments import DAY, SECOND, parameters
from stowhand.stores.sqlite.table.table import Table
from stowhand.stores.table.backend import Taken
from stowhand.stores.table.sifting import AT_ONCE, BESIDE, NOT_CHANGED, Refused, ViewFault, halving, shown

MANY = 1000
"""Due records; so many are sorted in about a millisecond."""
MOST_REFUSED = 500
"""Records that their table would not let be changed, in one claim."""
REASON_LIMIT = 1000
CANCELED_AT_ONCE = 500
"""Records that a claim may find canceled and put away; the others are left to the next one."""


def is_due(connection: sqlite3.Connection, table: Table, now: int) -> bool:
    """Whether anything is due, for any worker."""
    return _due(connection, table, now, 1) > 0


def is_worth_it(
    connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest, passed: Sequence[str] = ()
) -> bool:
    """Is there anything to claim? A look without the write lock, which most claims of an idle worker end with."""
    if request.suspects and connection.execute(table.statements.many["suspected"]).fetchone() is None:
        return False
    return is_due(connection, table, now) and bool(_candidates(connection, table, now, request, 1, passed))


class Claimed(msgspec.Struct, frozen=True):
    """What came of a claim."""

    taken: Sequence[Taken] = ()
    refused: Mapping[JobId, str] = {}
    """Key -> why the table would not let it be changed."""


def claim(
    connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest, passed: Sequence[str] = ()
) -> Claimed:
    """Take up to ``limit`` due records in order; those with ``cancel`` set go to canceled instead.

    Raises TableUnsuitable where none of several can be read.
    """
    if request.overdue is not None and not _may_make_way(connection, table, request.worker):
        return Claimed()
    try:
        connection.execute("SAVEPOINT stowhand_claim")
        counts, refused = _take_in_order(connection, table, now, request, request.limit, passed)
        taken = _read(connection, table, request.token, counts) if counts else []
        connection.execute("RELEASE stowhand_claim")
        return Claimed(taken, refused)
    except (_Unseen, sqlite3.Error) as error:
        if not connection.in_transaction or (isinstance(error, sqlite3.Error) and not finish.is_of_a_record(error)):
            raise
    _undo(connection)
    return _claim_sifting(connection, table, now, request, passed)


def _claim_sifting(
    connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest, passed: Sequence[str]
) -> Claimed:
    """The slow way: one of them is bad, and is searched."""
    try:
        if request.limit == 1:
            # Is it the record's fault, or the view's? Those beside it tell. None of it stays.
            connection.execute("SAVEPOINT stowhand_claim")
            _sifted(connection, table, now, request, BESIDE, passed)
            _undo(connection)
        return _sifted(connection, table, now, request, min(request.limit, AT_ONCE), passed)
    except ViewFault as fault:
        view = ".".join(table.shape.view.parts)
        raise TableUnsuitable(f"nothing is claimed from the view {view}, for {fault}") from None


def _undo(connection: sqlite3.Connection) -> None:
    connection.execute("ROLLBACK TO stowhand_claim")
    connection.execute("RELEASE stowhand_claim")


def _sifted(
    connection: sqlite3.Connection, table: Table, now: int, request: ClaimRequest, limit: int, passed: Sequence[str]
) -> Claimed:
    counts, refused = _take_in_order(connection, table, now, request, limit, passed)
    rows, unread = _halved(connection, table, list(counts))
    bad = shown(list(counts), rows, unread)
    view = ".".join(table.shape.view.parts)
    faults = {key: f"the view {view}: record {key!r}: {why}" for key, why in bad.items()}
    return Claimed([_one(connection, table, request.token, key, counts[key], rows, faults) for key in counts], refused)


def _halved(
    connection: sqlite3.Connection, table: Table, keys: Sequence[JobId]
) -> tuple[dict[JobId, tuple[Any, ...]], dict[JobId, str]]:
    parts = halving(keys)
    try:
        part = next(parts)
        while True:
            part = parts.send(_tried(connection, table, part))
    except StopIteration as done:
        found: tuple[dict[JobId, tuple[Any, ...]], dict[JobId, str]] = done.value
        return found


def _tried(connection: sqlite3.Connection, table: Table, keys: Sequence[JobId]) -> list[tuple[Any, ...]] | Refused:
    try:
        return _shown(connection, table, keys)[1]
    except sqlite3.Error as error:
        if not finish.is_of_a_record(error):
            raise
        return Refused(clean(str(error), REASON_LIMIT))


def _take_in_order(
    connection: sqlite3.Connection,
    table: Table,
    now: int,
    request: ClaimRequest,
    limit: int,
    passed: Sequence[str],
) -> tuple[dict[JobId, tuple[int, int]], dict[JobId, str]]:
    """What was taken, and what the table would not let be taken."""
    counts: dict[JobId, tuple[int, int]] = {}
    refused: dict[JobId, str] = {}
    canceled, full = 0, True
    while full and len(counts) < limit and canceled < CANCELED_AT_ONCE:
        room = limit - len(counts) + CANCELED_AT_ONCE // 10
        over = [*passed, *map(str, refused)]
        found = within(_candidates(connection, table, now, request, room, over), request.conditions)
        full = len(found) == room
        put_away = _change(connection, table, now, request, limit, found, counts, refused)
        full = full and len(refused) < MOST_REFUSED
        canceled += put_away
        if counts and apart(request.conditions)[1]:
            break  # the rest of the bound is known to the caller that set it
    return counts, refused


def within(found: Sequence[tuple[Any, ...]], conditions: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """As many, from the first one on, as are together within the bounds of the conditions."""
    _, together = apart(conditions)
    for at, one in enumerate(together):
        total = 0.0
        for number, row in enumerate(found):
            if row[1]:
                continue  # it is put away, and takes up nothing
            total += row[2 + at]
            if total > one.value:
                found = found[:number]
                break
    return found


def _candidates(
    connection: sqlite3.Connection,
    table: Table,
    now: int,
    request: ClaimRequest,
    room: int,
    passed: Sequence[str],
) -> list[tuple[Any, ...]]:
    # Few are sorted; of many, the first ones are found by an index of their order, if there is one.
    now -= round((request.overdue or 0.0) * SECOND)
    in_order = table.walks and _due(connection, table, now, MANY) == MANY
    query = table.selecting.candidates(
        request.conditions, suspects=request.suspects, in_order=in_order, passing=bool(passed)
    )
    given = {**query.values, **_bounds(table, now), "limit": room, "passed": msgspec.json.encode(passed).decode()}
    return connection.execute(query.text, given).fetchall()


def _may_make_way(connection: sqlite3.Connection, table: Table, worker: str) -> bool:
    suspects, others = connection.execute(table.statements.many["holders"], {"worker": worker}).fetchone()
    return may_make_way(suspects, others + 1)


def _change(
    connection: sqlite3.Connection,
    table: Table,
    now: int,
    request: ClaimRequest,
    limit: int,
    found: Sequence[tuple[Any, ...]],
    counts: dict[JobId, tuple[int, int]],
    refused: dict[JobId, str],
) -> int:
    """Take them, or put them away; how many were put away."""
    canceled = 0
    for key, cancel, *_ in found:
        if not _is_key(key) or key in counts or (not cancel and len(counts) >= limit):
            continue
        done = False

        def change(key: JobId = key, cancel: int = cancel) -> None:
            nonlocal done
            if cancel:
                done = table.run(connection, "cancel_waiting", now, {"id": key}).rowcount > 0
            else:
                done = _take(connection, table, now, request, key, counts)

        trouble = attempt(connection, change)
        if trouble is not None or not done:
            refused[key] = clean(str(trouble), REASON_LIMIT) if trouble is not None else NOT_CHANGED
        elif cancel:
            canceled += 1
    return canceled


def _is_key(value: object) -> bool:
    """SQLite also keeps invalid texts (no UTF-8), and such a key could not be looked up again."""
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
) -> bool:
    given = {"id": key, "worker": request.worker, "token": request.token}
    taken = table.run(connection, "take", now, given).fetchone()
    if taken is not None:
        counts[key] = taken
    return taken is not None


class _Unseen(Exception):
    """The view does not show, or shows twice, what was claimed."""


def _read(
    connection: sqlite3.Connection, table: Table, token: str, counts: dict[JobId, tuple[int, int]]
) -> list[Taken]:
    """The view's columns, as they are after the update. Raises _Unseen."""
    names, shown_ = _shown(connection, table, list(counts))
    rows = {row[0]: row for row in shown_}
    if len(rows) != len(shown_) or any(key not in rows for key in counts):
        raise _Unseen
    return [_one(connection, table, token, key, counts[key], rows, {}, names) for key in counts]


def _shown(
    connection: sqlite3.Connection, table: Table, keys: Sequence[JobId]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    query = table.selecting.records()
    cursor = connection.execute(query.text, {**query.values, "ids": msgspec.json.encode(keys).decode()})
    return tuple(column[0] for column in cursor.description[1:]), cursor.fetchall()


def _one(
    connection: sqlite3.Connection,
    table: Table,
    token: str,
    key: JobId,
    count: tuple[int, int],
    rows: Mapping[JobId, tuple[Any, ...]],
    faults: Mapping[JobId, str],
    names: tuple[str, ...] = (),
) -> Taken:
    (epoch,) = connection.execute(table.statements.record["epoch"], {"id": key}).fetchone()
    lease = Lease(key, token, epoch)
    if key in faults:
        return Taken(lease, (), table.names, *count, fault=faults[key])
    return Taken(lease, rows[key][1:], names or table.names, *count)


def _bounds(table: Table, now: int) -> dict[str, Any]:
    late, soon = now - round(table.options.retry_delay * SECOND), now + 2 * DAY
    return {**parameters("now", now), **parameters("late", late), **parameters("soon", soon)}
