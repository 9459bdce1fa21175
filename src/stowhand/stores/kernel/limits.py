"""The limits of tasks, and the running jobs that hold their slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from stowhand.jobs import task_limits
from stowhand.jobs.task_limits import LimitValues, overridden
from stowhand.protocols.operator import MAX_SHOWN_SLOTS, LimitRow
from stowhand.stores.kernel.question import Engine, Query, Question, Row, read_now

_LIMITS = "SELECT name, declared, override, next_start, held_until FROM {limits} AS limits"
_TASK_LIMITS = "SELECT task, concurrency, rate FROM {task_limits} ORDER BY task"
# For each limit, the number of its slots in use, and the jobs that have held one longest.
_SLOTS = """
SELECT limit_name, id, started_at, used FROM (
    SELECT limit_name, id, started_at, count(*) OVER (PARTITION BY limit_name) AS used,
        row_number() OVER (PARTITION BY limit_name ORDER BY started_at, id) AS place
    FROM {slots}
) AS held WHERE place <= :max_jobs ORDER BY limit_name, place
"""


def read_limits(engine: Engine) -> Question[list[LimitRow]]:
    """Return the limits, ordered by name, without their waiting jobs."""
    rows = yield Query(_LIMITS)
    if not rows:
        return []
    now = yield from read_now(engine)
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for task, *names in (yield Query(_TASK_LIMITS)):
        for name in filter(None, names):
            tasks[name].add(task)
    slots: defaultdict[str, list[Row]] = defaultdict(list)
    for name, *slot in (yield Query(_SLOTS, {"max_jobs": MAX_SHOWN_SLOTS})):
        slots[name].append(tuple(slot))
    return [_read_limit(engine, row, sorted(tasks[row[0]]), slots[row[0]], now) for row in sorted(rows)]


def _read_limit(engine: Engine, row: Row, tasks: Sequence[str], slots: Sequence[Row], now: datetime) -> LimitRow:
    name, declared_text, override_text, stored, held_until = row
    declared, override = (msgspec.json.decode(text, type=LimitValues) for text in (declared_text, override_text))
    values = overridden(declared, override)
    next_start = None
    if values.rate is not None and stored is not None:
        seconds = task_limits.rate_opens_at(values, engine.read_moment(stored).timestamp(), now.timestamp())
        next_start = datetime.fromtimestamp(seconds, UTC)
    hold = None if held_until is None else engine.read_moment(held_until)
    return LimitRow(
        name=name,
        values=values,
        declared=declared,
        override=override,
        tasks=tuple(tasks),
        used=slots[0][2] if slots else 0,
        used_by=tuple(job_id for job_id, *_ in slots),
        used_since=engine.read_moment(slots[0][1]) if slots else None,
        next_start=next_start if next_start is not None and next_start > now else None,
        held_until=hold if hold is not None and hold > now else None,
    )
