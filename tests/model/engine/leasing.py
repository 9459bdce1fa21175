"""Claims, settlements, beats and resets: the specification of leases as plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta

from stowhand.errors import InvalidJob
from stowhand.jobs import lifecycle, limits
from stowhand.jobs.failed_attempts import WORKER_DIED, AttemptEnd, attempt_end
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import MIN_SUSPECT_RESETS, STATES_WITH_PAYLOAD, WAITING_STATES, Settlement
from stowhand.jobs.text import clean
from stowhand.protocols.store import ClaimRequest, RefusedSettlement, Reply, Verdict
from tests.model.engine import enqueueing
from tests.model.engine.replies import continues, recorded, recorded_before
from tests.model.engine.rows import IN_TURN, Row, Rows

RESET_PAGE = 1000


def claim(rows: Rows, request: ClaimRequest) -> list[Row]:
    """Due jobs in the order (priority, run_at, id); of a serial key one at most, and none while one runs."""
    if request.token in rows.abandoned:
        return []
    if rows.expiring:
        expire(rows)
    busy = rows.running_serials()
    claimed: list[Row] = []
    due = (row for row in rows.live.values() if claimable(row, request, rows.now) and not rows.is_paused(row))
    for row in sorted(due, key=IN_TURN):
        if len(claimed) == request.limit:
            break
        if row.serial is not None:
            if row.serial in busy:
                continue
            busy.add(row.serial)
        start(row, request, rows.now)
        claimed.append(row)
    return claimed


def expire(rows: Rows) -> None:
    """Cancel what nobody has claimed in time."""
    for row in [rows.live.get(job_id) for job_id in sorted(rows.expiring)]:
        if row is None or row.expires_at is None or row.expires_at > rows.now:
            continue
        if not enqueueing.cancel_expired(rows, row):
            row.expires_at = None  # it was claimed in time
    rows.expiring = {job_id for job_id in rows.expiring if job_id in rows.live and rows.live[job_id].expires_at}


def expiries(rows: Rows) -> list[datetime]:
    """When those that wait expire."""
    result = (rows.live.get(job_id) for job_id in rows.expiring)
    return [row.expires_at for row in result if row and row.expires_at and row.state is State.QUEUED]


def claimable(row: Row, request: ClaimRequest, now: datetime) -> bool:
    """Is it due, and does it fit the request?"""
    return (
        row.waits()
        and row.run_at <= now
        and (request.tasks is None or row.task in request.tasks)
        and row.queue in request.queues
        and not set(row.flags) & set(request.forbidden_flags)
        and (row.resets >= MIN_SUSPECT_RESETS) == request.suspects
    )


def start(row: Row, request: ClaimRequest, now: datetime) -> None:
    """Claim it under a new lease."""
    row.state = State.PROCESSING
    row.attempts = min(row.attempts + 1, row.max_attempts)
    row.epoch += 1
    row.token, row.settled_token = request.token, None
    row.lease_until = now + timedelta(seconds=request.lease)
    row.worker = row.last_worker = request.worker
    row.started_at = now


def settle(rows: Rows, lease: Lease, settlement: Settlement, *, repeat: bool) -> Reply:
    """Record how an attempt ended, if its lease still holds."""
    row = rows.held(lease)
    if row is None:
        return trace(rows, lease, settlement, repeat=repeat)
    state = way_back(row, settlement.state, continues=continues(settlement))
    try:
        check(settlement)
        with rows.all_or_nothing() if settlement.then else nullcontext():
            record(rows, row, settlement, state)
            for job in settlement.then if state is settlement.state else ():
                enqueueing.add(rows, limits.check(job))
    except InvalidJob as error:
        return RefusedSettlement(clean(str(error)))
    return recorded(settlement, state)


def trace(rows: Rows, lease: Lease, settlement: Settlement, *, repeat: bool) -> Reply:
    """Why a lease holds nothing."""
    row = rows.find(lease.job_id)
    if row is None:
        return Verdict.UNKNOWN if repeat else Verdict.LOST
    return recorded_before(settlement, row.state) if row.settled_token == lease.token else Verdict.LOST


def check(settlement: Settlement) -> None:
    """Refuse text that no store can write."""
    for text in (settlement.error, settlement.result):
        if text is not None and clean(text, len(text) * 4) != text:
            raise InvalidJob("the text holds NUL or lone surrogates")
    limits.check_remaining_payload(settlement)


def record(rows: Rows, row: Row, settlement: Settlement, state: State) -> None:
    """Write what was decided. ``state``: see ``way_back``."""
    if settlement.state in (State.ERRORED, State.FAILED, State.CANCELED):
        error_class = settlement.error_class
        rows.keep_try(row, attempt_end(settlement.state, error_class), error_class, settlement.error)
    row.settled_token, row.resets, row.expires_at = row.token, 0, None
    if settlement.refund:
        row.attempts = max(row.attempts - 1, 0)
    if settlement.error is not None:
        row.last_error = settlement.error
    if settlement.payload is not None and settlement.state in STATES_WITH_PAYLOAD:
        row.payload = settlement.payload
    if state in WAITING_STATES:
        rows.end_lease(row, state)
        row.run_at = rows.now + timedelta(seconds=settlement.delay)
    else:
        row.result = settlement.result
        rows.finish(row, state)
        if state is State.FAILED:
            enqueueing.tell_of_failure(rows, row, settlement.error_class)


def way_back(row: Row, state: State, *, continues: bool = False) -> State:
    """By ``lifecycle.way_back``, which is passed what the row knows."""
    return lifecycle.effective_state(
        state, cancel_requested=row.cancel_requested, loses_retries=row.loses_retries, continues=continues
    )


def release(rows: Rows, leases: Sequence[Lease]) -> None:
    """Return without using an attempt: due when it was, as if it had not been claimed."""
    for lease in leases:
        row = rows.held(lease)
        if row is not None:
            give_back(rows, row)


def give_back(rows: Rows, row: Row) -> None:
    """To waiting, with the attempt given back; or to canceled."""
    row.attempts = max(row.attempts - 1, 0)
    state = way_back(row, State.QUEUED)
    if state is State.QUEUED:
        rows.end_lease(row, state)
    else:
        rows.finish(row, state)


def reset(rows: Rows, leases: Sequence[Lease], *, tells: bool = True) -> list[ResetJob]:
    """Take jobs back from workers that died; ``lifecycle.reset`` decides whether they run again.

    ``tells``: of what has failed; else the caller does, who may undo it.
    """
    taken = []
    for lease in leases[:RESET_PAGE]:
        row = rows.held(lease)
        if row is None:
            continue
        worker = row.worker
        decided = lifecycle.reset(resets=row.resets, max_resets=row.max_resets, max_attempts=row.max_attempts)
        rows.keep_try(row, AttemptEnd.RESET, WORKER_DIED, decided.error)
        row.resets += 1
        row.epoch += 1
        row.expires_at = None
        if decided.state is State.QUEUED:
            give_back(rows, row)
        else:
            row.last_error = decided.error
            rows.finish(row, decided.state)
            if tells:
                enqueueing.tell_of_failure(rows, row, WORKER_DIED)
        taken.append(ResetJob(row.id, row.task, row.state, worker))
    return taken
