"""Four lists, each with where it leads: queues and serial keys, tasks, groups of failed jobs, workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from stowhand.jobs.job import State
from stowhand.protocols.operator import BacklogRow
from stowhand.protocols.options import whole
from stowhand.protocols.throughput import OutcomeCounts, Period, Slot, slots_of, total
from stowhand.web.reader import Reader
from stowhand.web.request import Request, View, read

T = TypeVar("T")
PAGE = 20
"""Rows of one page."""
SPAN = timedelta(hours=1)
"""Of which tasks are counted."""
STEP = 180
"""Seconds of a column of a task's chart."""


class TaskLine(msgspec.Struct, frozen=True):
    """A task: what stands, and what ended in the last hour."""

    row: BacklogRow
    tally: OutcomeCounts
    slots: Sequence[Slot]

    @property
    def per_minute(self) -> float:
        """Jobs that were over."""
        return self.tally.finished / (SPAN.total_seconds() / 60)

    @property
    def failing(self) -> float:
        """The share of attempts that failed, for good or to be tried again; 0 to 1."""
        return self.tally.errors / self.tally.ended if self.tally.ended else 0.0


ORDERS: dict[str, Callable[[TaskLine], Any]] = {
    "trouble": lambda line: (not line.row.is_unserved, line.row.paused_since is None, -line.failing, line.row.name),
    "name": lambda line: line.row.name,
    "rate": lambda line: (-line.per_minute, line.row.name),
    "failing": lambda line: (-line.failing, -line.row.failed.number, line.row.name),
}


async def queues(request: Request, reader: Reader) -> View:
    """Depth and workers of each queue; and depth, holder and pause of each serial key."""
    classes = _sorted(await reader.queues(), lambda row: (row.paused_since is None, not row.is_unserved, row.name))
    rows = _sorted(await reader.serials(), lambda row: (row.paused_since is None, not row.failed, row.name))
    return _view(request, "serials", rows, queues=classes)


async def tasks(request: Request, reader: Reader) -> View:
    """What each task does in an hour, and who can run it."""
    order = request.choice("sort", ORDERS)
    rows = await reader.tasks()
    lines = _sorted(None if rows is None else await _lines(reader, rows), ORDERS[order])
    return _view(request, "tasks", lines, order=order, orders=ORDERS)


async def failures(request: Request, reader: Reader) -> View:
    """What fails, by task and class of error; since when."""
    amounts = await reader.amounts() or {}
    return _view(request, "failures", await reader.failures(request.who), errored=amounts.get(State.ERRORED))


async def workers(request: Request, reader: Reader) -> View:
    """Who works, and on what; those that were lost within a day, too."""
    held = {one.worker: one for one in await reader.held(request.who) or ()}
    rows = _sorted(await reader.workers(), lambda row: (row.alive, row.state == "alive", row.card.name))
    return _view(request, "workers", rows, held=held)


def _sorted(rows: Sequence[T] | None, key: Callable[[T], Any]) -> Sequence[T] | None:
    """What needs attention comes first."""
    return None if rows is None else sorted(rows, key=key)


def _view(request: Request, page: str, rows: Sequence[Any] | None, **more: Any) -> View:
    """Of many rows those of one page, and links to the others. ``None``: the store does not say."""
    given = max(read("from", request.first("from"), whole) or 0, 0)
    count = len(rows or ())
    start = min(given, max(count - 1, 0) // PAGE * PAGE)  # of a list that has become shorter, its end
    before = request.again(**{"from": max(start - PAGE, 0) or ""}) if start else None
    after = request.again(**{"from": start + PAGE}) if start + PAGE < count else None
    part = None if rows is None else rows[start : start + PAGE]
    values = {"page": page, "rows": part, "first": start + 1, "last": min(start + PAGE, count)}
    values |= {"count": count, "before": before, "after": after}
    return View(template="lists.html", title="Queues" if page == "serials" else page.capitalize(), values=values | more)


async def _lines(reader: Reader, rows: Sequence[BacklogRow]) -> list[TaskLine]:
    until = (await reader.now()).replace(second=0, microsecond=0) + timedelta(minutes=1)
    since = until - SPAN
    found: defaultdict[str | None, list[Period]] = defaultdict(list)
    for period in await reader.throughput(since, until, STEP) or ():
        found[period.task].append(period)
    return [TaskLine(row, total(found[row.name]), slots_of(found[row.name], since, until, STEP)) for row in rows]
