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
    LimitRow,
    Reason,
    WorkerDescription,
    WorkerRow,
)
from stowhand.stores.kernel.limits import LimitOfJob

NOTHING_PAUSED = Pauses()
UNKNOWN_TASK_FIX = "start a worker that has it (--task and --exclude-task limit its tasks), or correct the name"
NO_WORKER_FIX = "start one that has the task: stowhand worker MODULE:APP, or --tasks FOLDER"
MAX_WORKERS_PER_REASON = 5
MAX_ERROR_CHARACTERS = 300
OVERDUE_FIX = "a limit per worker, a flags function or pre_claim may delay it; else restart one, and report it"
CHILDREN_FIX = "stowhand flows show, with the id in its key, names the children that have not ended"
EXPIRED_LEASE_TEXT = "which has expired: if its worker is lost, another one resets the job in a few seconds"


class Holder(msgspec.Struct, frozen=True):
    """The running job that holds the serial key."""

    job_id: int
    worker: str | None
    since: datetime | None
    lease_until: datetime | None


class WorkerLoad(msgspec.Struct, frozen=True):
    """The number of jobs that a worker holds, and the job that it has held longest."""

    jobs: int
    oldest_job_id: int
    task: str
    since: datetime


class ClaimScope(msgspec.Struct, frozen=True):
    """Tasks and flags of the jobs that the candidate workers of one job claim."""

    tasks: tuple[str, ...] | None
    """``None``: any task."""
    forbidden: tuple[str, ...]
    """Flags that all these workers forbid."""


class WaitOfJob(msgspec.Struct, frozen=True):
    """The wait of a workflow that has not ended."""

    kind: str
    """``time``, ``event`` or ``children``."""
    subject: str
    """The name of the event, or of the step."""
    since: datetime
    until: datetime | None
    """The end of the wait, if it has one."""
    remaining: int = 0
    """The number of children that have not ended."""
    ended: int = 0
    """The number of children that have ended."""
    failed: int = 0
    """The number of children that failed or were canceled, among the ended ones."""


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
    """The number of due jobs that its workers claim before it (``claim_scope``), at most ``MAX_JOBS_AHEAD`` + 1.

    They share its serial key, or have none if the job has none.
    """
    limits: Sequence[LimitOfJob] = ()
    was_limited: bool = False
    """True if no job of its task may start now, or none could within the last ``OVERDUE_SECONDS``."""
    workers: Sequence[WorkerRow] = ()
    loads: Mapping[str, WorkerLoad] = {}
    """The jobs held by each worker, by its name."""
    expires_at: datetime | None = None
    """Set for a job that no worker has claimed yet."""
    on_failure: str | None = None
    """The task of the job that reports its failure."""
    wait: WaitOfJob | None = None
    """What the workflow waits for."""


def claim_scope(job: Job, workers: Sequence[WorkerRow], pauses: Pauses = NOTHING_PAUSED) -> ClaimScope | None:
    """Return the scope of the workers that could claim this job, without paused tasks.

    ``None``: no worker could claim it, so no job is claimed before it.
    """
    candidates = _candidate_workers(job, workers)
    if not candidates:
        return None
    tasks = {task for worker in candidates for task in worker.tasks or ()} - pauses.tasks.keys()
    forbidden = set.intersection(*(set(worker.forbidden_flags or ()) for worker in candidates))
    return ClaimScope(
        None if any(worker.tasks is None for worker in candidates) else tuple(sorted(tasks)), tuple(sorted(forbidden))
    )


def explain(facts: Facts) -> Explanation:
    """Return all reasons, the most important first. There is at least one."""
    job = facts.job
    match job.state:
        case State.PROCESSING:
            reasons = _explain_running(facts)
        case State.QUEUED | State.ERRORED:
            reasons = _explain_waiting(facts)
        case _:
            reasons = _explain_end(job)
    return Explanation(job, (*reasons, *_explain_follow_ups(facts)))


def _explain_running(facts: Facts) -> Iterator[Reason]:
    job, until = facts.job, facts.lease_until
    lease = f", under a lease until {_format_time(until)}" if until is not None else ""
    if until is not None and until < facts.now:
        lease += f", {EXPIRED_LEASE_TEXT}"
    yield Reason("running", f"it is running on {job.worker}, since {_format_time(job.started_at)}{lease}")
    if job.cancel_requested:
        yield Reason("cancel_asked", "its cancellation is requested: its worker will stop it")


def _explain_follow_ups(facts: Facts) -> Iterator[Reason]:
    """Yield the effects of ``expires`` and ``on_failure`` that are pending or have happened."""
    has_report = facts.on_failure is not None and NOT_ENQUEUED_PREFIX not in (facts.job.last_error or "")
    if facts.job.state is State.FAILED and has_report:
        yield Reason("failure_reported", f"a job of {facts.on_failure!r} was enqueued, which reports its failure")
    if facts.job.state is State.QUEUED and facts.expires_at is not None:
        if facts.expires_at <= facts.now:
            yield Reason(
                "expires", f"it expired at {_format_time(facts.expires_at)}: the next claim of any worker cancels it"
            )
        else:
            yield Reason(
                "expires", f"it is canceled at {_format_time(facts.expires_at)}, unless a worker claims it before"
            )
    if not facts.job.state.terminal and facts.on_failure is not None:
        yield Reason("on_failure", f"if it fails permanently, a job of {facts.on_failure!r} is enqueued")


def _explain_end(job: Job) -> Iterator[Reason]:
    when = _format_time(job.finished_at)
    if job.state is State.COMPLETED:
        yield Reason("completed", f"it completed at {when}")
    elif job.state is State.CANCELED:
        yield Reason("canceled", f"it was canceled at {when}", f"stowhand jobs retry {job.id}")
    elif job.attempts >= job.max_attempts:
        attempts = f"all its attempts are used up ({job.attempts} of {job.max_attempts})"
        failed = f"it failed at {when}: {attempts}{_describe_error(job)}"
        yield Reason("attempts_used_up", failed, f"stowhand jobs retry {job.id}")
    else:
        attempt = f"in attempt {job.attempts} of {job.max_attempts}"
        failed = f"it failed permanently at {when}, {attempt}{_describe_error(job)}"
        yield Reason("failed", failed, f"stowhand jobs retry {job.id}")


def _explain_waiting(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    is_due = job.run_at <= facts.now
    is_parked = PARKED_FLAG in job.flags and is_step(job.task, job.key)
    if not is_due and is_parked:
        parked = "it is the parent of a flow and waits for its children: the end of the last one wakes it"
        next_check = f"it checks its children at {_format_time(job.run_at)}"
        yield Reason("waits_for_children", f"{parked}; {next_check}", CHILDREN_FIX)
    elif not is_due and facts.wait is not None:
        yield _explain_wait(facts.wait, facts.now)
    elif not is_due and job.state is State.ERRORED:
        ended = f"attempt {job.attempts} of {job.max_attempts} failed{_describe_error(job)}"
        failed = f"{ended}; the next one is due at {_format_time(job.run_at)}"
        yield Reason("waits_for_retry", failed, f"stowhand jobs retry {job.id}, to retry it now")
    elif not is_due:
        later = f"it is not due before {_format_time(job.run_at)}"
        yield Reason("not_due", later, f"stowhand jobs reschedule {job.id} --run-at +0s, to run it now")
    obstacles = [
        *_explain_pauses(facts),
        *_explain_serial_key(facts),
        *_explain_limits(facts),
        *_explain_workers(facts),
    ]
    yield from obstacles
    if job.resets >= MIN_SUSPECT_RESETS:
        died = f"its worker died {job.resets} times while running it"
        yield Reason("suspect", f"{died}: it waits for a free slot, and for the suspects before it")
    elif job.resets:
        yield Reason(
            "worker_died", "its worker died while running it: if that happens again, it runs apart from other jobs"
        )
    yield from _explain_flags(facts)
    if is_due:
        loads = [*_explain_busy_slots(facts)]
        yield from loads or (() if obstacles else _explain_overdue(facts))
        yield Reason("due", _describe_position(facts))


def _explain_wait(wait: WaitOfJob, now: datetime) -> Reason:
    duration = format_duration(max((now - wait.since).total_seconds() // 1, 0.0))
    limit = "" if wait.until is None else f"; it continues without at {_format_time(wait.until)}"
    if wait.kind == "event":
        return Reason(
            "waits_for_event", f"it waits for the event {wait.subject!r} for {duration}; nothing has emitted it{limit}"
        )
    if wait.kind == "children":
        size = wait.remaining + wait.ended
        failed = f" ({wait.failed} failed)" if wait.failed else ""
        text = f"it waits for {wait.remaining} of {size} children of its step {wait.subject!r}{failed}, for {duration}"
        return Reason("waits_for_child_jobs", f"{text}{limit}")
    return Reason("sleeps", f"it sleeps in its step {wait.subject!r} until {_format_time(wait.until)}")


def _explain_pauses(facts: Facts) -> Iterator[Reason]:
    job, pauses = facts.job, facts.pauses
    if since := pauses.tasks.get(job.task):
        undo = f"stowhand serials resume --task {shlex.quote(job.task)}"
        yield Reason("task_paused", f"the task {job.task!r} is paused, since {_format_time(since)}", undo)
    if since := pauses.queues.get(job.queue):
        undo = f"stowhand queues resume {shlex.quote(job.queue)}"
        yield Reason("queue_paused", f"the queue {job.queue!r} is paused, since {_format_time(since)}", undo)


def _explain_serial_key(facts: Facts) -> Iterator[Reason]:
    serial, holder = facts.job.serial, facts.holder
    if facts.paused_since is not None:
        subject, undo = f"its serial key {serial!r}", f"stowhand serials resume {shlex.quote(str(serial))}"
        for limit in facts.limits:
            if limit.key is not None:
                subject = f"its key {limit.key!r} of the limit {limit.row.name!r}"
                undo = f"stowhand limits resume {shlex.quote(limit.row.name)} {shlex.quote(limit.key)}"
        yield Reason("serial_paused", f"{subject} is paused, since {_format_time(facts.paused_since)}", undo)
    if holder is not None:
        held = f"its serial key {serial!r} is held by job {holder.job_id}"
        held += f", since {_format_time(holder.since)}, on {holder.worker}"
        if holder.lease_until is not None and holder.lease_until < facts.now:
            held += f", under a lease {EXPIRED_LEASE_TEXT}"
        stuck = f"if that job is stuck: stowhand jobs cancel {holder.job_id}"
        yield Reason("serial_held", held, stuck)


def _explain_limits(facts: Facts) -> Iterator[Reason]:
    reasons: dict[str, Reason] = {}
    for limit, key in sorted(facts.limits, key=lambda limit: (limit.row.held_until or facts.now, limit.row.name)):
        reasons |= {reason.code: reason for reason in _explain_limit(limit, key)}
    yield from reasons.values()


def _explain_limit(limit: LimitRow, key: str | None) -> Iterator[Reason]:
    name, values, option = shlex.quote(limit.name), limit.values, "" if key is None else "key-"
    prefix = "" if key is None else "key_"
    subject = f"its limit {limit.name!r}" if key is None else f"its key {key!r} of the limit {limit.name!r}"
    if limit.held_until is not None:
        text = f"{subject} starts nothing before {_format_time(limit.held_until)} (a job raised RateLimited)"
        yield Reason(f"{prefix}limit_held", text, f"to end that: stowhand limits reset {name}" if key is None else "")
    if limit.is_full and limit.used:
        jobs, since = _list_jobs(limit.used_by, limit.used), _format_time(limit.used_since)
        text = f"{subject} ({values.concurrency} at once) is full: held by {jobs}, since {since}"
        advice = f"to run more at once: stowhand limits set {name} --{option}concurrency N"
        yield Reason(f"{prefix}limit_full", text, advice)
    elif limit.is_full:
        text = f"{subject} ({values.concurrency} at once) starts nothing"
        yield Reason(f"{prefix}limit_full", text, f"stowhand limits reset {name}")
    if limit.next_start is not None:
        text = f"{subject} ({values.rate_text}) starts the next job at {_format_time(limit.next_start)}"
        advice = f"to start more of them: stowhand limits set {name} --{option}rate N/PERIOD"
        yield Reason(f"{prefix}rate_limited", text, advice)


def _list_jobs(job_ids: Sequence[int], number: int) -> str:
    """Return "job 1", "jobs 1, 2 and 3" or "jobs 1, 2, 3 and 4 more"."""
    *names, last = map(str, job_ids)
    if number > len(job_ids):
        names, last = [*names, last], f"{number - len(job_ids)} more"
    return f"jobs {', '.join(names)} and {last}" if names else f"job {last}"


def _explain_workers(facts: Facts) -> Iterator[Reason]:
    task = facts.job.task
    available = _available_workers(facts.workers)
    note = "workers over HTTP are not listed"
    if not available:
        has_stopping = any(row.is_alive for row in facts.workers)
        text = "every worker that is alive is stopping" if has_stopping else "no worker is alive"
        yield Reason("no_worker", f"{text} ({note})", NO_WORKER_FIX)
    elif not any(_has(worker, task) for worker in available):
        if len(available) > 1:
            text = f"none of the {len(available)} workers alive has the task {task!r}"
        else:
            text = f"the one worker that is alive has no task {task!r}"
        yield Reason("unknown_task", f"{text} ({note})", UNKNOWN_TASK_FIX)
    elif not any(_has(worker, task) and facts.job.queue in worker.queues for worker in available):
        yield Reason(
            "unserved_queue",
            f"no worker alive that has its task claims from the queue {facts.job.queue!r} ({note})",
            f"start a worker with --queue {shlex.quote(facts.job.queue)}, or one without --queue and --exclude-queue",
        )


def _explain_flags(facts: Facts) -> Iterator[Reason]:
    """Yield the workers that forbid one of its flags."""
    flags = tuple(flag for flag in without_carried(facts.job.flags) if flag != PARKED_FLAG)
    if not flags:
        return
    workers = [worker for worker in _available_workers(facts.workers) if _has(worker, facts.job.task)]
    forbidding = [worker for worker in workers if _forbids(worker, facts.job)]
    undecided = [worker for worker in workers if worker.forbidden_flags is None]
    text = f"it has flags ({', '.join(flags)}): "
    if forbidding and len(forbidding) == len(workers):
        text += f"every worker alive that has its task forbids one of them ({_list_forbidding(forbidding, flags)})"
        yield Reason("flags", text, "start a worker without that --forbidden-flag")
        return
    if forbidding:
        names = _list_forbidding(forbidding, flags)
        text += f"one is forbidden by {len(forbidding)} of {len(workers)} workers ({names})"
    else:
        text += "no worker alive is known to forbid one"
    if undecided:
        text += f"; a function decides before each claim of {len(undecided)} of {len(workers)} workers"
    yield Reason("flags", text)


def _list_forbidding(workers: Sequence[WorkerDescription], flags: Sequence[str]) -> str:
    shown = [
        f"{worker.name}: {', '.join(sorted({*flags} & {*(worker.forbidden_flags or ())}))}"
        for worker in workers[:MAX_WORKERS_PER_REASON]
    ]
    hidden = len(workers) - len(shown)
    return "; ".join(shown) + (f" and {hidden} more" if hidden else "")


def _explain_busy_slots(facts: Facts) -> Iterator[Reason]:
    """Yield a reason if every worker that could claim the job is busy."""
    candidates = _candidate_workers(facts.job, facts.workers)
    loads = [facts.loads[worker.name] for worker in candidates if worker.name in facts.loads]
    if not candidates or _count_free_slots(facts, candidates):
        return
    slots = sum(worker.concurrency for worker in candidates)
    if slots == 1:
        text = "the one slot of the one worker that could claim it is busy"
    elif len(candidates) == 1:
        text = f"all {slots} slots of the one worker that could claim it are busy"
    else:
        text = f"all {slots} slots of {len(candidates)} workers are busy"
    oldest = min(loads, key=lambda load: load.since)
    duration = format_duration(max((facts.now - oldest.since).total_seconds() // 1, 0.0))
    yield Reason("slots_busy", f"{text}, the oldest for {duration} with job {oldest.oldest_job_id} ({oldest.task})")


def _explain_overdue(facts: Facts) -> Iterator[Reason]:
    """Yield a reason if no known obstacle blocks the job and free slots do not claim it."""
    candidates = _candidate_workers(facts.job, facts.workers)
    overdue_seconds = (facts.now - facts.job.run_at).total_seconds()
    free = _count_free_slots(facts, candidates)
    if free and overdue_seconds > OVERDUE_SECONDS and not facts.was_limited:
        slots = f"{free} of {sum(worker.concurrency for worker in candidates)} slots that could claim it are free"
        text = (
            f"it has been due for {format_duration(overdue_seconds // 1)} while {slots}, and the store knows no reason"
        )
        yield Reason("overdue", text, OVERDUE_FIX)


def _count_free_slots(facts: Facts, candidates: Sequence[WorkerDescription]) -> int:
    held = {worker.name: facts.loads[worker.name].jobs if worker.name in facts.loads else 0 for worker in candidates}
    return sum(max(worker.concurrency - held[worker.name], 0) for worker in candidates)


def _available_workers(workers: Sequence[WorkerRow]) -> list[WorkerDescription]:
    return [row.description for row in workers if row.is_alive and not row.description.stopping]


def _candidate_workers(job: Job, workers: Sequence[WorkerRow]) -> list[WorkerDescription]:
    """Return the workers that have its task, serve its queue, and are not known to forbid one of its flags."""
    return [
        worker
        for worker in _available_workers(workers)
        if _has(worker, job.task) and job.queue in worker.queues and not _forbids(worker, job)
    ]


def _has(worker: WorkerDescription, task: str) -> bool:
    return worker.tasks is None or task in worker.tasks


def _forbids(worker: WorkerDescription, job: Job) -> bool:
    return not set(job.flags).isdisjoint(worker.forbidden_flags or ())


def _describe_error(job: Job) -> str:
    """Return the first line of its last error after a colon, or an empty text."""
    line = (job.last_error or "").strip().partition("\n")[0]
    return f": {line[:MAX_ERROR_CHARACTERS]}{'…' if len(line) > MAX_ERROR_CHARACTERS else ''}" if line else ""


def _describe_position(facts: Facts) -> str:
    if claim_scope(facts.job, facts.workers) is None:
        return "it is due"
    keys = [limit.key for limit in facts.limits if limit.key is not None]
    if facts.job.serial is not None:
        line = f"in its serial key {facts.job.serial!r}"
    elif keys:
        line = f"in its key {keys[0]!r}"
    else:
        line = "among those without a serial key"
    if not facts.ahead:
        return f"it is due, and no job is ahead of it {line}"
    number = f"more than {MAX_JOBS_AHEAD}" if facts.ahead > MAX_JOBS_AHEAD else str(facts.ahead)
    return f"it is due; ahead of it {line}: {number}"


def _format_time(time: datetime | None) -> str:
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
