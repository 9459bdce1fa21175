"""Which states forbid to act on a job, and the answers: once for the stores that judge it in Python."""

from __future__ import annotations

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import Answer, Done

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
    """Why a job in this state (``None``: there is no such job) is left as it is; ``None``: it may be acted on."""
    if state is None:
        return Answer(job_id, Done.MISSING, f"there is no job {job_id}")
    why = _WHY.get((doing, state))
    done = Done.UNCHANGED if state is State.CANCELED else Done.REFUSED
    return None if why is None else Answer(job_id, done, why)
