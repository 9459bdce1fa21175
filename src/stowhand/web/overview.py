"""The first page: how many jobs there are, how fast they go, and what needs somebody's attention."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from stowhand.errors import suggest
from stowhand.jobs.job import State
from stowhand.jobs.moments import say_span
from stowhand.jobs.tries import BY_HAND
from stowhand.protocols.figures import Amount, Pauses
from stowhand.protocols.operating import QueueRow, TaskRow, WorkerRow
from stowhand.protocols.queue_store import Failures
from stowhand.protocols.throughput import Period, total
from stowhand.web import charts
from stowhand.web.asked import Asked, Malformed, View
from stowhand.web.reading import Reading

SPANS = {"1h": (3600, 60), "1d": (86_400, 900), "7d": (7 * 86_400, 7200), "90d": (90 * 86_400, 86_400)}
"""Seconds of the charts, and of one of their columns."""
LATELY = timedelta(minutes=5)
"""Of which the rate is."""
NEW = timedelta(hours=1)
"""How long a failure is news."""
EACH = 3
"""Lines of one kind; one more leads to the others."""
RESUME = "stowhand queues resume"


class Line(msgspec.Struct, frozen=True):
    """Something that needs attention: what it is, where it is seen, what to do."""

    what: str
    href: str
    todo: str = ""
    is_bad: bool = True


async def show(asked: Asked, reading: Reading) -> View:
    """Counts, charts, and what needs attention."""
    span = asked.first("span") or "1h"
    if span not in SPANS:
        raise Malformed(f"span: {span!r} is none{suggest(span, SPANS)}")
    now, amounts, oldest, tasks, workers = await asyncio.gather(
        reading.now(), reading.amounts(), reading.oldest_due(), reading.tasks(), reading.workers()
    )
    queues, pauses, failures, versions = await asyncio.gather(
        reading.queues(), reading.pauses(), reading.failures(asked.who), reading.app_versions()
    )
    drawn, lately = await _drawn(reading, now, span, [charts.Mark(one.since, one.version) for one in versions or ()])
    tasks, reset = tasks or (), await _reset(reading, now, lately)
    lines = [
        *_few(_paused(asked, queues or (), tasks, pauses or Pauses()), asked.href("/queues")),
        *_few(_orphaned(asked, tasks), asked.href("/tasks")),
        *_few(_failing(asked, failures or (), now), asked.href("/failures")),
        *_few(_lost(asked, workers or ()), asked.href("/workers")),
        *_died(asked, reset),
    ]
    alive = [row for row in workers or () if row.alive]
    values = {
        "page": "overview",
        "amounts": amounts and {state: amounts[state] for state in State},
        "oldest": oldest,
        "lines": lines,
        "charts": drawn,
        "spans": [(one, asked.href("/", span=one)) for one in SPANS],
        "span": span,
        "workers": None if workers is None else len(alive),
        "slots": sum(row.card.concurrency for row in alive),
        "outlook": _outlook(tasks, lately, now),
        "is_new": amounts is not None and not any(amount.number for amount in amounts.values()),
    }
    return View(template="lists.html", title="Overview", values=values)


async def _drawn(
    reading: Reading, now: datetime, span: str, marks: charts.Marks
) -> tuple[list[object], Sequence[Period]]:
    """The charts; and what was counted in the last hour, by the minute."""
    length, step = SPANS[span]
    ends = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    # Columns begin at the same moments whenever they are drawn: two viewers share one answer, and nothing wobbles.
    since = datetime.fromtimestamp((ends.timestamp() - length) // step * step, now.tzinfo)
    lately = await reading.throughput(ends - NEW, ends, by_task=False) or ()
    found = lately if span == "1h" else await reading.throughput(since, ends, step, by_task=False)
    if not found:
        return [], lately
    slots = charts.slots_of(found, since, ends, step)
    kinds = (charts.throughput, charts.waits, charts.runs)
    return [draw(f"chart-{draw.__name__}", slots, marks) for draw in kinds], lately


async def _reset(reading: Reading, now: datetime, lately: Sequence[Period]) -> Sequence[Period]:
    """What was reset, by task. Who asks seldom has any."""
    if not any(period.tally.resets for period in lately):
        return ()
    return [period for period in await reading.throughput(now - NEW, now) or () if period.tally.resets]


def _outlook(tasks: Sequence[TaskRow], lately: Sequence[Period], now: datetime) -> str:
    """When nothing is due any more, if things go on as in the last minutes."""
    due = sum((row.due for row in tasks if row.paused_since is None and row.able), Amount())
    if not due.number:
        return f"Nothing is due{' that a worker may take' * any(row.due.number for row in tasks)}."
    done = total(period for period in lately if period.at > now - LATELY).finished
    jobs = f"{_jobs(due)} due"
    if not done:
        return f"{jobs}, and none has ended in the last {say_span(LATELY.total_seconds())}."
    return f"{jobs}; at this rate that is {say_span(max(due.number * LATELY.total_seconds() / done, 1))} of work."


# -- what needs attention --------------------------------------------------------------------------


def _paused(asked: Asked, queues: Sequence[QueueRow], tasks: Sequence[TaskRow], pauses: Pauses) -> Iterator[Line]:
    for row in queues:
        if row.paused_since is not None:
            what = f"Queue {_apart(row.name)} is paused; {_jobs(Amount(row.waiting))} waiting in it"
            yield Line(what, asked.href("/jobs", queue=row.name), f"{RESUME} {shlex.quote(row.name)}", is_bad=False)
    waiting = {row.name: row.waiting for row in tasks}
    for name in pauses.tasks:
        what = f"Task {_apart(name)} is paused; {_jobs(waiting.get(name, Amount()))} waiting"
        yield Line(what, asked.href("/jobs", task=name), f"{RESUME} --task {shlex.quote(name)}", is_bad=False)
    if pauses.unqueued is not None:
        yield Line("Jobs without a queue are paused", asked.href("/queues"), f"{RESUME} --without-queue", is_bad=False)


def _orphaned(asked: Asked, tasks: Sequence[TaskRow]) -> Iterator[Line]:
    for row in tasks:
        if row.is_orphaned and row.paused_since is None:
            what = f"No worker has the task {_apart(row.name)}, of which {_jobs(row.due)} due"
            yield Line(what, asked.href("/jobs", task=row.name), "Start a worker that has it, or correct its name.")


def _failing(asked: Asked, failures: Sequence[Failures], now: datetime) -> Iterator[Line]:
    recent = [one for one in failures if one.latest_at > now - NEW]
    for one in sorted(recent, key=lambda one: one.since, reverse=True):
        how = BY_HAND if one.error_class == BY_HAND else f"with {one.error_class or 'an error'}"
        jobs = f"{one.jobs:,} {'job' if one.jobs == 1 else 'jobs'} failed {how}"
        since = f"{say_span(max((now - one.since).total_seconds(), 1))} ago{' or earlier' * one.is_cut}"
        href = asked.href("/jobs", task=one.task, state="failed")
        yield Line(f"{_apart(one.task)}: {jobs}, the first {since}", href, "Mend the cause, then retry them.")


def _lost(asked: Asked, workers: Sequence[WorkerRow]) -> Iterator[Line]:
    for row in workers:
        if not row.alive:
            what = f"Worker {row.card.name} on {row.card.host} was lost"
            yield Line(what, asked.href("/workers"), "Its jobs run elsewhere once leases end.", is_bad=False)


def _died(asked: Asked, reset: Sequence[Period]) -> Iterator[Line]:
    if reset:
        number, most = total(reset).resets, max(reset, key=lambda period: period.tally.resets)
        what = f"{number:,} {'attempt' if number == 1 else 'attempts'} ended with a dead worker within the last hour"
        todo = "Most of this task. A job whose worker died twice under it runs alone, in quarantine."
        yield Line(what, asked.href("/jobs", task=most.task or ""), todo)


def _few(lines: Iterable[Line], others: str) -> Iterator[Line]:
    """The first of one kind; one more line leads to the others."""
    found = list(lines)
    yield from found[:EACH]
    if len(found) > EACH:
        yield Line(f"and {len(found) - EACH:,} more like these", others, is_bad=found[0].is_bad)


def _jobs(amount: Amount) -> str:
    return f"{amount.words} {'job is' if amount.number == 1 else 'jobs are'}"


def _apart(name: str) -> str:
    """Letters from right to left in it do not turn what stands behind it: ``שלח: 5 jobs``."""
    return f"\u2068{name}\u2069"
