"""The first page: counts and charts of jobs, and attention items."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

from stowhand.jobs.job import Job, State
from stowhand.protocols.counts import Pauses
from stowhand.protocols.operator import SerialRow
from stowhand.protocols.throughput import OutcomeCounts, Period, time_slots
from stowhand.web import attention, charts
from stowhand.web.attention import RECENT_FAILURE_PERIOD, StoreState
from stowhand.web.reader import Reader
from stowhand.web.request import Request, View

CHART_SPANS = {"1h": (3600, 60), "1d": (86_400, 900), "7d": (7 * 86_400, 7200), "90d": (90 * 86_400, 86_400)}
"""By name: the seconds of a whole chart and of one column."""


async def show(request: Request, reader: Reader) -> View:
    """Show counts, charts, and attention items."""
    span = request.choice("span", CHART_SPANS)
    now, versions = await asyncio.gather(reader.now(), reader.app_versions())
    until = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    # Concurrently, because a store may have several connections.
    (amounts, oldest_due), state, chart_markup = await asyncio.gather(
        asyncio.gather(reader.amounts(), reader.oldest_due()),
        _store_state(request, reader, now, until),
        _charts(reader, until, span, versions or ()),
    )
    live_workers = [row for row in state.workers if row.is_alive]
    values = {
        "page": "overview",
        "amounts": amounts and {state: amounts[state] for state in State},
        "oldest_due_seconds": max((oldest_due or {}).values(), default=0.0),
        "attention_items": attention.attention_items(state),
        "charts": chart_markup,
        "spans": CHART_SPANS,
        "span": span,
        "worker_count": len(live_workers),
        "slot_count": sum(row.description.concurrency for row in live_workers),
        "outlook": attention.outlook(state),
        "is_new": amounts is not None and not any(amount.number for amount in amounts.values()),
    }
    return View(template="lists.html", title="Overview", values=values)


async def _store_state(request: Request, reader: Reader, now: datetime, until: datetime) -> StoreState:
    (tasks, workers, pauses, failures), (holders, serials), (last_hour, by_task) = await asyncio.gather(
        asyncio.gather(reader.tasks(), reader.workers(), reader.pauses(), reader.failures(request.visitor)),
        _serials(request, reader, now),
        _last_hour_periods(reader, now, until),
    )
    return StoreState(
        now=now,
        tasks=tasks or (),
        serials=serials or (),
        pauses=pauses or Pauses(),
        failures=failures or (),
        workers=workers or (),
        holders=holders,
        last_hour=last_hour,
        by_task=by_task,
    )


async def _serials(request: Request, reader: Reader, now: datetime) -> tuple[Sequence[Job], Sequence[SerialRow] | None]:
    """Return jobs that hold their serial key for long, and all serial keys (a costly query) only with such jobs."""
    holders = attention.long_holders(await reader.held(request.visitor) or (), now)
    return holders, await (reader.serials() if holders else reader.paused())


async def _last_hour_periods(
    reader: Reader, now: datetime, until: datetime
) -> tuple[Sequence[Period], Sequence[Period]]:
    """Return the last hour by the minute: of all tasks together, and by task only if attempts failed."""
    last_hour = await reader.throughput(until - RECENT_FAILURE_PERIOD, until, by_task=False) or ()
    if not attention.needs_figures_by_task(last_hour, now):
        return last_hour, ()
    return last_hour, await reader.throughput(until - RECENT_FAILURE_PERIOD, until) or ()


async def _charts(reader: Reader, until: datetime, span: str, versions: charts.Versions) -> Sequence[Markup]:
    length, step = CHART_SPANS[span]
    # Columns start at fixed times, so that viewers share one answer and columns do not shift.
    since = datetime.fromtimestamp((until.timestamp() - length) // step * step, until.tzinfo)
    periods = await reader.throughput(since, until, step, by_task=False)
    if not periods:
        return []
    slots = time_slots(periods, since, until, step)
    return [
        charts.throughput("chart-throughput", slots, versions),
        charts.durations("chart-waits", "Wait", slots, OutcomeCounts.wait, versions),
        charts.durations("chart-runs", "Run time", slots, OutcomeCounts.run, versions),
    ]
