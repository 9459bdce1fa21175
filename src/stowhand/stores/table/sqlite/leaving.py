"""How a record leaves processing: settled, handed back, taken back. Every write is fenced by (id, token)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from stowhand import lifecycle
from stowhand.database.sqlite_trouble import code as error_code
from stowhand.database.sqlite_trouble import is_refused_data
from stowhand.job import State
from stowhand.lifecycle import Ended, Settlement
from stowhand.store import JobId, Lease, ResetJob, Verdict
from stowhand.stores.table.sqlite.moments import after
from stowhand.stores.table.sqlite.table import Table
from stowhand.text import clean

T = TypeVar("T")
Batch = Sequence[tuple[Lease, Settlement]]

TOLD = (State.ERRORED, State.FAILED)
"""States that have a message."""
NO_JOBS = "a user's table cannot enqueue further jobs: ctx.then must stay empty; insert them with SQL of your own"


class Held(msgspec.Struct, frozen=True):
    """A record as it stands."""

    state: str
    bears: int
    """It bears the token and the epoch that were asked about."""
    cancel: int
    message: str | None
    resets: int
    worker: str | None

    @property
    def valid(self) -> bool:
        """The lease holds."""
        return bool(self.bears) and self.state == State.PROCESSING


def mark(lease: Lease) -> dict[str, Any]:
    """What a write is guarded by, as parameters."""
    return {"id": lease.job_id, "token": lease.token, "epoch": lease.epoch}


def find(connection: sqlite3.Connection, table: Table, lease: Lease) -> Held | None:
    """The record, if there is one."""
    row = connection.execute(table.statements.record["held"], mark(lease)).fetchone()
    return None if row is None else Held(*row)


def nobodys(key: JobId) -> Lease:
    """To find a record, whoever holds it."""
    return Lease(key, "", 0)


def settle(connection: sqlite3.Connection, table: Table, now: int, batch: Batch, *, repeat: bool) -> list[Verdict]:
    """Verdicts in the order of the batch. Nothing sinks it: each is written under a savepoint of its own."""
    return [_settle_one(connection, table, now, lease, what, repeat=repeat) for lease, what in batch]


def _settle_one(
    connection: sqlite3.Connection, table: Table, now: int, lease: Lease, settlement: Settlement, *, repeat: bool
) -> Verdict:
    if settlement.then:
        settlement = _failed(NO_JOBS)
    held = find(connection, table, lease)
    if held is None or not held.valid:
        return _refuse(held, settlement, repeat=repeat)
    goal = _goal(settlement.state, held)

    def write(state: State, message: str | None) -> Callable[[], object]:
        given = {**mark(lease), "error": message}
        return lambda: table.run(connection, state.value, now, given, after(now, settlement.delay))

    refused = attempt(connection, write(goal, settlement.error))
    if refused is not None:
        instead = _failed(f"its settlement could not be written: {refused}")
        # Not even that: a CHECK, say, that knows no such state. The others of the batch are none the worse.
        if attempt(connection, write(_goal(State.FAILED, held), instead.error)) is not None:
            return Verdict.UNKNOWN
    return Verdict.SETTLED


def _failed(reason: str) -> Settlement:
    return Settlement(State.FAILED, Ended.FAILED, error=clean(reason))


def _goal(state: State, held: Held) -> State:
    return State.CANCELED if held.cancel and state is not State.COMPLETED else state


def attempt(connection: sqlite3.Connection, write: Callable[[], object]) -> Exception | None:
    """Write under a savepoint; gives why it was refused, and then nothing was written."""
    connection.execute("SAVEPOINT stowhand_one")
    try:
        write()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        # After a full disk, or an I/O error, the whole transaction is gone already; the caller hears of that.
        if not _is_refused(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO stowhand_one")
        connection.execute("RELEASE stowhand_one")
        return error
    connection.execute("RELEASE stowhand_one")
    return None


def each(
    connection: sqlite3.Connection, keys: Iterable[JobId], write: Callable[[JobId], T | None]
) -> tuple[list[T], Exception | None]:
    """Each under a savepoint: a record that its table refuses to change (a CHECK, a trigger) keeps no other.

    Gives what was done, and why the last one was refused.
    """
    done: list[T] = []
    refused: Exception | None = None
    for key in keys:

        def one(key: JobId = key) -> None:
            if (result := write(key)) is not None:
                done.append(result)

        refused = attempt(connection, one) or refused
    return done, refused


def is_of_a_record(error: sqlite3.Error) -> bool:
    """May one record be at fault, and not the statement? What a function, or JSON, makes of it is a plain error."""
    return _is_refused(error) or error_code(error) == sqlite3.SQLITE_ERROR


def _is_refused(error: Exception) -> bool:
    # In a table of somebody else's, a UNIQUE or a trigger that refuses is the data's affair too.
    return isinstance(error, sqlite3.IntegrityError) or is_refused_data(error)


def _refuse(held: Held | None, settlement: Settlement, *, repeat: bool) -> Verdict:
    """Why a lease holds nothing: settled by this very settlement, lost, or without a trace."""
    if held is None:
        return Verdict.UNKNOWN if repeat else Verdict.LOST
    if not held.bears or settlement.state is State.QUEUED:
        return Verdict.LOST
    as_said = held.state == settlement.state and (settlement.state not in TOLD or held.message == settlement.error)
    canceled = held.state == State.CANCELED and settlement.state is not State.COMPLETED
    return Verdict.ALREADY_SETTLED if as_said or canceled else Verdict.LOST


def give_back(connection: sqlite3.Connection, table: Table, now: int, lease: Lease) -> None:
    """Unspent, as if it had never been claimed; to canceled, if that was asked for."""
    held = find(connection, table, lease)
    if held is not None and held.valid:
        name = "given_back_canceled" if held.cancel else "given_back"
        table.run(connection, name, now, mark(lease))


def reset(
    connection: sqlite3.Connection, table: Table, now: int, key: JobId, lease: Lease | None = None
) -> ResetJob | None:
    """Take it back from whoever has it, or only from this lease; the law says whether it may run again.

    ``None``: it is not running, or not under that lease.
    """
    held = find(connection, table, lease or nobodys(key))
    if held is None or held.state != State.PROCESSING or (lease is not None and not held.bears):
        return None
    options = table.options
    state = lifecycle.reset(
        resets=held.resets, max_resets=options.max_num_resets, max_attempts=options.max_num_retries + 1
    ).state
    state = State.CANCELED if held.cancel else state
    name = {State.QUEUED: "reset", State.FAILED: "reset_failed", State.CANCELED: "reset_canceled"}[state]
    given: dict[str, Any] = {"id": key, "error": options.reset_failure_message}
    table.run(connection, name, now, given)
    return ResetJob(key, options.name, state, held.worker or None)
