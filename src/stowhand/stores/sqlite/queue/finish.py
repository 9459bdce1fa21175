"""Writes the end of an attempt: settled, released, or reset."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stowhand.jobs import lifecycle
from stowhand.jobs.failed_attempts import (
    MAX_ERROR_CLASS_CHARACTERS,
    MAX_KEPT_ATTEMPTS,
    WORKER_DIED,
    AttemptEnd,
    attempt_end,
    last_frames,
)
from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.jobs.lifecycle import STATES_WITH_PAYLOAD, WAITING_STATES, Settlement
from stowhand.stores.database.sqlite_connection import check_written
from stowhand.stores.sqlite.queue import limits, waits
from stowhand.stores.sqlite.queue.cancellation import CANCELED, cancel_children
from stowhand.stores.sqlite.queue.children import NO_RESULT, End, record_ends
from stowhand.stores.sqlite.queue.on_failure import enqueue_reports
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.verdicts import continues

STATES_WITHOUT_ENTRY = (State.COMPLETED, State.QUEUED)
"""Settled states that leave no failed attempt: completed, or returned to the queue without using an attempt."""


class HeldJob(msgspec.Struct, frozen=True):
    """The values of a running job that determine its next state."""

    id: int
    token: str
    task: str
    serial: str | None
    worker: str | None
    attempts: int
    max_attempts: int
    resets: int
    max_resets: int | None
    cancel_requested: int
    loses_retries: str | None
    parent_id: int | None

    def next_state(self, state: State, *, continues: bool = False) -> State:
        """Return the next state by ``lifecycle.effective_state``, from the values of the row."""
        return lifecycle.effective_state(
            state,
            cancel_requested=bool(self.cancel_requested),
            loses_retries=self.loses_retries,
            continues=continues,
        )


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The new values of a row. ``None`` keeps the old value."""

    state: State
    attempts: int
    resets: int
    run_at: int | None = None
    error: str | None = None
    result: str | None = None
    payload: str | None = None
    epochs: int = 0
    settled_token: str | None = None
    outcome: AttemptEnd | None = None
    """Outcome of the failed attempt to record; ``None`` records none."""
    error_class: str | None = None
    waits_for: str | None = None
    """As ``Job.waits_for``."""


def find_held(tx: Transaction, job_id: int, token: str) -> HeldJob | None:
    """Return the job if this lease still holds it. This check is the fence against stale leases."""
    row = tx.row("held", id=job_id, token=token)
    return None if row is None else HeldJob(*row)


def settle(tx: Transaction, held: HeldJob, settlement: Settlement) -> State:
    """Write the outcome of an attempt. Return the recorded state."""
    state = held.next_state(settlement.state, continues=continues(settlement))
    attempts = held.attempts - settlement.refund
    run_at = tx.now.after(settlement.delay) if state in WAITING_STATES else None
    waits_for = None
    if settlement.wait is not None and state is settlement.state:
        attempts = min(settlement.wait.attempts, held.max_attempts)
        run_at = waits.start(tx, held.id, settlement.wait)
        waits_for = waits.cause(settlement.wait)
    ending = Ending(
        state=state,
        attempts=max(attempts, 0),
        resets=0,
        run_at=run_at,
        waits_for=waits_for,
        error=settlement.error,
        result=settlement.result,
        payload=settlement.payload if settlement.state in STATES_WITH_PAYLOAD else None,
        settled_token=held.token,
        outcome=_outcome_to_record(settlement),
        error_class=settlement.error_class,
    )
    _write(tx, held, ending)
    if settlement.holds_limits:
        limits.hold(tx, held.task, held.serial, settlement.delay)
    return state


def _outcome_to_record(settlement: Settlement) -> AttemptEnd | None:
    if settlement.state in STATES_WITHOUT_ENTRY:
        return None
    return attempt_end(settlement.state, settlement.error_class)


def release(tx: Transaction, held: HeldJob) -> None:
    """Return a job to the queue without using an attempt, as if it had not been claimed."""
    state = held.next_state(State.QUEUED)
    _write(tx, held, Ending(state=state, attempts=max(held.attempts - 1, 0), resets=held.resets))


def reset(tx: Transaction, held: HeldJob, *, reports_failure: bool = True) -> ResetJob:
    """Reset a job whose worker is lost; ``lifecycle.reset`` decides whether it may run again.

    ``reports_failure``: if the job fails, enqueue its ``on_failure`` job, and record its end as a child. Otherwise the
    caller does this later, unless it revives the job.
    """
    decided = lifecycle.reset(resets=held.resets, max_resets=held.max_resets, max_attempts=held.max_attempts)
    state = held.next_state(decided.state)
    ending = Ending(
        state=state,
        attempts=max(held.attempts - decided.refund, 0),
        resets=held.resets + 1,
        error=decided.error,
        epochs=1,
        outcome=AttemptEnd.RESET,
        error_class=WORKER_DIED,
    )
    _write(tx, held, ending, reports_failure=reports_failure)
    return ResetJob(held.id, held.task, state, held.worker)


def record_failed_attempts(
    tx: Transaction, job_ids: Sequence[int], outcome: AttemptEnd, error_class: str | None, error: str | None
) -> None:
    """Record failed attempts, before the rows of their jobs change."""
    ids = as_json(job_ids)
    error_class, error = error_class and error_class[:MAX_ERROR_CLASS_CHARACTERS], error and last_frames(error)
    tx.run("record_failed_attempts", ids=ids, outcome=outcome.value, error_class=error_class, error=error)
    tx.run("set_first_round", ids=ids)
    tx.run("prune_failed_attempts", ids=ids, max_kept=MAX_KEPT_ATTEMPTS)


def _write(tx: Transaction, held: HeldJob, ending: Ending, *, reports_failure: bool = True) -> None:
    if ending.outcome is not None:
        record_failed_attempts(tx, [held.id], ending.outcome, ending.error_class, ending.error)
    if held.parent_id is not None and (ending.state is not State.FAILED or reports_failure):
        _record_end_of_child(tx, held, ending)
    values = msgspec.structs.asdict(ending) | {"id": held.id, "token": held.token, "state": ending.state.value}
    if ending.state in (State.COMPLETED, State.CANCELED):
        if ending.state is State.CANCELED:
            tx.run("free_key", id=held.id)
        if tx.keeps_history:
            tx.run("archive", **values)
        check_written(tx.run("delete_one", id=held.id))
        if ending.state is State.CANCELED:
            cancel_children(tx, [held.id])
    else:
        finished_at = tx.now.wall if ending.state is State.FAILED else None
        check_written(tx.run("requeue_or_fail", finished_at=finished_at, **values))
        if finished_at is not None and reports_failure:
            enqueue_reports(tx, ending.error_class)


def _record_end_of_child(tx: Transaction, held: HeldJob, ending: Ending) -> None:
    if ending.state is State.COMPLETED:
        record_ends(tx, [End(held.id, value=ending.result or NO_RESULT)])
    elif ending.state.terminal:
        record_ends(tx, [End(held.id, error=ending.error or CANCELED)])
