"""How processing of a record ends: settled, released, reset. Every write is fenced by (id, token)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement, turned
from stowhand.protocols.store import Reply, Unwritten, Verdict
from stowhand.stores.database.sqlite_savepoint import check_written
from stowhand.stores.sqlite.table.moments import SECOND, after
from stowhand.stores.sqlite.table.table import TableTransaction
from stowhand.stores.verdicts import recorded, untraced

Batch = Sequence[tuple[Lease, Settlement]]

WITH_MESSAGE = (State.ERRORED, State.FAILED)
"""States that have a message."""
NO_JOBS = "a user's table cannot enqueue further jobs: ctx.then must stay empty; insert them with SQL of your own"


class CurrentRecord(msgspec.Struct, frozen=True):
    """A record as it is now."""

    state: str
    matches: int
    """It has the token and the epoch of the given lease."""
    cancel: int
    message: str | None
    resets: int
    worker: str | None
    beaten: int | None
    """When it had its last heartbeat; microseconds since 1970."""

    @property
    def valid(self) -> bool:
        """The lease holds."""
        return bool(self.matches) and self.state == State.PROCESSING


def mark(lease: Lease) -> dict[str, Any]:
    """What a write is guarded by, as parameters."""
    return {"id": lease.job_id, "token": lease.token, "epoch": lease.epoch}


def find(tx: TableTransaction, lease: Lease) -> CurrentRecord | None:
    """The record, if there is one."""
    row = tx.look("held", **mark(lease)).fetchone()
    return None if row is None else CurrentRecord(*row)


def no_lease(key: JobId) -> Lease:
    """To find a record whether it is held or not."""
    return Lease(key, "", 0)


def settle(tx: TableTransaction, batch: Batch, *, repeat: bool) -> list[Reply]:
    """Replies in the order of the batch. Raises where the file refuses one; of no settlement: where it refuses all."""
    if not batch:
        tx.run(State.COMPLETED.value, **mark(no_lease("")), error=None)
    return [_settle_one(tx, lease, what, repeat=repeat) for lease, what in batch]


def _settle_one(tx: TableTransaction, lease: Lease, settlement: Settlement, *, repeat: bool) -> Reply:
    record = find(tx, lease)
    if record is None or not record.valid:
        return _trace(record, settlement, repeat=repeat)
    if settlement.then:
        return Unwritten(NO_JOBS)
    goal = _goal(settlement.state, record)

    due = after(tx.now, settlement.delay)
    check_written(tx.run(goal.value, due=due, **mark(lease), error=settlement.error))
    return recorded(settlement, goal)


def _goal(state: State, record: CurrentRecord) -> State:
    return State.CANCELED if record.cancel and state is not State.COMPLETED else state


def _trace(record: CurrentRecord | None, asked: Settlement, *, repeat: bool) -> Reply:
    """Why a lease holds nothing: settled by this very settlement, lost, or without a trace."""
    if record is None:
        return untraced(repeat=repeat)
    if not record.matches or asked.state is State.QUEUED:
        return Verdict.LOST
    if record.state == State.CANCELED and asked.state not in (State.COMPLETED, State.CANCELED):
        return turned(asked, State.CANCELED)
    is_written = record.state == asked.state and (asked.state not in WITH_MESSAGE or record.message == asked.error)
    return Verdict.ALREADY_SETTLED if is_written else Verdict.LOST


def give_back(tx: TableTransaction, lease: Lease) -> None:
    """Unspent, as if it had never been claimed; to canceled, if that was asked for."""
    record = find(tx, lease)
    if record is not None and record.valid:
        check_written(tx.run("given_back_canceled" if record.cancel else "given_back", **mark(lease)))


def reset(tx: TableTransaction, key: JobId, lease: Lease | None = None) -> ResetJob | None:
    """Reset it under any lease, or only under this one; ``lifecycle.reset`` decides whether it may run again.

    ``None``: it is not running, or not under that lease.
    """
    record = find(tx, lease or no_lease(key))
    if record is None or record.state != State.PROCESSING or (lease is not None and not record.matches):
        return None
    options = tx.table.options
    state = lifecycle.reset(
        resets=record.resets, max_resets=options.max_resets, max_attempts=options.max_num_retries + 1
    ).state
    state = State.CANCELED if record.cancel else state
    name = {State.QUEUED: "reset", State.FAILED: "reset_failed", State.CANCELED: "reset_canceled"}[state]
    check_written(tx.run(name, id=key, error=options.reset_failure_message))
    age = None if record.beaten is None else (tx.now - record.beaten) / SECOND
    return ResetJob(key, options.name, state, record.worker or None, age)
