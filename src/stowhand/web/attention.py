"""Attention items, and an estimate for the due jobs, computed from the state of a store.

Names that users chose are enclosed in Unicode isolates. Otherwise right-to-left letters such as ``שלח: 5 jobs`` would
reorder the words after them.
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
"""Maximum age of a recent failure."""
ATTEMPT_PERIOD = timedelta(minutes=10)
"""Period in which the attempts of a task are counted, and for which a job may hold its serial key."""
MIN_ATTEMPTS = 5
"""Minimum number of attempts in ATTEMPT_PERIOD to report a task."""
MIN_FAILED_SHARE = 0.5
"""Minimum share of failed attempts to report a task."""
RATE_PERIOD = timedelta(minutes=5)
"""Period over which the rate is measured."""
MAX_ITEMS_PER_KIND = 3
"""Maximum number of items of one kind; a further item links to the others."""
WAITING_STATES = [State.QUEUED.value, State.ERRORED.value]
"""States of waiting jobs, for links to them."""
PAUSE_COMMAND = "stowhand serials pause"
RESUME_COMMAND = "stowhand serials resume"


class AttentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that needs attention, with a link and advice."""

    text: str
    """A sentence. The page appends ``first_at`` to it, if set: ``mail: 3 jobs failed by hand, the first`` 10:15."""
    first_at: datetime | None = None
    page: str = "jobs"
    """``job``, or the list of ``jobs``, ``queues``, ``tasks``, ``failures``, ``workers``."""
    query: Mapping[str, object] = {}
    """Filters of the list: ``task``, ``serial`` and ``state`` of jobs; the ``id`` of a job."""
    advice: str = ""
    is_bad: bool = True
    """Whether jobs fail or cannot run; otherwise the item is a notice."""


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store at one time of its clock."""

    now: datetime
    tasks: Sequence[BacklogRow] = ()
    serials: Sequence[SerialRow] = ()
    """Paused serial keys; all serial keys if there are ``holders``."""
    pauses: Pauses = Pauses()
    failures: Sequence[Failures] = ()
    workers: Sequence[WorkerRow] = ()
    holders: Sequence[Job] = ()
    """Running jobs that have held their serial key for long, from ``long_holders``."""
    last_hour: Sequence[Period] = ()
    """The last hour by the minute, all tasks together."""
    by_task: Sequence[Period] = ()
    """The last hour by task, if ``needs_figures_by_task``; otherwise empty."""


def attention_items(state: StoreState) -> list[AttentionItem]:
    """Return the items of all kinds, grouped by kind."""
    kinds: tuple[tuple[Callable[[StoreState], Iterable[AttentionItem]], str], ...] = (
        (_paused, "queues"),
        (_long_held, "queues"),
        (_orphaned, "tasks"),
        (_failing_attempts, "tasks"),
        (_recent_failures, "failures"),
        (_blocked, "workers"),
        (_abandoned_threads, "workers"),
        (_lost, "workers"),
        (_lost_attempts, "tasks"),
    )
    return [item for find_items, list_page in kinds for item in _limited(find_items(state), list_page)]


def outlook(state: StoreState) -> str:
    """Estimate how long the due jobs take at the rate of the last minutes.

    Only jobs that may run are counted. Jobs may be paused by task, by serial key, or by both. The number of jobs in
    both groups is not known, so the text may give a maximum.
    """
    all_due = sum((row.due for row in state.tasks), BoundedCount())
    due = sum((row.due for row in state.tasks if row.paused_since is None and row.serving), BoundedCount())
    long_held = {job.serial for job in state.holders}
    blocked = sum(row.due for row in state.serials if row.paused_since is not None or row.name in long_held)
    min_number, max_number = max(due.number - blocked, 0), min(due.number, max(all_due.number - blocked, 0))
    if not max_number:
        return "No due job can run now." if all_due.number else "Nothing is due."
    due = msgspec.structs.replace(due, number=max_number)
    text = f"{_jobs(due)} due" if min_number == max_number else f"At most {_jobs(due)} due that may run now"
    # The rate covers whole minutes and the elapsed part of the current one.
    since = (state.now - RATE_PERIOD).replace(second=0, microsecond=0)
    finished = total(period for period in state.last_hour if period.start >= since).finished
    if not finished:
        return f"{text}, and none finished in the last {format_span(RATE_PERIOD.total_seconds())}."
    remaining = format_span(max(due.number * (state.now - since).total_seconds() / finished, 1))
    return f"{text}; at this rate that is {remaining} of work."


def long_holders(held: Sequence[HeldJobs], now: datetime) -> list[Job]:
    """Return the jobs that have held their serial key for long, the longest first."""
    entries = [
        (job.started_at, job.id, job)
        for worker_jobs in held
        for job in worker_jobs.longest
        if job.serial is not None and job.started_at is not None and job.started_at < now - ATTEMPT_PERIOD
    ]
    return [job for _, _, job in sorted(entries, key=lambda entry: entry[:2])]


def needs_figures_by_task(last_hour: Sequence[Period], now: datetime) -> bool:
    """Return whether figures by task are needed to report failing tasks or lost workers. Their query is costly."""
    errors = sum(period.tally.errors for period in last_hour if period.start > now - ATTEMPT_PERIOD)
    return errors >= MIN_ATTEMPTS or any(period.tally.resets for period in last_hour)


def failing_tasks(by_task: Sequence[Period], now: datetime) -> dict[str, tuple[int, int]]:
    """Return the numbers of failed and of ended recent attempts, by task, for tasks whose attempts mostly fail.

    A task without retries is left out, because its jobs are listed among the failures.
    """
    periods_by_task: defaultdict[str, list[Period]] = defaultdict(list)
    for period in by_task:
        if period.task and period.start > now - ATTEMPT_PERIOD:
            periods_by_task[period.task].append(period)
    sums = {
        task: (sum(period.tally.errors for period in periods), sum(period.tally.ended for period in periods))
        for task, periods in periods_by_task.items()
        if any(period.tally.retry for period in periods)
    }
    return {
        task: (failed, ended)
        for task, (failed, ended) in sums.items()
        if ended >= MIN_ATTEMPTS and failed >= MIN_FAILED_SHARE * ended
    }


def _paused(state: StoreState) -> Iterator[AttentionItem]:
    for row in state.serials:
        if row.paused_since is not None:
            text = f"Serial key {_isolated(row.name)} is paused; {_jobs(BoundedCount(row.waiting))} waiting"
            advice = f"{RESUME_COMMAND} {shlex.quote(row.name)}"
            yield AttentionItem(
                text=text, query={"serial": row.name, "state": WAITING_STATES}, advice=advice, is_bad=False
            )
    waiting = {row.name: row.waiting for row in state.tasks}
    for name in state.pauses.tasks:
        text = f"Task {_isolated(name)} is paused; {_jobs(waiting.get(name, BoundedCount()))} waiting"
        query = {"task": name, "state": WAITING_STATES}
        yield AttentionItem(text=text, query=query, advice=f"{RESUME_COMMAND} --task {shlex.quote(name)}", is_bad=False)
    for name in state.pauses.queues:
        advice = f"stowhand queues resume {shlex.quote(name)}"
        yield AttentionItem(
            text=f"Queue {_isolated(name)} is paused",
            query={"queue": name, "state": WAITING_STATES},
            advice=advice,
            is_bad=False,
        )


def _long_held(state: StoreState) -> Iterator[AttentionItem]:
    rows = {row.held_by: row for row in state.serials if row.due and row.paused_since is None}
    for job in state.holders:
        if (row := rows.get(job.id)) is not None:
            behind = f"{_jobs(BoundedCount(row.due))} due behind it"
            holder = f"job {job.id} of {_isolated(job.task)}"
            text = f"Serial key {_isolated(row.name)} is held by {holder}; {behind}; it started"
            advice = f"If it is stuck: stowhand jobs cancel {job.id}"
            yield AttentionItem(
                text=text, first_at=job.started_at, page="job", query={"id": job.id}, advice=advice, is_bad=False
            )


def _orphaned(state: StoreState) -> Iterator[AttentionItem]:
    for row in state.tasks:
        if row.is_unserved and row.paused_since is None:
            text = f"No worker has the task {_isolated(row.name)}; {_jobs(row.due)} due"
            advice = "Start a worker that has it, or correct its name. This list lacks workers over HTTP."
            yield AttentionItem(text=text, query={"task": row.name, "state": WAITING_STATES}, advice=advice)


def _failing_attempts(state: StoreState) -> Iterator[AttentionItem]:
    """Report tasks whose attempts mostly fail, before their jobs use up their attempts, which may take hours."""
    tasks = failing_tasks(state.by_task, state.now)
    for task, (failed, ended) in sorted(tasks.items(), key=lambda item: (-item[1][0], item[0])):
        first_at = _failing_since(period for period in state.by_task if period.task == task)
        before = " before" if first_at < state.now - RECENT_FAILURE_PERIOD + timedelta(minutes=2) else ""
        span = f"{ATTEMPT_PERIOD.total_seconds() / 60:.0f} minutes"
        yield AttentionItem(
            text=f"{_isolated(task)}: {failed:,} of {ended:,} attempts of the last {span} failed, the first{before}",
            first_at=first_at,
            query={"task": task, "state": "errored"},
            advice=f"Until that is fixed: {PAUSE_COMMAND} --task {shlex.quote(task)}",
        )


def _failing_since(periods: Iterable[Period]) -> datetime:
    """Return the start of the latest run of minutes in which most attempts failed."""
    started_at = None
    for period in sorted(periods, key=lambda period: period.start, reverse=True):
        is_failing = period.tally.errors >= MIN_FAILED_SHARE * period.tally.ended
        if not is_failing and started_at is not None:
            break
        if is_failing and period.tally.errors:
            started_at = period.start
    assert started_at is not None  # Most attempts of the last minutes failed.
    return started_at


def _recent_failures(state: StoreState) -> Iterator[AttentionItem]:
    recent = [group for group in state.failures if group.latest_at > state.now - RECENT_FAILURE_PERIOD]
    for group in sorted(recent, key=lambda group: group.since, reverse=True):
        cause = BY_HAND if group.error_class == BY_HAND else f"with {group.error_class or 'an error'}"
        jobs = f"{group.jobs:,} {'job' if group.jobs == 1 else 'jobs'} failed {cause}"
        text = f"{_isolated(group.task)}: {jobs}, the first{' before' if group.is_cut else ''}"
        query = {"task": group.task, "state": "failed"}
        yield AttentionItem(text=text, first_at=group.since, query=query, advice="Fix the cause, then retry them.")


def _blocked(state: StoreState) -> Iterator[AttentionItem]:
    for row in state.workers:
        if row.state == "blocked":
            text = f"A handler blocks the event loop of worker {row.description.name}; its other jobs wait"
            yield AttentionItem(text=text, page="workers", advice="The worker's log names the task and the line.")


def _abandoned_threads(state: StoreState) -> Iterator[AttentionItem]:
    for row in state.workers:
        if row.is_alive and (number := row.description.abandoned_threads):
            threads = "1 abandoned thread" if number == 1 else f"{number} abandoned threads"
            text = f"{threads} in worker {row.description.name} cannot be stopped"
            advice = (
                f"With {row.description.concurrency} of them the worker claims nothing more. Set timeouts in the calls"
                " that its tasks make."
            )
            yield AttentionItem(text=text, page="workers", advice=advice, is_bad=number >= row.description.concurrency)


def _lost(state: StoreState) -> Iterator[AttentionItem]:
    for row in state.workers:
        if not row.is_alive:
            text = f"Worker {row.description.name} on {row.description.host} was lost"
            yield AttentionItem(
                text=text, page="workers", advice="Its jobs run elsewhere when their leases expire.", is_bad=False
            )


def _lost_attempts(state: StoreState) -> Iterator[AttentionItem]:
    """Report attempts whose worker was lost."""
    if number := sum(period.tally.resets for period in state.last_hour):
        resets_by_task: Counter[str] = Counter()
        for period in state.by_task:
            resets_by_task[period.task or ""] += period.tally.resets
        ((main_task, _),) = resets_by_task.most_common(1) or (("", 0),)
        attempts = "1 attempt" if number == 1 else f"{number:,} attempts"
        text = f"{attempts} lost their worker within the last hour, most of them of this task"
        advice = "After two lost workers a job is a suspect: it runs apart from other jobs."
        yield AttentionItem(text=text, query={"task": main_task}, advice=advice)


def _limited(items: Iterable[AttentionItem], list_page: str) -> Iterator[AttentionItem]:
    """Yield the first items of one kind, and one more that links to the page with the others."""
    all_items = list(items)
    yield from all_items[:MAX_ITEMS_PER_KIND]
    if len(all_items) > MAX_ITEMS_PER_KIND:
        yield AttentionItem(
            text=f"and {len(all_items) - MAX_ITEMS_PER_KIND:,} more like these",
            page=list_page,
            is_bad=all_items[0].is_bad,
        )


def _jobs(amount: BoundedCount) -> str:
    return f"{amount.text} {'job is' if amount.number == 1 else 'jobs are'}"


def _isolated(name: str) -> str:
    return f"\u2068{name}\u2069"
