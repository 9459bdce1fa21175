"""What people and a waiting worker ask of the table: how many, how long, when the next one is due; logs, requeue."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from stowhand.errors import LogRefused
from stowhand.jobs.execution_log import ENTRIES_LIMIT
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.protocols.queue_store import Answer, Done
from stowhand.stores.sqlite.table import finish
from stowhand.stores.sqlite.table.moments import DAY, SECOND, after, to_micros
from stowhand.stores.sqlite.table.table import Table
from stowhand.stores.table.record_view import ShownRecord, shown

AT_ONCE = 1000
"""Waiting records looked at for the next due time; what is beyond is a poll's to find."""

_entries = msgspec.json.Decoder(list[msgspec.Raw])


def count(
    connection: sqlite3.Connection, table: Table, states: Sequence[State], conditions: Sequence[Any]
) -> dict[State, int]:
    """Of each state asked for."""
    query = table.selecting.counts(states, conditions)
    found = {State(state): number for state, number in connection.execute(query.text, query.values)}
    return {state: found.get(state, 0) for state in states}


def exists(connection: sqlite3.Connection, table: Table, states: Sequence[State], conditions: Sequence[Any]) -> bool:
    """At least one."""
    query = table.selecting.exists(states, conditions)
    return connection.execute(query.text, query.values).fetchone() is not None


def next_due(connection: sqlite3.Connection, table: Table, now: int) -> float | None:
    """Seconds until the first waiting record is due; ``None``: none waits.

    Records are walked in the order of the column as stored, an index's. Texts of different spellings may be up to
    some days apart from their moments, so the walk goes on for two days behind the best one.
    """
    many = table.statements.many
    if connection.execute(many["is_queued_at_once"]).fetchone():
        return 0.0
    found = [_first(connection, table, State.QUEUED)]
    if table.options.max_num_retries:
        found += [
            _first(connection, table, State.ERRORED),
            connection.execute(many["first_errored_elsewhere"]).fetchone()[0],
        ]
    known = [due for due in found if due is not None]
    return max(min(known) - now, 0) / SECOND if known else None


def _first(connection: sqlite3.Connection, table: Table, state: State) -> int | None:
    best: int | None = None
    given = {"state": state.value, "limit": AT_ONCE}
    for after_, retried in connection.execute(table.statements.many["waiting_in_order"], given):
        if after_ is None:
            continue
        if best is not None and after_ > best + 2 * DAY:
            break
        due = max(after_, retried or after_) if state is State.ERRORED else after_
        best = due if best is None else min(best, due)
    return best


def longest_wait(connection: sqlite3.Connection, table: Table, now: int) -> float:
    """Seconds; 0: nothing is due."""
    (since,) = connection.execute(table.statements.many["longest_wait"], {"now": now}).fetchone()
    return 0.0 if since is None else max(now - since, 0) / SECOND


def longest_run(connection: sqlite3.Connection, table: Table, now: int) -> float:
    """Seconds; 0: nothing is running."""
    (since,) = connection.execute(table.statements.many["longest_run"]).fetchone()
    return 0.0 if since is None else max(now - since, 0) / SECOND


def requeue(connection: sqlite3.Connection, table: Table, now: int, key: JobId, due: datetime | float | None) -> Answer:
    """To queued; where ``cancel`` is set, to canceled. Terminal records are refused."""
    held = finish.find(connection, table, finish.no_lease(key))
    if held is None:
        return Answer(key, Done.MISSING, "there is no such record")
    if held.state not in (State.QUEUED, State.ERRORED, State.PROCESSING):
        return Answer(
            key, Done.REFUSED, f"it is {held.state}, which is final; insert another one, or update it with SQL"
        )
    if held.cancel:
        name = "reset_canceled" if held.state == State.PROCESSING else "cancel_waiting"
        table.run(connection, name, now, {"id": key})
        return Answer(key, Done.DONE, "it was asked to cancel: canceled instead")
    at = None if due is None else to_micros(due) if isinstance(due, datetime) else after(now, due)
    table.run(connection, "requeue", now, {"id": key}, at)
    return Answer(key, Done.DONE)


def page(
    connection: sqlite3.Connection, table: Table, states: Sequence[State], after_: JobId | None, limit: int
) -> list[ShownRecord]:
    """Records in these states, by id."""
    given = {"states": json.dumps([state.value for state in states]), "after": after_, "limit": limit}
    return [shown(row) for row in connection.execute(table.statements.many["page"], given)]


def find(connection: sqlite3.Connection, table: Table, key: JobId) -> ShownRecord | None:
    """One record."""
    row = connection.execute(table.statements.record["find"], {"id": key}).fetchone()
    return None if row is None else shown(row)


def retry(connection: sqlite3.Connection, table: Table, now: int, key: JobId) -> Answer:
    """To queued, as if it had never been tried."""
    held = finish.find(connection, table, finish.no_lease(key))
    if held is None:
        return Answer(key, Done.MISSING, f"there is no record {key}")
    if held.state == State.PROCESSING:
        return Answer(key, Done.REFUSED, "it is running; cancel it instead, or wait for its end")
    if held.state == State.COMPLETED:
        return Answer(key, Done.REFUSED, "it is completed, which is final: INSERT a record anew")
    table.run(connection, "retry", now, {"id": key})
    return Answer(key, Done.DONE)


def cancel(connection: sqlite3.Connection, table: Table, now: int, key: JobId) -> Answer:
    """What waits is canceled, what runs is asked to end."""
    held = finish.find(connection, table, finish.no_lease(key))
    if held is None:
        return Answer(key, Done.MISSING, f"there is no record {key}")
    if held.state in (State.QUEUED, State.ERRORED):
        table.run(connection, "cancel_waiting", now, {"id": key})
        return Answer(key, Done.DONE)
    if held.state == State.CANCELED:
        return Answer(key, Done.UNCHANGED, "it was canceled already")
    if held.state != State.PROCESSING:
        return Answer(key, Done.REFUSED, f"it is {held.state}")
    if not table.shape.has("cancel"):
        return Answer(key, Done.REFUSED, "it is running, and the table has no column cancel to ask it by")
    table.run(connection, "ask_cancel", now, {"id": key})
    return Answer(key, Done.ASKED, "it is running, and asked to stop")


def add_log(connection: sqlite3.Connection, table: Table, now: int, lease: Lease, entry: str) -> int:
    """The entry's number."""
    given = {**finish.mark(lease), "entry": entry, "most": ENTRIES_LIMIT}
    row = table.run(connection, "add_log", now, given).fetchone()
    if row is None:
        raise LogRefused(f"record {lease.job_id!r}: the attempt is over, or its log has {ENTRIES_LIMIT} entries")
    number: int = row[0]
    return number


def update_log(connection: sqlite3.Connection, table: Table, now: int, lease: Lease, number: int, entry: str) -> None:
    """In the place of entry ``number``."""
    given = {**finish.mark(lease), "entry": entry, "number": number}
    if table.run(connection, "update_log", now, given).fetchone() is None:
        raise LogRefused(f"record {lease.job_id!r}: there is no entry {number}, or the attempt is over")


def logs(connection: sqlite3.Connection, table: Table, key: JobId) -> list[str] | None:
    """Entry by entry; none where the column holds anything but a JSON array."""
    row = connection.execute(table.statements.record["logs"], {"id": key}).fetchone()
    if row is None:
        return None
    try:
        return [bytes(entry).decode() for entry in _entries.decode(row[0] or "[]")]
    except (msgspec.DecodeError, TypeError, UnicodeError):
        return []
