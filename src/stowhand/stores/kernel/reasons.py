"""The reasons why a job does not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from stowhand.jobs.durations import format_duration
from stowhand.jobs.failure import NOT_ENQUEUED_PREFIX
from stowhand.jobs.job import Job, State
from stowhand.jobs.lifecycle import MIN_SUSPECT_RESETS
from stowhand.observe.propagation import without_carried
from stowhand.protocols.counts import Pauses
from stowhand.protocols.flow_tables import PARKED_FLAG, is_step
from stowhand.protocols.operator import (
    MAX_JOBS_AHEAD,
    OVERDUE_SECONDS,
    Explanation,
    Reason,
    WorkerDescription,
    WorkerRow,
)

NOTHING_PAUSED = Pauses()
UNKNOWN_TASK_FIX = "start a worker that has it (--task and --exclude-task leave tasks out), or correct the name"
NO_WORKER_FIX = "start one that has the task: stowhand worker MODULE:APP, or --tasks FOLDER"
MAX_WORKERS_PER_REASON = 5
MAX_ERROR_CHARACTERS = 300
OVERDUE_FIX = "a limiter, a flags function or pre_claim of its workers may hold it up; else restart one, and report it"
CHILDREN_FIX = "stowhand flows show, with the id in its key, names the children that have not ended"
EXPIRED_LEASE_TEXT = "which has ended: if its worker is dead, another one takes the job back in some seconds"


class Holder(msgspec.Struct, frozen=True):
    """The running job that holds the serial key."""

    job_id: int
    worker: str | None
    since: datetime | None
    lease_until: datetime | None


class Busy(msgspec.Struct, frozen=True):
    """The number of jobs that a worker holds, and the one it has held longest."""

    jobs: int
    oldest: int
    task: str
    since: datetime


class ClaimScope(msgspec.Struct, frozen=True):
    """Tasks and flags of the jobs that the possible workers of one job claim."""

    tasks: tuple[str, ...] | None
    """``None``: any task."""
    forbidden: tuple[str, ...]
    """Flags that every one of them forbids."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job and its surroundings at one time of the store's clock."""

    job: Job
    now: datetime
    lease_until: datetime | None = None
    """Set for a running job."""
    paused_since: datetime | None = None
    """The time since which its serial key is paused."""
    pauses: Pauses = Pauses()
    """All paused tasks and queues."""
    holder: Holder | None = None
    """The holder of its serial key, unless the job itself holds it."""
    ahead: int = 0
    """The number of due jobs that its workers claim before it (``claim_scope``), at most ``MOST_AHEAD`` + 1.

    They share its serial key, or have none if it has none.
    """
    workers: Sequence[WorkerRow] = ()
    busy: Mapping[str, Busy] = {}
    """The jobs held by each worker, by its name."""
    expires_at: datetime | None = None
    """Set for a job that no worker has claimed yet."""
    on_failure: str | None = None
    """The task of the job that reports its failure."""


def claim_scope(job: Job, workers: Sequence[WorkerRow], pauses: Pauses = NOTHING_PAUSED) -> ClaimScope | None:
    """Return the scope of the workers that could claim this job, without paused tasks.

    ``None``: no worker could claim it, so no job is claimed before it.
    """
    able = _able(job, workers)
    if not able:
        return None
    tasks = {task for card in able for task in card.tasks or ()} - pauses.tasks.keys()
    forbidden = set.intersection(*(set(card.forbidden_flags or ()) for card in able))
    return ClaimScope(
        None if any(card.tasks is None for card in able) else tuple(sorted(tasks)), tuple(sorted(forbidden))
    )


def explain(facts: Facts) -> Explanation:
    """Return all reasons, the most important first. There is at least one."""
    job = facts.job
    match job.state:
        case State.PROCESSING:
            reasons = _running(facts)
        case State.QUEUED | State.ERRORED:
            reasons = _waiting(facts)
        case _:
            reasons = _over(job)
    return Explanation(job, (*reasons, *_later(facts)))


def _running(facts: Facts) -> Iterator[Reason]:
    job, until = facts.job, facts.lease_until
    lease = f", under a lease until {_say(until)}" if until is not None else ""
    if until is not None and until < facts.now:
        lease += f", {EXPIRED_LEASE_TEXT}"
    yield Reason("running", f"it is running on {job.worker}, since {_say(job.started_at)}{lease}")
    if job.cancel_requested:
        yield Reason("cancel_asked", "it was asked to cancel: its worker will stop it")


def _later(facts: Facts) -> Iterator[Reason]:
    """Yield the effects of ``expires`` and ``on_failure`` that are pending or have happened."""
    is_told = facts.on_failure is not None and NOT_ENQUEUED_PREFIX not in (facts.job.last_error or "")
    if facts.job.state is State.FAILED and is_told:
        yield Reason("told", f"a job of {facts.on_failure!r} was enqueued, which tells of its failure")
    if facts.job.state is State.QUEUED and facts.expires_at is not None:
        if facts.expires_at <= facts.now:
            yield Reason("expires", f"it expired at {_say(facts.expires_at)}: the next claim of any worker cancels it")
        else:
            yield Reason("expires", f"it is canceled at {_say(facts.expires_at)}, unless a worker claims it before")
    if not facts.job.state.terminal and facts.on_failure is not None:
        yield Reason("on_failure", f"should it fail for good, a job of {facts.on_failure!r} is enqueued")


def _over(job: Job) -> Iterator[Reason]:
    when = _say(job.finished_at)
    if job.state is State.COMPLETED:
        yield Reason("completed", f"it completed at {when}")
    elif job.state is State.CANCELED:
        yield Reason("canceled", f"it was canceled at {when}", f"stowhand jobs retry {job.id}")
    elif job.attempts >= job.max_attempts:
        used = f"it failed at {when}: all its attempts are used up ({job.attempts} of {job.max_attempts}){_error(job)}"
        yield Reason("attempts_used_up", used, f"stowhand jobs retry {job.id}")
    else:
        gone = f"it failed for good at {when}, in attempt {job.attempts} of {job.max_attempts}{_error(job)}"
        yield Reason("failed", gone, f"stowhand jobs retry {job.id}")


def _waiting(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    is_due = job.run_at <= facts.now
    is_parked = PARKED_FLAG in job.flags and is_step(job.task, job.key)
    if not is_due and is_parked:
        parked = "it is the parent of a flow and waits for its children: the end of the last one wakes it"
        yield Reason("waits_for_children", f"{parked}; it looks by itself at {_say(job.run_at)}", CHILDREN_FIX)
    elif not is_due and job.state is State.ERRORED:
        ended = f"attempt {job.attempts} of {job.max_attempts} failed{_error(job)}"
        failed = f"{ended}; the next one is due at {_say(job.run_at)}"
        yield Reason("waits_for_retry", failed, f"stowhand jobs retry {job.id}, to have it tried at once")
    elif not is_due:
        later = f"it is not due before {_say(job.run_at)}"
        yield Reason("not_due", later, f"stowhand jobs reschedule {job.id} --run-at +0s, to have it run at once")
    obstacles = [*_paused(facts), *_serial(facts), *_workers(facts)]
    yield from obstacles
    if job.resets >= MIN_SUSPECT_RESETS:
        died = f"its worker died {job.resets} times while running it"
        yield Reason("suspect", f"{died}: it waits for a free slot, and for the suspects before it")
    elif job.resets:
        yield Reason(
            "worker_died", "its worker died while running it: if that happens again, it runs apart from other jobs"
        )
    yield from _flags(facts)
    if is_due:
        busy = [*_slots(facts)]
        yield from busy or (() if obstacles else _overdue(facts))
        yield Reason("due", _line(facts))


def _paused(facts: Facts) -> Iterator[Reason]:
    job, pauses = facts.job, facts.pauses
    if since := pauses.tasks.get(job.task):
        undo = f"stowhand serials resume --task {shlex.quote(job.task)}"
        yield Reason("task_paused", f"the task {job.task!r} is paused, since {_say(since)}", undo)
    if since := pauses.queues.get(job.queue):
        undo = f"stowhand queues resume {shlex.quote(job.queue)}"
        yield Reason("queue_paused", f"the queue {job.queue!r} is paused, since {_say(since)}", undo)


def _serial(facts: Facts) -> Iterator[Reason]:
    serial, holder = facts.job.serial, facts.holder
    if facts.paused_since is not None:
        paused = f"its serial key {serial!r} is paused, since {_say(facts.paused_since)}"
        yield Reason("serial_paused", paused, f"stowhand serials resume {shlex.quote(str(serial))}")
    if holder is not None:
        held = (
            f"its serial key {serial!r} is held by job {holder.job_id}, since {_say(holder.since)}, on {holder.worker}"
        )
        if holder.lease_until is not None and holder.lease_until < facts.now:
            held += f", under a lease {EXPIRED_LEASE_TEXT}"
        stuck = f"if that job is stuck: stowhand jobs cancel {holder.job_id}"
        yield Reason("serial_held", held, stuck)


def _workers(facts: Facts) -> Iterator[Reason]:
    task = facts.job.task
    alive = [row.description for row in facts.workers if row.is_alive]
    working = _working(facts.workers)
    known = "workers over HTTP are not listed"
    if not working:
        text = "every worker that is alive is stopping" if alive else "no worker is alive"
        yield Reason("no_worker", f"{text} ({known})", NO_WORKER_FIX)
    elif not any(_has(card, task) for card in working):
        count = f"none of the {len(working)} workers" if len(working) > 1 else "the one worker that is"
        which = f"{count} alive has the task {task!r}" if len(working) > 1 else f"{count} alive has no task {task!r}"
        yield Reason(
            "unknown_task",
            f"{which} ({known})",
            UNKNOWN_TASK_FIX,
        )
    elif not any(_has(card, task) and facts.job.queue in card.queues for card in working):
        yield Reason(
            "unserved_queue",
            f"no worker alive that has its task claims from the queue {facts.job.queue!r} ({known})",
            f"start a worker with --queue {shlex.quote(facts.job.queue)}, or one without --queue and --exclude-queue",
        )


def _flags(facts: Facts) -> Iterator[Reason]:
    """Yield which workers forbid one of its flags."""
    flags = tuple(flag for flag in without_carried(facts.job.flags) if flag != PARKED_FLAG)
    if not flags:
        return
    having = [card for card in _working(facts.workers) if _has(card, facts.job.task)]
    forbidding = [card for card in having if _forbids(card, facts.job)]
    asking = [card for card in having if card.forbidden_flags is None]
    text = f"it has flags ({', '.join(flags)}): "
    if forbidding and len(forbidding) == len(having):
        text += f"every worker alive that has its task forbids one of them ({_forbidding(forbidding, flags)})"
        yield Reason("flags", text, "start a worker without that --forbidden-flag")
        return
    text += (
        f"{_forbidding(forbidding, flags)} leaves it alone" if forbidding else "no worker alive is known to forbid one"
    )
    yield Reason("flags", text + (f"; {len(asking)} of them asks a function each time" if asking else ""))


def _forbidding(cards: Sequence[WorkerDescription], flags: Sequence[str]) -> str:
    shown = [
        f"{card.name}: {', '.join(sorted({*flags} & {*(card.forbidden_flags or ())}))}"
        for card in cards[:MAX_WORKERS_PER_REASON]
    ]
    return "; ".join(shown) + (
        f" and {len(cards) - MAX_WORKERS_PER_REASON} more" if len(cards) > MAX_WORKERS_PER_REASON else ""
    )


def _slots(facts: Facts) -> Iterator[Reason]:
    """Yield a reason if every worker that could claim the job is busy."""
    able = _able(facts.job, facts.workers)
    held = [facts.busy[card.name] for card in able if card.name in facts.busy]
    if not able or _free_slots(facts, able):
        return
    slots, oldest = sum(card.concurrency for card in able), min(held, key=lambda busy: busy.since)
    whose = f"of {len(able)} workers are" if len(able) > 1 else "of the one worker that could take it are"
    since = format_duration(max((facts.now - oldest.since).total_seconds() // 1, 0.0))
    all_of = f"all {slots} slots {whose}" if slots > 1 else "the one slot of the one worker that could take it is"
    yield Reason("slots_busy", f"{all_of} busy, the oldest for {since} with job {oldest.oldest} ({oldest.task})")


def _overdue(facts: Facts) -> Iterator[Reason]:
    """Yield a reason if no known obstacle blocks the job and free slots do not claim it."""
    able = _able(facts.job, facts.workers)
    late, free = (facts.now - facts.job.run_at).total_seconds(), _free_slots(facts, able)
    if free and late > OVERDUE_SECONDS:
        slots = f"{free} of {sum(card.concurrency for card in able)} slots that could take it are free"
        what = f"it has been due for {format_duration(late // 1)} while {slots}, and the store knows no reason"
        yield Reason("overdue", what, OVERDUE_FIX)


def _free_slots(facts: Facts, able: Sequence[WorkerDescription]) -> int:
    held = {card.name: facts.busy[card.name].jobs if card.name in facts.busy else 0 for card in able}
    return sum(max(card.concurrency - held[card.name], 0) for card in able)


def _working(workers: Sequence[WorkerRow]) -> list[WorkerDescription]:
    return [row.description for row in workers if row.is_alive and not row.description.stopping]


def _able(job: Job, workers: Sequence[WorkerRow]) -> list[WorkerDescription]:
    """Return the workers that have its task, serve its queue, and are not known to forbid one of its flags."""
    return [
        card
        for card in _working(workers)
        if _has(card, job.task) and job.queue in card.queues and not _forbids(card, job)
    ]


def _has(card: WorkerDescription, task: str) -> bool:
    return card.tasks is None or task in card.tasks


def _forbids(card: WorkerDescription, job: Job) -> bool:
    return not set(job.flags).isdisjoint(card.forbidden_flags or ())


def _error(job: Job) -> str:
    """Return the first line of its last error after a colon, or an empty text."""
    line = (job.last_error or "").strip().partition("\n")[0]
    return f": {line[:MAX_ERROR_CHARACTERS]}{'…' if len(line) > MAX_ERROR_CHARACTERS else ''}" if line else ""


def _line(facts: Facts) -> str:
    where = (
        f" in its serial key {facts.job.serial!r}"
        if facts.job.serial is not None
        else " among those without a serial key"
    )
    if claim_scope(facts.job, facts.workers) is None:
        return "it is due"
    if not facts.ahead:
        return f"it is due, and no job is ahead of it{where}"
    number = f"more than {MAX_JOBS_AHEAD}" if facts.ahead > MAX_JOBS_AHEAD else str(facts.ahead)
    return f"it is due; ahead of it{where}: {number}"


def _say(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
