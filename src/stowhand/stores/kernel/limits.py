"""The limits of tasks, and the running jobs that hold their slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from stowhand.jobs import task_limits
from stowhand.jobs.limits import KEY_SEPARATOR
from stowhand.jobs.task_limits import NO_LIMITS, LimitValues, TaskLimits, overridden
from stowhand.protocols.operator import MAX_SHOWN_SLOTS, LimitRow
from stowhand.stores.kernel.question import Engine, Query, Question, Row, read_now

_LIMITS = "SELECT name, declared, override, next_start, held_until FROM {limits} AS limits"
_TASK_LIMITS = "SELECT task, concurrency, rate, key_limit FROM {task_limits} ORDER BY task"
# For each limit, the number of its slots in use, and the jobs that have held one longest.
_SLOTS = """
SELECT limit_name, id, started_at, used FROM (
    SELECT limit_name, id, started_at, count(*) OVER (PARTITION BY limit_name) AS used,
        row_number() OVER (PARTITION BY limit_name ORDER BY started_at, id) AS place
    FROM {slots}
) AS held WHERE place <= :max_jobs ORDER BY limit_name, place
"""
_USED_SLOTS = "SELECT limit_name, count(*) FROM {slots} GROUP BY limit_name"
_KEY = "SELECT next_start, held_until FROM {limit_keys} AS keys WHERE name = :serial"
# The jobs that have used a key longest, and the number of all that use it.
_SLOTS_OF_KEY = """
SELECT id, started_at, count(*) OVER () FROM {running} AND serial = :serial ORDER BY started_at, id LIMIT :max_jobs
"""


class LimitOfJob(NamedTuple):
    """A limit of one job."""

    row: LimitRow
    """With the values that apply to the job."""
    key: str | None
    """The key of the job, if the limit is for each key."""


class _StoredLimit(NamedTuple):
    name: str
    declared: LimitValues
    override: LimitValues
    values: LimitValues
    next_start: float | None
    """Seconds since 1970; the meaning is that of jobs/task_limits.py."""
    held_until: datetime | None


def read_limits(engine: Engine) -> Question[list[LimitRow]]:
    """Return the limits, ordered by name, without their waiting jobs."""
    limits = yield from _read_stored(engine)
    if not limits:
        return []
    now = yield from read_now(engine)
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for task, own in (yield from _read_task_limits()).items():
        for name in own.names:
            tasks[name].add(task)
    slots: defaultdict[str, list[Row]] = defaultdict(list)
    for name, *slot in (yield Query(_SLOTS, {"max_jobs": MAX_SHOWN_SLOTS})):
        slots[name].append(tuple(slot))
    return [_row(engine, limit, sorted(tasks[limit.name]), slots[limit.name], now) for limit in limits]


def read_limits_of(engine: Engine, task: str, serial: str | None) -> Question[list[LimitOfJob]]:
    """Return the limits of a job, by its task and its stored serial key, which may be the key of a limit."""
    own = (yield from _read_task_limits()).get(task, NO_LIMITS)
    limit_name, separator, key = (serial or "").partition(KEY_SEPARATOR)
    if not (own.names or separator):
        return []
    rows = {row.name: row for row in (yield from read_limits(engine))}
    limits = [
        _of_task(rows[name], has_slots=name == own.concurrency, has_rate=name == own.rate)
        for name in dict.fromkeys((own.concurrency, own.rate))
        if name is not None and name in rows
    ]
    if separator and limit_name in rows:
        limits.append(LimitOfJob((yield from _read_key(engine, rows[limit_name], serial or "")), key))
    return limits


def _of_task(row: LimitRow, *, has_slots: bool, has_rate: bool) -> LimitOfJob:
    """Return the part of a limit that applies to a task, which may use only its concurrency, or only its rate."""
    values = row.values
    own = LimitValues(values.concurrency) if has_slots else LimitValues()
    if has_rate:
        own = msgspec.structs.replace(own, rate=values.rate, rate_seconds=values.rate_seconds, burst=values.burst)
    return LimitOfJob(msgspec.structs.replace(row, values=own, next_start=row.next_start if has_rate else None), None)


def _read_key(engine: Engine, row: LimitRow, name: str) -> Question[LimitRow]:
    """Return the state of one key of a limit. ``name``: the stored serial key."""
    now, next_start, held_until = (yield from read_now(engine)), None, None
    for stored in (yield Query(_KEY, {"serial": name})):
        next_start, held_until = (None if time is None else engine.read_moment(time) for time in stored)
    start = None if next_start is None else next_start.timestamp()
    values = row.values.of_keys()
    stored_limit = _StoredLimit(row.name, values, LimitValues(), values, start, held_until)
    slots = yield Query(_SLOTS_OF_KEY, {"serial": name, "max_jobs": MAX_SHOWN_SLOTS})
    return _row(engine, stored_limit, row.tasks, slots, now)


def closed_tasks(engine: Engine, since: datetime) -> Question[list[str]]:
    """Return the tasks of which no job may start now, or whose rate or hold let none start until after ``since``."""
    closed_for_slots, closed_for_starts = set(), set()
    limits = yield from _read_stored(engine)
    if not limits:
        return []
    now = (yield from read_now(engine)).timestamp()
    used: dict[str, int] = dict((yield Query(_USED_SLOTS)))
    for name, _, _, values, next_start, held_until in limits:
        is_held = held_until is not None and held_until > since
        if is_held or (values.concurrency is not None and used.get(name, 0) >= values.concurrency):
            closed_for_slots.add(name)
        closed_until = 0.0 if values.rate is None else task_limits.closed_until(values, next_start, now)
        if is_held or closed_until > since.timestamp():
            closed_for_starts.add(name)
    return [
        task
        for task, own in (yield from _read_task_limits()).items()
        if own.concurrency in closed_for_slots or own.rate in closed_for_starts
    ]


def _read_stored(engine: Engine) -> Question[list[_StoredLimit]]:
    limits = []
    for name, declared_text, override_text, next_start, held_until in sorted((yield Query(_LIMITS))):
        declared, override = (msgspec.json.decode(text, type=LimitValues) for text in (declared_text, override_text))
        start = None if next_start is None else engine.read_moment(next_start).timestamp()
        hold = None if held_until is None else engine.read_moment(held_until)
        limits.append(_StoredLimit(name, declared, override, overridden(declared, override), start, hold))
    return limits


def _read_task_limits() -> Question[dict[str, TaskLimits]]:
    return {task: TaskLimits(*names) for task, *names in (yield Query(_TASK_LIMITS))}


def _row(engine: Engine, limit: _StoredLimit, tasks: Sequence[str], slots: Sequence[Row], now: datetime) -> LimitRow:
    next_start, held_until = None, limit.held_until
    if limit.values.rate is not None:
        seconds = task_limits.rate_opens_at(limit.values, limit.next_start, now.timestamp())
        next_start = datetime.fromtimestamp(seconds, UTC)
    return LimitRow(
        name=limit.name,
        values=limit.values,
        declared=limit.declared,
        override=limit.override,
        tasks=tuple(tasks),
        used=slots[0][2] if slots else 0,
        used_by=tuple(job_id for job_id, *_ in slots),
        used_since=engine.read_moment(slots[0][1]) if slots else None,
        next_start=next_start if next_start is not None and next_start > now else None,
        held_until=held_until if held_until is not None and held_until > now else None,
    )
