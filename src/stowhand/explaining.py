"""Why does a job not run? One judgement for all stores: they bring the facts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from stowhand.carried import without
from stowhand.job import Job, State
from stowhand.lifecycle import QUARANTINE_AFTER
from stowhand.operating import MOST_AHEAD, Explanation, Reason, WorkerRow

CODES = (
    *("running", "cancel_asked", "completed", "canceled", "failed", "attempts_used_up"),
    *(
        "not_due",
        "waits_for_retry",
        "queue_paused",
        "queue_held",
        "no_worker",
        "unknown_task",
        "suspect",
        "flags",
        "due",
    ),
)
"""Every code that a reason may have."""


ENDED = "which has ended: if its worker is dead, another one takes the job back in some seconds"
"""Of a lease."""


class Holder(msgspec.Struct, frozen=True):
    """The running job that a queue waits for."""

    job_id: int
    worker: str | None
    since: datetime | None
    lease_until: datetime | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows about a job and its surroundings at one moment of the store's clock."""

    job: Job
    now: datetime
    lease_until: datetime | None = None
    """Of a running job."""
    paused_since: datetime | None = None
    """Its queue is paused."""
    holder: Holder | None = None
    """Of its queue, unless that is the job itself."""
    ahead: int = 0
    """Due jobs that are claimed before it, in its queue, or of those without one; at most ``MOST_AHEAD`` + 1."""
    workers: Sequence[WorkerRow] = ()


def explain(facts: Facts) -> Explanation:
    """All reasons, the most important first. There is always one."""
    job = facts.job
    match job.state:
        case State.PROCESSING:
            reasons = _running(facts)
        case State.QUEUED | State.ERRORED:
            reasons = _waiting(facts)
        case _:
            reasons = _over(job)
    return Explanation(job, tuple(reasons))


def _running(facts: Facts) -> Iterator[Reason]:
    job, until = facts.job, facts.lease_until
    lease = f", under a lease until {_say(until)}" if until is not None else ""
    if until is not None and until < facts.now:
        lease += f", {ENDED}"
    yield Reason("running", f"it is running on {job.worker}, since {_say(job.started_at)}{lease}")
    if job.cancel_requested:
        yield Reason("cancel_asked", "it was asked to cancel: its worker hears of it at the next beat")


def _over(job: Job) -> Iterator[Reason]:
    when = _say(job.finished_at)
    if job.state is State.COMPLETED:
        yield Reason("completed", f"it completed at {when}")
    elif job.state is State.CANCELED:
        yield Reason("canceled", f"it was canceled at {when}", f"stowhand jobs retry {job.id}")
    elif job.attempts >= job.max_attempts:
        used = f"it failed at {when}: all its attempts are used up ({job.attempts} of {job.max_attempts})"
        yield Reason("attempts_used_up", used, f"stowhand jobs retry {job.id}")
    else:
        gone = f"it failed for good at {when}, in attempt {job.attempts} of {job.max_attempts}"
        yield Reason("failed", gone, f"stowhand jobs retry {job.id}")


def _waiting(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    is_due = job.run_at <= facts.now
    if not is_due and job.state is State.ERRORED:
        failed = f"attempt {job.attempts} of {job.max_attempts} failed; the next one is due at {_say(job.run_at)}"
        yield Reason("waits_for_retry", failed, f"stowhand jobs retry {job.id}, to have it tried at once")
    elif not is_due:
        later = f"it is not due before {_say(job.run_at)}"
        yield Reason("not_due", later, f"stowhand jobs reschedule {job.id} --run-at +0s, to have it run at once")
    yield from _queue(facts)
    yield from _workers(facts)
    if job.resets >= QUARANTINE_AFTER:
        died = f"its worker died {job.resets} times while running it: it is run alone, in a process of its own"
        yield Reason("suspect", f"{died}, when no other suspect is")
    if flags := without(job.flags):
        borne = f"it bears flags ({', '.join(flags)}): a worker that forbids one leaves it alone"
        yield Reason("flags", f"{borne}; which workers do is not known here")
    if is_due:
        yield Reason("due", _line(facts))


def _queue(facts: Facts) -> Iterator[Reason]:
    queue, holder = facts.job.queue, facts.holder
    if facts.paused_since is not None:
        paused = f"its queue {queue!r} is paused, since {_say(facts.paused_since)}"
        yield Reason("queue_paused", paused, f"stowhand queues resume {shlex.quote(str(queue))}")
    if holder is not None:
        held = f"its queue {queue!r} is held by job {holder.job_id}, since {_say(holder.since)}, on {holder.worker}"
        if holder.lease_until is not None and holder.lease_until < facts.now:
            held += f", under a lease {ENDED}"
        yield Reason("queue_held", held)


def _workers(facts: Facts) -> Iterator[Reason]:
    task = facts.job.task
    alive = [row.card for row in facts.workers if row.alive]
    working = [card for card in alive if not card.stopping]
    known = "workers over HTTP are not in the roll"
    if not working:
        said = "every worker that is alive is stopping" if alive else "no worker is alive"
        yield Reason("no_worker", f"{said} ({known})", "start one: stowhand worker")
    elif not any(card.tasks is None or task in card.tasks for card in working):
        count = f"none of the {len(working)} workers" if len(working) > 1 else "the one worker that is"
        which = f"{count} alive has the task {task!r}" if len(working) > 1 else f"{count} alive has no task {task!r}"
        yield Reason(
            "unknown_task", f"{which} ({known})", "start a worker that has it, or look for a mistake in the name"
        )


def _line(facts: Facts) -> str:
    where = f" in its queue {facts.job.queue!r}" if facts.job.queue is not None else " among those without a queue"
    if not facts.ahead:
        return f"it is due, and no job is ahead of it{where}"
    number = f"more than {MOST_AHEAD}" if facts.ahead > MOST_AHEAD else str(facts.ahead)
    return f"it is due; ahead of it{where}: {number}"


def _say(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
