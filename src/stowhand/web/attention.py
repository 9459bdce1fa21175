"""What needs somebody's attention, and when nothing will be due: judged from what a store says of itself. Pure.

What is paused, held, lost or run by nobody; what fails. A sentence sets the names of users apart, so that letters from
right to left turn nothing that stands behind them: ``שלח: 5 jobs``.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from stowhand.jobs.durations import format_span
from stowhand.jobs.failed_attempts import BY_HAND
from stowhand.jobs.job import Job, State
from stowhand.protocols.counts import BoundedCount, Pauses
from stowhand.protocols.operator import BacklogRow, HeldJobs, SerialRow, WorkerRow
from stowhand.protocols.queue_store import Failures
from stowhand.protocols.throughput import Period, total

NEW = timedelta(hours=1)
"""How long a failure is news."""
LATELY = timedelta(minutes=10)
"""In which the attempts of a task are counted; and for which a job may hold its serial key."""
FEWEST, SHARE = 5, 0.5
"""Attempts of that time, and the share of them that failed, from which on a task is named."""
RATED = timedelta(minutes=5)
"""Of which the rate is."""
EACH = 3
"""Concerns of one kind; one more leads to the others."""
WAITING = [State.QUEUED.value, State.ERRORED.value]
"""The states of jobs that wait, for links to them."""
PAUSE, RESUME = "stowhand serials pause", "stowhand serials resume"


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention: what it is, where it is seen, what to do."""

    what: str
    """A sentence, which ends with ``since`` where that is given: ``mail: 3 jobs failed by hand, the first …``."""
    since: datetime | None = None
    page: str = "jobs"
    """``job``, or the list of ``jobs``, ``queues``, ``tasks``, ``failures``, ``workers``."""
    of: Mapping[str, object] = {}
    """What of the list: ``task``, ``serial`` and ``state`` of jobs; the ``id`` of a job."""
    todo: str = ""
    is_bad: bool = True


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says of itself at one moment of its clock."""

    now: datetime
    tasks: Sequence[BacklogRow] = ()
    serials: Sequence[SerialRow] = ()
    """The paused ones; all, where there are ``holders``."""
    pauses: Pauses = Pauses()
    failures: Sequence[Failures] = ()
    workers: Sequence[WorkerRow] = ()
    holders: Sequence[Job] = ()
    """Of ``holders_of``."""
    lately: Sequence[Period] = ()
    """The last hour, by the minute, all tasks in one."""
    by_task: Sequence[Period] = ()
    """The same by task, where ``asks_by_task``; else empty."""


def concerns(facts: Facts) -> list[Concern]:
    """All of them, by kind."""
    kinds: tuple[tuple[Callable[[Facts], Iterable[Concern]], str], ...] = (
        (_paused, "queues"),
        (_held, "queues"),
        (_orphaned, "tasks"),
        (_erring, "tasks"),
        (_failing, "failures"),
        (_blocked, "workers"),
        (_hung, "workers"),
        (_lost, "workers"),
        (_died, "tasks"),
    )
    return [one for kind, others in kinds for one in _few(kind(facts), others)]


def outlook(facts: Facts) -> str:
    """When nothing is due any more, if things go on as in the last minutes.

    Only jobs that may run are counted. A task's jobs may have a serial key that is paused, and a key's jobs may be of a
    task that is: where both are, the most that may run is told.
    """
    every = sum((row.due for row in facts.tasks), BoundedCount())
    due = sum((row.due for row in facts.tasks if row.paused_since is None and row.serving), BoundedCount())
    stuck = {job.serial for job in facts.holders}
    behind = sum(row.due for row in facts.serials if row.paused_since is not None or row.name in stuck)
    least, most = max(due.number - behind, 0), min(due.number, max(every.number - behind, 0))
    if not most:
        return "Nothing is due that a worker may take." if every.number else "Nothing is due."
    due = msgspec.structs.replace(due, number=most)
    what = f"{_jobs(due)} due" if least == most else f"At most {_jobs(due)} due that may run now"
    since = (facts.now - RATED).replace(second=0, microsecond=0)  # of whole minutes, and of this one as far as it goes
    done = total(period for period in facts.lately if period.at >= since).finished
    if not done:
        return f"{what}, and none has ended in the last {format_span(RATED.total_seconds())}."
    left = format_span(max(due.number * (facts.now - since).total_seconds() / done, 1))
    return f"{what}; at this rate that is {left} of work."


def holders_of(held: Sequence[HeldJobs], now: datetime) -> list[Job]:
    """Jobs that have held their serial key for long; the longest first."""
    found = [
        (job.started_at, job.id, job)
        for one in held
        for job in one.longest
        if job.serial is not None and job.started_at is not None and job.started_at < now - LATELY
    ]
    return [job for _, _, job in sorted(found, key=lambda one: one[:2])]


def asks_by_task(lately: Sequence[Period], now: datetime) -> bool:
    """Whether the figures by task, a costly question, may show a task that is ``erring`` or that lost workers."""
    errors = sum(period.tally.errors for period in lately if period.at > now - LATELY)
    return errors >= FEWEST or any(period.tally.resets for period in lately)


def erring(by_task: Sequence[Period], now: datetime) -> dict[str, tuple[int, int]]:
    """Tasks of which most attempts failed lately, and are tried again: how many failed, of how many.

    One whose jobs all fail for good at once is among the failures already.
    """
    found: defaultdict[str, list[Period]] = defaultdict(list)
    for period in by_task:
        if period.task and period.at > now - LATELY:
            found[period.task].append(period)
    sums = {
        task: (sum(one.tally.errors for one in some), sum(one.tally.ended for one in some))
        for task, some in found.items()
        if any(one.tally.retry for one in some)
    }
    return {task: (bad, ended) for task, (bad, ended) in sums.items() if ended >= FEWEST and bad >= SHARE * ended}


def _paused(facts: Facts) -> Iterator[Concern]:
    for row in facts.serials:
        if row.paused_since is not None:
            what = f"Serial key {_apart(row.name)} is paused; {_jobs(BoundedCount(row.waiting))} waiting"
            todo = f"{RESUME} {shlex.quote(row.name)}"
            yield Concern(what=what, of={"serial": row.name, "state": WAITING}, todo=todo, is_bad=False)
    waiting = {row.name: row.waiting for row in facts.tasks}
    for name in facts.pauses.tasks:
        what = f"Task {_apart(name)} is paused; {_jobs(waiting.get(name, BoundedCount()))} waiting"
        of = {"task": name, "state": WAITING}
        yield Concern(what=what, of=of, todo=f"{RESUME} --task {shlex.quote(name)}", is_bad=False)
    for name in facts.pauses.queues:
        todo = f"stowhand queues resume {shlex.quote(name)}"
        yield Concern(
            what=f"Queue {_apart(name)} is paused", of={"queue": name, "state": WAITING}, todo=todo, is_bad=False
        )


def _held(facts: Facts) -> Iterator[Concern]:
    rows = {row.held_by: row for row in facts.serials if row.due and row.paused_since is None}
    for job in facts.holders:
        if (row := rows.get(job.id)) is not None:
            behind = f"{_jobs(BoundedCount(row.due))} due behind it"
            what = f"Serial key {_apart(row.name)} is held by job {job.id} of {_apart(job.task)}; {behind}; it started"
            todo = f"If it is stuck: stowhand jobs cancel {job.id}"
            yield Concern(what=what, since=job.started_at, page="job", of={"id": job.id}, todo=todo, is_bad=False)


def _orphaned(facts: Facts) -> Iterator[Concern]:
    for row in facts.tasks:
        if row.is_unserved and row.paused_since is None:
            what = f"No worker has the task {_apart(row.name)}, of which {_jobs(row.due)} due"
            todo = "Start a worker that has it, or correct its name. Workers over HTTP are not known here."
            yield Concern(what=what, of={"task": row.name, "state": WAITING}, todo=todo)


def _erring(facts: Facts) -> Iterator[Concern]:
    """With many attempts left, none of its jobs has failed for good for hours: here it shows first."""
    found = erring(facts.by_task, facts.now)
    for task, (bad, ended) in sorted(found.items(), key=lambda one: (-one[1][0], one[0])):
        since = _began(period for period in facts.by_task if period.task == task)
        before = " before" if since < facts.now - NEW + timedelta(minutes=2) else ""
        span = f"{LATELY.total_seconds() / 60:.0f} minutes"
        yield Concern(
            what=f"{_apart(task)}: {bad:,} of {ended:,} attempts of the last {span} failed, the first{before}",
            since=since,
            of={"task": task, "state": "errored"},
            todo=f"Until that is mended: {PAUSE} --task {shlex.quote(task)}",
        )


def _began(periods: Iterable[Period]) -> datetime:
    """The first minute of those in which most attempts failed, without one between in which most did not."""
    began = None
    for period in sorted(periods, key=lambda period: period.at, reverse=True):
        is_well = period.tally.errors < SHARE * period.tally.ended
        if is_well and began is not None:
            break
        began = began if is_well or not period.tally.errors else period.at
    assert began is not None  # most of those of the last minutes failed
    return began


def _failing(facts: Facts) -> Iterator[Concern]:
    recent = [one for one in facts.failures if one.latest_at > facts.now - NEW]
    for one in sorted(recent, key=lambda one: one.since, reverse=True):
        how = BY_HAND if one.error_class == BY_HAND else f"with {one.error_class or 'an error'}"
        jobs = f"{one.jobs:,} {'job' if one.jobs == 1 else 'jobs'} failed {how}"
        what = f"{_apart(one.task)}: {jobs}, the first{' before' if one.is_cut else ''}"
        of = {"task": one.task, "state": "failed"}
        yield Concern(what=what, since=one.since, of=of, todo="Mend the cause, then retry them.")


def _blocked(facts: Facts) -> Iterator[Concern]:
    for row in facts.workers:
        if row.state == "blocked":
            what = f"A handler blocks the event loop of worker {row.card.name}; its other jobs stand still"
            yield Concern(what=what, page="workers", todo="The worker's log names the task and the line.")


def _hung(facts: Facts) -> Iterator[Concern]:
    for row in facts.workers:
        if row.alive and (number := row.card.abandoned_threads):
            threads = "1 thread has" if number == 1 else f"{number} threads have"
            what = f"{threads} outlived their attempts in worker {row.card.name}, and cannot be stopped"
            todo = f"With {row.card.concurrency} it claims nothing more. Give what the tasks call timeouts of its own."
            yield Concern(what=what, page="workers", todo=todo, is_bad=number >= row.card.concurrency)


def _lost(facts: Facts) -> Iterator[Concern]:
    for row in facts.workers:
        if not row.alive:
            what = f"Worker {row.card.name} on {row.card.host} was lost"
            yield Concern(what=what, page="workers", todo="Its jobs run elsewhere once leases end.", is_bad=False)


def _died(facts: Facts) -> Iterator[Concern]:
    """Jobs whose worker died under them."""
    if number := sum(period.tally.resets for period in facts.lately):
        of_task: Counter[str] = Counter()
        for period in facts.by_task:
            of_task[period.task or ""] += period.tally.resets
        ((most, _),) = of_task.most_common(1) or (("", 0),)
        what = f"{number:,} {'attempt' if number == 1 else 'attempts'} ended with a dead worker within the last hour"
        todo = "Most of this task. After two such deaths a job is a suspect: it runs apart from other jobs."
        yield Concern(what=what, of={"task": most}, todo=todo)


def _few(found: Iterable[Concern], others: str) -> Iterator[Concern]:
    """The first of one kind; one more leads to the others."""
    every = list(found)
    yield from every[:EACH]
    if len(every) > EACH:
        yield Concern(what=f"and {len(every) - EACH:,} more like these", page=others, is_bad=every[0].is_bad)


def _jobs(amount: BoundedCount) -> str:
    return f"{amount.words} {'job is' if amount.number == 1 else 'jobs are'}"


def _apart(name: str) -> str:
    return f"\u2068{name}\u2069"
