"""Counts of jobs, read from indexes. They are exact up to a limit; beyond it only "more than" is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from stowhand.jobs.job import State
from stowhand.jobs.limits import KEY_SEPARATOR
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.counts import (
    MAX_EXACT_COUNT,
    MAX_EXACT_COUNT_FOR_METRICS,
    BoundedCount,
    Figures,
    LimitCounts,
    NameCounts,
    Pauses,
)
from stowhand.protocols.operator import BacklogRow, LimitRow
from stowhand.protocols.throughput import MAX_TASKS_PER_MINUTE
from stowhand.stores.kernel.known_tasks import RECENT_TASK_SECONDS, known_queues, known_tasks, named_queues
from stowhand.stores.kernel.limits import read_limits
from stowhand.stores.kernel.question import Engine, Query, Question, Row, count_some, read_now
from stowhand.stores.kernel.workers import list_workers

UNLIMITED_COUNT = 2**62
"""A limit that no number of jobs reaches."""
MAX_INDEX_ROWS = MAX_EXACT_COUNT_FOR_METRICS
"""Maximum number of index entries that are read to group their jobs."""
_QUEUE_NAME = f"coalesce(queue, '{DEFAULT_QUEUE}')"
_DUE_COUNT = "count(*) FILTER (WHERE run_at <= :now) AS due"
_READY_COUNTS = f"SELECT task, count(*), {_DUE_COUNT} FROM {{ready}} GROUP BY task"
_QUEUED_COUNTS = f"SELECT task, queue, count(*), {_DUE_COUNT} FROM {{queued}} GROUP BY queue, task"
FULL_COUNT_FACTOR = 20
"""Up to this multiple of ``max_count``, all jobs are counted; beyond it, only the first jobs of each level."""
# Grouping by the columns of the index first takes a third of the time.
_SERIAL_COUNTS = {
    "task": f"""
        SELECT task, CAST(sum(jobs) AS bigint), CAST(sum(due) AS bigint) FROM (
            SELECT task, count(*) AS jobs, {_DUE_COUNT} FROM {{serial}} GROUP BY serial, task
        ) AS serials GROUP BY task
    """,
    "serial": f"SELECT serial, count(*), {_DUE_COUNT} FROM {{serial}} GROUP BY serial",
    "queue": f"SELECT {_QUEUE_NAME}, count(*), {_DUE_COUNT} FROM {{serial}} GROUP BY queue",
}
_FIRST_SERIAL_COUNTS = f"""
SELECT %s, count(*), {_DUE_COUNT} FROM (
    SELECT task, serial, {_QUEUE_NAME} AS queue, run_at FROM {{serial}} LIMIT :max_rows
) AS first GROUP BY 1
"""
_SUSPECT_COUNTS = f"""
SELECT task, serial, queue, count(*), {_DUE_COUNT} FROM (
    SELECT task, serial, {_QUEUE_NAME} AS queue, run_at FROM {{suspects}} LIMIT :max_rows
) AS first GROUP BY task, serial, queue
"""
_TROUBLED_COUNTS = f"""
SELECT task, queue, count(*) FROM (
    SELECT task, {_QUEUE_NAME} AS queue FROM {{troubled}} AND state = :state LIMIT :max_rows
) AS first GROUP BY task, queue
"""
NEWEST_FAILED_COUNTS = """
SELECT serial, count(*) FROM (
    SELECT serial FROM {failed} ORDER BY finished_at DESC, id DESC LIMIT :max_rows
) AS newest GROUP BY serial
"""
_RUNNING_COUNTS = f"""
SELECT task, serial, queue, worker, count(*) FROM (
    SELECT task, serial, {_QUEUE_NAME} AS queue, worker FROM {{running}} LIMIT :max_rows
) AS first GROUP BY task, serial, queue, worker
"""


def count_states(max_count: int = MAX_EXACT_COUNT) -> Question[dict[State, BoundedCount]]:
    """Count jobs by state, exact up to ``max_count``."""
    errored, canceled = "{troubled} AND state = 'errored'", "{canceled}"
    counts = {
        State.PROCESSING: (yield from count_some("{running}", max_count)),
        State.FAILED: (yield from count_some("{failed}", max_count)),
    }
    for rare_state, common_state, rare_source, all_sources, table in (
        (State.ERRORED, State.QUEUED, errored, ("{ready}", "{queued}", "{serial}", "{suspects}"), "{live}"),
        (State.CANCELED, State.COMPLETED, canceled, ("{past}",), "{past}"),
    ):
        rare_limit = max(max_count, MAX_INDEX_ROWS)
        counts[rare_state] = number = yield from count_some(rare_source, rare_limit)
        if number > rare_limit:
            counts[common_state] = yield from count_some(f"{table} WHERE state = '{common_state}'", max_count)
            continue
        # A state without an index of its own: subtract the jobs of the rare state from all jobs.
        counts[common_state] = -number
        for source in all_sources:
            counts[common_state] += yield from count_some(source, max_count + number)
    return {state: BoundedCount.up_to(max_count, counts[state]) for state in State}


def read_figures(engine: Engine, max_count: int) -> Question[Figures]:
    """Count live jobs by indexes. Known empty queues are included, because metrics show a missing row as unknown."""
    live = yield from _count_live(max_count)
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    for queue in named_queues((yield from _declared_queues()), workers, pauses):
        live["queue"].add(queue, "waiting", 0)
    return Figures(
        states=(yield from count_states(max_count)),
        tasks=live["task"].live(),
        serials=live["serial"].live(),
        queues=live["queue"].live(),
        workers=live["worker"].live(),
        paused=(yield from list_paused(engine)),
        pauses=pauses,
        limits=(yield from _count_limits(engine, live["task"])),
    )


def _count_limits(engine: Engine, tasks: NameCounts) -> Question[list[LimitCounts]]:
    return [
        LimitCounts(name=row.name, slots=row.values.concurrency, used=row.used, waiting=row.waiting, due=row.due)
        for row in (_with_waiting(limit, tasks) for limit in (yield from read_limits(engine)))
    ]


def list_tasks(engine: Engine) -> Question[Sequence[BacklogRow]]:
    """Return the known tasks, ordered by name."""
    live = yield from _count_live(MAX_EXACT_COUNT, by_serial=False)
    since = (yield from read_now(engine)) - timedelta(seconds=RECENT_TASK_SECONDS)
    text = "SELECT DISTINCT task FROM {throughput} WHERE seconds = 60 AND begins > :since"
    recent_tasks = [task for (task,) in (yield Query(text, {"since": since}))]
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    return known_tasks(live["task"].live(MAX_TASKS_PER_MINUTE), recent_tasks, workers, pauses)


def list_queues(engine: Engine) -> Question[Sequence[BacklogRow]]:
    """Return the known queues, ordered by name."""
    live = yield from _count_live(MAX_EXACT_COUNT, by_serial=False)
    declared_queues = yield from _declared_queues()
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    return known_queues(live["queue"].live(MAX_TASKS_PER_MINUTE), declared_queues, workers, pauses)


def list_limits(engine: Engine) -> Question[Sequence[LimitRow]]:
    """Return the limits of tasks, ordered by name."""
    limits = yield from read_limits(engine)
    if not limits:
        return []
    live = yield from _count_live(MAX_EXACT_COUNT, by_serial=False)
    return [_with_waiting(limit, live["task"]) for limit in limits]


def _with_waiting(limit: LimitRow, counts: NameCounts) -> LimitRow:
    tasks = [counts.of(task) for task in limit.tasks]
    return msgspec.structs.replace(
        limit,
        waiting=sum((task.waiting for task in tasks), BoundedCount()),
        due=sum((task.due for task in tasks), BoundedCount()),
    )


def _declared_queues() -> Question[list[str]]:
    return [queue for (queue,) in (yield Query("SELECT DISTINCT queue FROM {task_queues}"))]


def list_pauses(engine: Engine) -> Question[Pauses]:
    """Return the paused tasks and queues, each ordered by name."""
    pauses: dict[str, dict[str, datetime]] = {"task": {}, "queue": {}}
    for kind, name, since in sorted((yield Query("SELECT kind, name, since FROM {pauses}"))):
        pauses[kind][name] = engine.read_moment(since)
    return Pauses(tasks=pauses["task"], queues=pauses["queue"])


def list_paused(engine: Engine) -> Question[Mapping[str, datetime]]:
    """Return the paused serial keys, ordered by name, with the time of each pause."""
    rows = yield Query("SELECT serial, since FROM {paused_serials} AS paused")
    return {serial: engine.read_moment(since) for serial, since in sorted(rows)}


def _count_live(max_count: int, *, by_serial: bool = True) -> Question[dict[str, NameCounts]]:
    """Count live jobs by task, serial key, queue and worker.

    ``of_serials`` false: waiting and failed jobs are not counted by serial key.
    """
    counts = {name: NameCounts(max_count) for name in ("task", "serial", "queue", "worker")}
    yield from _add_ready(counts, max_count)
    yield from _add_serial(counts, ("task", "queue", "serial") if by_serial else ("task", "queue"))
    yield from _add_suspects(counts, max_count)
    yield from _add_troubled(counts)
    if by_serial:
        failed = yield Query(NEWEST_FAILED_COUNTS, {"max_rows": max_count + 1})
        _add(counts["serial"], "failed", failed, is_cut=_total(failed) > max_count)
    running = yield Query(_RUNNING_COUNTS, {"max_rows": max_count + 1})
    is_cut = _total(running) > max_count
    for place, name in enumerate(counts):
        _add(counts[name], "processing", [(row[place], row[-1]) for row in running], is_cut=is_cut)
    return counts


def _add_ready(counts: Mapping[str, NameCounts], max_count: int) -> Question[None]:
    """Count waiting jobs without a serial key, up to ``max_count`` of each task and queue."""
    full_count_limit = min(FULL_COUNT_FACTOR * max_count, MAX_INDEX_ROWS)
    for source, all_counts, level_counts in (
        ("{ready}", _READY_COUNTS, _levels("ready", "task")),
        ("{queued}", _QUEUED_COUNTS, _levels("queued", "queue", "task")),
    ):
        text = all_counts if (yield from count_some(source, full_count_limit)) <= full_count_limit else level_counts
        for task, *queue, waiting, due in (yield Query(text, {"max_rows": max_count + 1})):
            for column, name in (("task", task), ("queue", queue[0] if queue else DEFAULT_QUEUE)):
                counts[column].add(name, "waiting", waiting)
                counts[column].add(name, "due", due)


def _levels(source: str, *names: str) -> str:
    """Return SQL that counts jobs by these names, the last name first.

    It visits each (queue, task, priority) once, so jobs that are not due cost one step for each of these.
    """
    columns = [*names, "priority"]
    level = f"{{{source}}} AND " + " AND ".join(f"{column} = levels.{column}" for column in columns)
    of_job = ", ".join(f"job.{column}" for column in columns)
    listed = ", ".join(columns)
    return f"""
WITH RECURSIVE levels ({listed}) AS (
    SELECT * FROM (SELECT {listed} FROM {{{source}}} ORDER BY {listed}, run_at LIMIT 1) AS first
    UNION ALL
    SELECT {of_job} FROM levels AS here {{next_{source}}}
)
SELECT {", ".join(reversed(names))},
    (SELECT count(*) FROM (SELECT 1 FROM {level} LIMIT :max_rows) AS waiting),
    (SELECT count(*) FROM (SELECT 1 FROM {level} AND run_at <= :now LIMIT :max_rows) AS due)
FROM levels
"""


def _add_serial(counts: Mapping[str, NameCounts], columns: Sequence[str]) -> Question[None]:
    """Count waiting jobs with a serial key. At most a million are read, as each job may have a key of its own."""
    is_cut = (yield from count_some("{serial}", MAX_INDEX_ROWS)) > MAX_INDEX_ROWS
    for column in columns:
        text = _FIRST_SERIAL_COUNTS % column if is_cut else _SERIAL_COUNTS[column]
        rows = yield Query(text, {"max_rows": MAX_INDEX_ROWS})
        _add(counts[column], "waiting", [(name, number) for name, number, _ in rows], is_cut=is_cut)
        _add(counts[column], "due", [(name, number) for name, _, number in rows], is_cut=is_cut)


def _add_suspects(counts: Mapping[str, NameCounts], max_count: int) -> Question[None]:
    rows = yield Query(_SUSPECT_COUNTS, {"max_rows": max_count + 1})
    is_cut = sum(number for *_, number, _ in rows) > max_count
    for place, name in enumerate(("task", "serial", "queue")):
        _add(counts[name], "waiting", [(row[place], row[3]) for row in rows], is_cut=is_cut)
        _add(counts[name], "due", [(row[place], row[4]) for row in rows], is_cut=is_cut)


def _add_troubled(counts: Mapping[str, NameCounts]) -> Question[None]:
    """Count errored and failed jobs."""
    for state in (State.ERRORED, State.FAILED):
        rows = yield Query(_TROUBLED_COUNTS, {"state": state.value, "max_rows": MAX_INDEX_ROWS + 1})
        for place, name in enumerate(("task", "queue")):
            _add(
                counts[name], state.value, [(row[place], row[2]) for row in rows], is_cut=_total(rows) > MAX_INDEX_ROWS
            )


def _add(counts: NameCounts, part: str, rows: Iterable[Row], *, is_cut: bool) -> None:
    """Add counts of one part. ``is_cut``: more jobs exist, whose names are unknown. Keys of limits are left out."""
    for name, number in rows:
        if name is not None and KEY_SEPARATOR not in name:
            counts.add(name, part, number)
    if is_cut:
        counts.cut(part)


def _total(rows: Iterable[Row]) -> int:
    return sum(row[-1] for row in rows)
