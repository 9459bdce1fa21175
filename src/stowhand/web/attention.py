"""What needs a user's attention, and how long the due jobs will take, from the state of a store. Pure functions.

A text isolates names of users, so that right-to-left letters do not reorder the words after them: ``שלח: 5 jobs``.
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

RECENT_FAILURE_PERIOD = timedelta(hours=1)
"""Time for which a failure is recent."""
ATTEMPT_PERIOD = timedelta(minutes=10)
"""In which the attempts of a task are counted; and for which a job may hold its serial key."""
MIN_ATTEMPTS, MIN_FAILED_SHARE = 5, 0.5
"""Attempts of that time, and the share of them that failed, from which on a task is named."""
RATE_PERIOD = timedelta(minutes=5)
"""Of which the rate is."""
MAX_ITEMS_PER_KIND = 3
"""Concerns of one kind; one more leads to the others."""
WAITING_STATES = [State.QUEUED.value, State.ERRORED.value]
"""The states of jobs that wait, for links to them."""
PAUSE_COMMAND, RESUME_COMMAND = "stowhand serials pause", "stowhand serials resume"


class AttentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention: a text, a link, and advice."""

    text: str
    """A sentence, which ends with ``since`` where that is given: ``mail: 3 jobs failed by hand, the first …``."""
    first_at: datetime | None = None
    page: str = "jobs"
    """``job``, or the list of ``jobs``, ``queues``, ``tasks``, ``failures``, ``workers``."""
    query: Mapping[str, object] = {}
    """What of the list: ``task``, ``serial`` and ``state`` of jobs; the ``id`` of a job."""
    advice: str = ""
    is_bad: bool = True


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store at one time of its clock."""

    now: datetime
    tasks: Sequence[BacklogRow] = ()
    serials: Sequence[SerialRow] = ()
    """The paused ones; all, where there are ``holders``."""
    pauses: Pauses = Pauses()
    failures: Sequence[Failures] = ()
    workers: Sequence[WorkerRow] = ()
    holders: Sequence[Job] = ()
    """Of ``holders_of``."""
    last_hour: Sequence[Period] = ()
    """The last hour, by the minute, all tasks in one."""
    by_task: Sequence[Period] = ()
    """The same by task, where ``asks_by_task``; else empty."""


def attention_items(facts: StoreState) -> list[AttentionItem]:
    """Return all items, by kind."""
    kinds: tuple[tuple[Callable[[StoreState], Iterable[AttentionItem]], str], ...] = (
        (_paused, "queues"),
        (_long_held, "queues"),
        (_orphaned, "tasks"),
        (_failing_attempts, "tasks"),
        (_recent_failures, "failures"),
        (_blocked, "workers"),
        (_abandoned_threads, "workers"),
        (_lost, "workers"),
        (_dead_workers, "tasks"),
    )
    return [one for kind, others in kinds for one in _limited(kind(facts), others)]


def outlook(facts: StoreState) -> str:
    """When nothing is due any more, if things go on as in the last minutes.

    Only jobs that may run are counted. A task's jobs may have a serial key that is paused, and a key's jobs may be of a
    task that is: where both are, the most that may run is told.
    """
    all_due = sum((row.due for row in facts.tasks), BoundedCount())
    due = sum((row.due for row in facts.tasks if row.paused_since is None and row.serving), BoundedCount())
    stuck = {job.serial for job in facts.holders}
    blocked = sum(row.due for row in facts.serials if row.paused_since is not None or row.name in stuck)
    min_number, max_number = max(due.number - blocked, 0), min(due.number, max(all_due.number - blocked, 0))
    if not max_number:
        return "No due job can run now." if all_due.number else "Nothing is due."
    due = msgspec.structs.replace(due, number=max_number)
    text = f"{_jobs(due)} due" if min_number == max_number else f"At most {_jobs(due)} due that may run now"
    first_at = (facts.now - RATE_PERIOD).replace(
        second=0, microsecond=0
    )  # of whole minutes, and of this one as far as it goes
    done = total(period for period in facts.last_hour if period.start >= first_at).finished
    if not done:
        return f"{text}, and none finished in the last {format_span(RATE_PERIOD.total_seconds())}."
    remaining = format_span(max(due.number * (facts.now - first_at).total_seconds() / done, 1))
    return f"{text}; at this rate that is {remaining} of work."


def long_holders(held: Sequence[HeldJobs], now: datetime) -> list[Job]:
    """Jobs that have held their serial key for long; the longest first."""
    found = [
        (job.started_at, job.id, job)
        for one in held
        for job in one.longest
        if job.serial is not None and job.started_at is not None and job.started_at < now - ATTEMPT_PERIOD
    ]
    return [job for _, _, job in sorted(found, key=lambda one: one[:2])]


def needs_figures_by_task(last_hour: Sequence[Period], now: datetime) -> bool:
    """Whether the figures by task, a costly question, may show a task that is ``erring`` or that lost workers."""
    errors = sum(period.tally.errors for period in last_hour if period.start > now - ATTEMPT_PERIOD)
    return errors >= MIN_ATTEMPTS or any(period.tally.resets for period in last_hour)


def failing_tasks(by_task: Sequence[Period], now: datetime) -> dict[str, tuple[int, int]]:
    """Tasks of which most attempts failed lately, and are tried again: how many failed, of how many.

    One whose jobs all fail for good at once is among the failures already.
    """
    found: defaultdict[str, list[Period]] = defaultdict(list)
    for period in by_task:
        if period.task and period.start > now - ATTEMPT_PERIOD:
            found[period.task].append(period)
    sums = {
        task: (sum(one.tally.errors for one in some), sum(one.tally.ended for one in some))
        for task, some in found.items()
        if any(one.tally.retry for one in some)
    }
    return {
        task: (failed, ended)
        for task, (failed, ended) in sums.items()
        if ended >= MIN_ATTEMPTS and failed >= MIN_FAILED_SHARE * ended
    }


def _paused(facts: StoreState) -> Iterator[AttentionItem]:
    for row in facts.serials:
        if row.paused_since is not None:
            text = f"Serial key {_isolated(row.name)} is paused; {_jobs(BoundedCount(row.waiting))} waiting"
            advice = f"{RESUME_COMMAND} {shlex.quote(row.name)}"
            yield AttentionItem(
                text=text, query={"serial": row.name, "state": WAITING_STATES}, advice=advice, is_bad=False
            )
    waiting = {row.name: row.waiting for row in facts.tasks}
    for name in facts.pauses.tasks:
        text = f"Task {_isolated(name)} is paused; {_jobs(waiting.get(name, BoundedCount()))} waiting"
        query = {"task": name, "state": WAITING_STATES}
        yield AttentionItem(text=text, query=query, advice=f"{RESUME_COMMAND} --task {shlex.quote(name)}", is_bad=False)
    for name in facts.pauses.queues:
        advice = f"stowhand queues resume {shlex.quote(name)}"
        yield AttentionItem(
            text=f"Queue {_isolated(name)} is paused",
            query={"queue": name, "state": WAITING_STATES},
            advice=advice,
            is_bad=False,
        )


def _long_held(facts: StoreState) -> Iterator[AttentionItem]:
    rows = {row.held_by: row for row in facts.serials if row.due and row.paused_since is None}
    for job in facts.holders:
        if (row := rows.get(job.id)) is not None:
            behind = f"{_jobs(BoundedCount(row.due))} due behind it"
            holder = f"job {job.id} of {_isolated(job.task)}"
            text = f"Serial key {_isolated(row.name)} is held by {holder}; {behind}; it started"
            advice = f"If it is stuck: stowhand jobs cancel {job.id}"
            yield AttentionItem(
                text=text, first_at=job.started_at, page="job", query={"id": job.id}, advice=advice, is_bad=False
            )


def _orphaned(facts: StoreState) -> Iterator[AttentionItem]:
    for row in facts.tasks:
        if row.is_unserved and row.paused_since is None:
            text = f"No worker has the task {_isolated(row.name)}, of which {_jobs(row.due)} due"
            advice = "Start a worker that has it, or correct its name. Workers over HTTP are not known here."
            yield AttentionItem(text=text, query={"task": row.name, "state": WAITING_STATES}, advice=advice)


def _failing_attempts(facts: StoreState) -> Iterator[AttentionItem]:
    """With many attempts left, none of its jobs has failed for good for hours: here it shows first."""
    found = failing_tasks(facts.by_task, facts.now)
    for task, (failed, ended) in sorted(found.items(), key=lambda one: (-one[1][0], one[0])):
        first_at = _failing_since(period for period in facts.by_task if period.task == task)
        before = " before" if first_at < facts.now - RECENT_FAILURE_PERIOD + timedelta(minutes=2) else ""
        span = f"{ATTEMPT_PERIOD.total_seconds() / 60:.0f} minutes"
        yield AttentionItem(
            text=f"{_isolated(task)}: {failed:,} of {ended:,} attempts of the last {span} failed, the first{before}",
            first_at=first_at,
            query={"task": task, "state": "errored"},
            advice=f"Until that is fixed: {PAUSE_COMMAND} --task {shlex.quote(task)}",
        )


def _failing_since(periods: Iterable[Period]) -> datetime:
    """The first minute of those in which most attempts failed, without one between in which most did not."""
    began = None
    for period in sorted(periods, key=lambda period: period.start, reverse=True):
        is_well = period.tally.errors < MIN_FAILED_SHARE * period.tally.ended
        if is_well and began is not None:
            break
        began = began if is_well or not period.tally.errors else period.start
    assert began is not None  # most of those of the last minutes failed
    return began


def _recent_failures(facts: StoreState) -> Iterator[AttentionItem]:
    recent = [one for one in facts.failures if one.latest_at > facts.now - RECENT_FAILURE_PERIOD]
    for one in sorted(recent, key=lambda one: one.since, reverse=True):
        how = BY_HAND if one.error_class == BY_HAND else f"with {one.error_class or 'an error'}"
        jobs = f"{one.jobs:,} {'job' if one.jobs == 1 else 'jobs'} failed {how}"
        text = f"{_isolated(one.task)}: {jobs}, the first{' before' if one.is_cut else ''}"
        query = {"task": one.task, "state": "failed"}
        yield AttentionItem(text=text, first_at=one.since, query=query, advice="Fix the cause, then retry them.")


def _blocked(facts: StoreState) -> Iterator[AttentionItem]:
    for row in facts.workers:
        if row.state == "blocked":
            text = f"A handler blocks the event loop of worker {row.description.name}; its other jobs wait"
            yield AttentionItem(text=text, page="workers", advice="The worker's log names the task and the line.")


def _abandoned_threads(facts: StoreState) -> Iterator[AttentionItem]:
    for row in facts.workers:
        if row.is_alive and (number := row.description.abandoned_threads):
            threads = "1 thread has" if number == 1 else f"{number} threads have"
            text = f"{threads} outlived their attempts in worker {row.description.name}, and cannot be stopped"
            advice = (
                f"With {row.description.concurrency} it claims nothing more. Set timeouts in the calls of its tasks."
            )
            yield AttentionItem(text=text, page="workers", advice=advice, is_bad=number >= row.description.concurrency)


def _lost(facts: StoreState) -> Iterator[AttentionItem]:
    for row in facts.workers:
        if not row.is_alive:
            text = f"Worker {row.description.name} on {row.description.host} was lost"
            yield AttentionItem(
                text=text, page="workers", advice="Its jobs run elsewhere once leases end.", is_bad=False
            )


def _dead_workers(facts: StoreState) -> Iterator[AttentionItem]:
    """Jobs whose worker died under them."""
    if number := sum(period.tally.resets for period in facts.last_hour):
        of_task: Counter[str] = Counter()
        for period in facts.by_task:
            of_task[period.task or ""] += period.tally.resets
        ((most, _),) = of_task.most_common(1) or (("", 0),)
        text = f"{number:,} {'attempt' if number == 1 else 'attempts'} ended with a dead worker within the last hour"
        advice = "Most of this task. After two such deaths a job is a suspect: it runs apart from other jobs."
        yield AttentionItem(text=text, query={"task": most}, advice=advice)


def _limited(found: Iterable[AttentionItem], others: str) -> Iterator[AttentionItem]:
    """The first of one kind; one more leads to the others."""
    every = list(found)
    yield from every[:MAX_ITEMS_PER_KIND]
    if len(every) > MAX_ITEMS_PER_KIND:
        yield AttentionItem(
            text=f"and {len(every) - MAX_ITEMS_PER_KIND:,} more like these", page=others, is_bad=every[0].is_bad
        )


def _jobs(amount: BoundedCount) -> str:
    return f"{amount.text} {'job is' if amount.number == 1 else 'jobs are'}"


def _isolated(name: str) -> str:
    return f"\u2068{name}\u2069"
