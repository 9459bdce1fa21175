"""What is replied to acts and to settlements."""

from __future__ import annotations

import msgspec

from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import WAITING_STATES, Settlement, with_state
from stowhand.protocols.flow_tables import is_step
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.protocols.store import Reply, Verdict

_WHY = {
    ("retry", State.PROCESSING): "it is running; cancel it first, or wait until it has ended",
    ("retry", State.COMPLETED): "it completed; enqueue it again instead",
    ("cancel", State.CANCELED): "it is canceled already",
    ("cancel", State.FAILED): "it has failed already; remove it, or retry it",
    ("cancel", State.COMPLETED): "it has completed already",
    ("remove", State.PROCESSING): "it is running; cancel it instead",
    ("remove", State.COMPLETED): "it completed; the history is pruned by its age",
}


def refusal(doing: str, job_id: int, state: State | None) -> Answer | None:
    """Why a job in this state (``None``: there is no such job) is left as it is."""
    if state is None:
        return Answer(job_id, ActionResult.MISSING, f"there is no job {job_id}")
    why = _WHY.get((doing, state))
    done = ActionResult.UNCHANGED if state is State.CANCELED else ActionResult.REFUSED
    return None if why is None else Answer(job_id, done, why)


def recorded(asked: Settlement, state: State) -> Reply:
    """The row was the lease's, and is ``state`` now."""
    return Verdict.SETTLED if state is asked.state else with_state(asked, state)


def recorded_before(asked: Settlement, state: State) -> Reply:
    """The row, ``state`` now, was settled by this very lease."""
    is_other_end = state.terminal and state is not asked.state
    if not is_other_end and (asked.state is not State.COMPLETED or state not in WAITING_STATES):
        return Verdict.ALREADY_SETTLED
    if asked.state in WAITING_STATES:
        return with_state(asked, state)
    return msgspec.structs.replace(with_state(asked, state), error=None, error_class=None)


def continues(settlement: Settlement) -> bool:
    """It completes a step of a flow whose job goes on."""
    return settlement.state is State.COMPLETED and any(is_step(job.task, job.key) for job in settlement.then)


def appended(old: str, new: str) -> str:
    """What a keyed enqueue makes of two payloads: both arrays, one after the other; else the new one."""
    first, second = old.strip(), new.strip()
    if not (first.startswith("[") and second.startswith("[")):
        return new
    return "[" + ",".join(filter(None, (first[1:-1].strip(), second[1:-1].strip()))) + "]"
