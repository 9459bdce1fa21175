"""The work of a table's transactions on leases and settlements, for the shared settler and leaser.

Every write is guarded by id, token and epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.lifecycle import Settlement, with_state
from stowhand.protocols.store import Foreign, RefusedSettlement, Reply, Verdict
from stowhand.stores.database.sqlite_connection import check_written
from stowhand.stores.database.sqlite_errors import message_of
from stowhand.stores.sqlite.shared.leaser import MAX_LEASES_PER_PAGE
from stowhand.stores.sqlite.shared.plan import Renewal
from stowhand.stores.sqlite.table.connections import TableTransaction
from stowhand.stores.sqlite.table.timestamps import MICROS_PER_SECOND, after
from stowhand.stores.table.check import CHANGED_CLAIM
from stowhand.stores.table.claims import AbandonedTokens
from stowhand.stores.verdicts import Entry, recorded, untraced

STATES_WITH_MESSAGE = (State.ERRORED, State.FAILED)
"""The states with a failure message."""
NO_JOBS = "a user's table cannot enqueue further jobs: ctx.then must stay empty; insert them with SQL of your own"


class CurrentRecord(msgspec.Struct, frozen=True):
    """The current state of a record."""

    state: str
    matches: int
    """Whether it has the token and the epoch of the lease (0 or 1)."""
    cancel: int
    message: str | None
    resets: int
    worker: str | None
    last_heartbeat: int | None
    """The time of its last heartbeat, in microseconds since 1970."""

    @property
    def is_valid(self) -> bool:
        """Whether the lease holds the record."""
        return bool(self.matches) and self.state == State.PROCESSING


def mark(lease: Lease) -> dict[str, Any]:
    """Return the parameters that guard a write."""
    return {"id": lease.job_id, "token": lease.token, "epoch": lease.epoch}


def find(tx: TableTransaction, lease: Lease) -> CurrentRecord | None:
    """Return the record; ``None`` if there is none."""
    row = tx.read("held", **mark(lease)).fetchone()
    return None if row is None else CurrentRecord(*row)


def no_lease(key: JobId) -> Lease:
    """Return a lease that finds a record without holding it."""
    return Lease(key, "", 0)


class TablePlan:
    """The transactions of one table. ``abandoned``: tokens that this process has abandoned."""

    def __init__(self, abandoned: AbandonedTokens) -> None:
        self._abandoned = abandoned

    def settle(self, tx: TableTransaction, batch: Sequence[Entry], *, repeat: bool) -> Sequence[Reply]:
        if not batch:
            tx.run(State.COMPLETED.value, **mark(no_lease("")), error=None)
        return [_settle(tx, lease, settlement, repeat=repeat) for lease, settlement in batch]

    def reason(self, error: Exception) -> str:
        return message_of(error)

    def renew(self, tx: TableTransaction, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Renew leases. Their duration is the table's option, not ``seconds``."""
        if not leases:
            tx.run("beat", **mark(no_lease("")))
        renewals = [_renew(tx, lease) for lease in leases]
        return [renewal for renewal in renewals if renewal is not None]

    def release(self, tx: TableTransaction, lease: Lease) -> None:
        record = find(tx, lease)
        if record is not None and record.is_valid:
            check_written(tx.run("release_canceled" if record.cancel else "release", **mark(lease)))

    def abandon(self, tx: TableTransaction, token: str) -> Sequence[Lease]:
        self._abandoned.add(token)
        rows = tx.read("held_by_token", token=token) if self._abandoned.started_claims.may_hold(token) else ()
        return [Lease(key, token, epoch) for key, epoch in rows]

    def find_foreign(self, tx: TableTransaction, own_leases: Sequence[Lease], slack: float) -> Foreign:
        late = _late(tx, slack)
        ids = msgspec.json.encode([lease.job_id for lease in own_leases]).decode()
        has_late_lease, first_end = tx.read("foreign_leases", late=late, own_ids=ids).fetchone()
        return Foreign(
            has_expired=bool(has_late_lease),
            expires_in=None if first_end is None else (first_end - late) / MICROS_PER_SECOND,
        )

    def find_stalled(self, tx: TableTransaction, slack: float) -> Sequence[Lease]:
        """Return stalled records of any holder: another program's records have no token."""
        return [no_lease(key) for (key,) in tx.read("find_stalled", late=_late(tx, slack), limit=MAX_LEASES_PER_PAGE)]

    def find_held_by(self, tx: TableTransaction, worker: str) -> Sequence[Lease]:
        """Return this worker's records. Marks of other programs are ignored."""
        return [no_lease(key) for (key,) in tx.read("find_held_by_worker", worker=worker, limit=MAX_LEASES_PER_PAGE)]

    def reset(self, tx: TableTransaction, lease: Lease) -> ResetJob | None:
        """Reset a record; with ``no_lease``, of any holder. ``lifecycle.reset`` decides whether it may run again."""
        record = find(tx, lease)
        if record is None or record.state != State.PROCESSING or (lease.token and not record.matches):
            return None
        options = tx.table.options
        state = lifecycle.reset(
            resets=record.resets, max_resets=options.max_resets, max_attempts=options.max_num_retries + 1
        ).state
        state = State.CANCELED if record.cancel else state
        name = {State.QUEUED: "reset", State.FAILED: "reset_failed", State.CANCELED: "reset_canceled"}[state]
        check_written(tx.run(name, id=lease.job_id, error=options.reset_failure_message))
        age = None if record.last_heartbeat is None else (tx.now - record.last_heartbeat) / MICROS_PER_SECOND
        return ResetJob(lease.job_id, options.name, state, record.worker or None, age)


def _settle(tx: TableTransaction, lease: Lease, settlement: Settlement, *, repeat: bool) -> Reply:
    # Reading first also makes SQLite reload a changed schema, which an update with a broken trigger would not.
    record = find(tx, lease)
    if record is None or not record.is_valid:
        return _trace(record, settlement, repeat=repeat)
    if settlement.then:
        return RefusedSettlement(NO_JOBS)
    is_canceled = record.cancel and settlement.state is not State.COMPLETED
    state = State.CANCELED if is_canceled else settlement.state
    due = after(tx.now, settlement.delay)
    check_written(tx.run(state.value, due=due, **mark(lease), error=settlement.error))
    return recorded(settlement, state)


def _trace(record: CurrentRecord | None, settlement: Settlement, *, repeat: bool) -> Reply:
    """Return the reply for a lease without a record: settled by this settlement, lost, or without a trace."""
    if record is None:
        return untraced(repeat=repeat)
    if not record.matches or settlement.state is State.QUEUED:
        return Verdict.LOST
    if record.state == State.CANCELED and settlement.state not in (State.COMPLETED, State.CANCELED):
        return with_state(settlement, State.CANCELED)
    is_written = record.state == settlement.state and (
        settlement.state not in STATES_WITH_MESSAGE or record.message == settlement.error
    )
    return Verdict.ALREADY_SETTLED if is_written else Verdict.LOST


def _renew(tx: TableTransaction, lease: Lease) -> Renewal | None:
    row = tx.run("beat", **mark(lease)).fetchone()
    if row is None:
        return None
    record = find(tx, lease)
    is_moved = record is not None and not record.matches
    refusal = CHANGED_CLAIM.format(column=tx.table.shape.columns["started_at"]) if is_moved else ""
    return Renewal(lease.pair, bool(row[0]), refusal)


def _late(tx: TableTransaction, slack: float) -> int:
    """Return the time of the last heartbeat of a lease that expired ``slack`` seconds ago."""
    return after(tx.now, -tx.table.options.stalled - slack)
