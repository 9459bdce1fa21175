"""Pages with lists: queues and serial keys, tasks, limits of tasks, groups of failed jobs, workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from stowhand.jobs.job import State
from stowhand.protocols.operator import BacklogRow
from stowhand.protocols.options import parse_integer
from stowhand.protocols.throughput import OutcomeCounts, Period, Slot, time_slots, total
from stowhand.web.reader import Reader
from stowhand.web.request import Request, View, read

T = TypeVar("T")
ROWS_PER_PAGE = 20
TASK_PERIOD = timedelta(hours=1)
"""Period in which the attempts of tasks are counted."""
CHART_STEP_SECONDS = 180
"""Width of a column of a task's chart."""


class TaskLine(msgspec.Struct, frozen=True):
    """A task: its jobs by state, and its ended attempts in the last hour."""

    row: BacklogRow
    tally: OutcomeCounts
    slots: Sequence[Slot]

    @property
    def per_minute(self) -> float:
        """Finished jobs per minute."""
        return self.tally.finished / (TASK_PERIOD.total_seconds() / 60)

    @property
    def failed_share(self) -> float:
        """Share of attempts that failed, permanently or to be retried; 0 to 1."""
        return self.tally.errors / self.tally.ended if self.tally.ended else 0.0


SORT_KEYS: dict[str, Callable[[TaskLine], Any]] = {
    "trouble": lambda line: (
        not line.row.is_unserved,
        line.row.paused_since is None,
        -line.failed_share,
        line.row.name,
    ),
    "name": lambda line: line.row.name,
    "rate": lambda line: (-line.per_minute, line.row.name),
    "failing": lambda line: (-line.failed_share, -line.row.failed.number, line.row.name),
}


async def queues(request: Request, reader: Reader) -> View:
    """List queues with their depth and workers, and serial keys with their depth, holder and pause."""
    queue_rows = _sorted(await reader.queues(), lambda row: (row.paused_since is None, not row.is_unserved, row.name))
    rows = _sorted(await reader.serials(), lambda row: (row.paused_since is None, not row.failed, row.name))
    return _view(request, "serials", rows, queues=queue_rows)


async def tasks(request: Request, reader: Reader) -> View:
    """List tasks with their throughput in the last hour and their workers."""
    order = request.choice("sort", SORT_KEYS)
    rows = await reader.tasks()
    lines = _sorted(None if rows is None else await _task_lines(reader, rows), SORT_KEYS[order])
    return _view(request, "tasks", lines, order=order, orders=SORT_KEYS)


async def limits(request: Request, reader: Reader) -> View:
    """List the limits of tasks with the jobs that use them and those that wait, the most due jobs first."""
    rows = _sorted(await reader.limits(), lambda row: (-row.due.number, row.name))
    return _view(request, "limits", rows)


async def failures(request: Request, reader: Reader) -> View:
    """List groups of failed jobs by task and error class."""
    amounts = await reader.amounts() or {}
    return _view(request, "failures", await reader.failures(request.visitor), errored=amounts.get(State.ERRORED))


async def workers(request: Request, reader: Reader) -> View:
    """List workers and their jobs, including workers lost in the last day."""
    held = {jobs.worker: jobs for jobs in await reader.held(request.visitor) or ()}
    rows = _sorted(await reader.workers(), lambda row: (row.is_alive, row.state == "alive", row.description.name))
    return _view(request, "workers", rows, held=held)


def _sorted(rows: Sequence[T] | None, key: Callable[[T], Any]) -> Sequence[T] | None:
    return None if rows is None else sorted(rows, key=key)


def _view(request: Request, page: str, rows: Sequence[Any] | None, **more: Any) -> View:
    """Return one page of the rows, with links to the other pages. ``None``: the store does not support the list."""
    requested_start = max(read("from", request.query_value("from"), parse_integer) or 0, 0)
    count = len(rows or ())
    # If the list has become shorter, show its last page.
    start = min(requested_start, max(count - 1, 0) // ROWS_PER_PAGE * ROWS_PER_PAGE)
    before = request.same_page_href(**{"from": max(start - ROWS_PER_PAGE, 0) or ""}) if start else None
    after = request.same_page_href(**{"from": start + ROWS_PER_PAGE}) if start + ROWS_PER_PAGE < count else None
    part = None if rows is None else rows[start : start + ROWS_PER_PAGE]
    values = {"page": page, "rows": part, "first": start + 1, "last": min(start + ROWS_PER_PAGE, count)}
    values |= {"count": count, "before": before, "after": after}
    return View(template="lists.html", title="Queues" if page == "serials" else page.capitalize(), values=values | more)


async def _task_lines(reader: Reader, rows: Sequence[BacklogRow]) -> list[TaskLine]:
    until = (await reader.now()).replace(second=0, microsecond=0) + timedelta(minutes=1)
    since = until - TASK_PERIOD
    periods: defaultdict[str | None, list[Period]] = defaultdict(list)
    for period in await reader.throughput(since, until, CHART_STEP_SECONDS) or ():
        periods[period.task].append(period)
    return [
        TaskLine(row, total(periods[row.name]), time_slots(periods[row.name], since, until, CHART_STEP_SECONDS))
        for row in rows
    ]
