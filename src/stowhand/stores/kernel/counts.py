"""Counts of jobs, read from indexes. They are exact up to a limit; beyond it only "more than" is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from stowhand.jobs.job import State
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.counts import (
    MAX_EXACT_COUNT,
    MAX_EXACT_COUNT_FOR_METRICS,
    BoundedCount,
    Figures,
    NameCounts,
    Pauses,
)
from stowhand.protocols.operator import BacklogRow
from stowhand.protocols.throughput import MAX_TASKS_PER_MINUTE
from stowhand.stores.kernel.known_tasks import RECENT_TASK_SECONDS, known_queues, known_tasks, named_queues
from stowhand.stores.kernel.question import Engine, Query, Question, Row, count_some, read_now
from stowhand.stores.kernel.workers import list_workers

UNLIMITED_COUNT = 2**62
"""A limit that no number of jobs reaches."""
MAX_INDEX_ROWS = MAX_EXACT_COUNT_FOR_METRICS
"""Entries of an index that are read to group the jobs in it."""
_QUEUE = f"coalesce(queue, '{DEFAULT_QUEUE}')"
_DUE = "count(*) FILTER (WHERE run_at <= :now) AS due"
_READY = f"SELECT task, count(*), {_DUE} FROM {{ready}} GROUP BY task"
_QUEUED = f"SELECT task, queue, count(*), {_DUE} FROM {{queued}} GROUP BY queue, task"
FULL_COUNT_FACTOR = 20
"""Multiple of ``most``: up to so many jobs are all counted; of more, only the first of each level are counted."""
# Grouping first in the order of the index takes a third of the time.
_SERIAL = {
    "task": f"""
        SELECT task, CAST(sum(jobs) AS bigint), CAST(sum(due) AS bigint) FROM (
            SELECT task, count(*) AS jobs, {_DUE} FROM {{serial}} GROUP BY serial, task
        ) AS serials GROUP BY task
    """,
    "serial": f"SELECT serial, count(*), {_DUE} FROM {{serial}} GROUP BY serial",
    "queue": f"SELECT {_QUEUE}, count(*), {_DUE} FROM {{serial}} GROUP BY queue",
}
_FIRST_SERIAL = f"""
SELECT %s, count(*), {_DUE} FROM (
    SELECT task, serial, {_QUEUE} AS queue, run_at FROM {{serial}} LIMIT :most
) AS first GROUP BY 1
"""
_SUSPECTS = f"""
SELECT task, serial, queue, count(*), {_DUE} FROM (
    SELECT task, serial, {_QUEUE} AS queue, run_at FROM {{suspects}} LIMIT :most
) AS first GROUP BY task, serial, queue
"""
_TROUBLED = f"""
SELECT task, queue, count(*) FROM (
    SELECT task, {_QUEUE} AS queue FROM {{troubled}} AND state = :state LIMIT :most
) AS first GROUP BY task, queue
"""
NEWEST_FAILED = """
SELECT serial, count(*) FROM (
    SELECT serial FROM {failed} ORDER BY finished_at DESC, id DESC LIMIT :most
) AS newest GROUP BY serial
"""
_RUNNING = f"""
SELECT task, serial, queue, worker, count(*) FROM (
    SELECT task, serial, {_QUEUE} AS queue, worker FROM {{running}} LIMIT :most
) AS first GROUP BY task, serial, queue, worker
"""


def count_states(most: int = MAX_EXACT_COUNT) -> Question[dict[State, BoundedCount]]:
    """Count jobs by state, exact up to ``most``."""
    errored, canceled = "{troubled} AND state = 'errored'", "{canceled}"
    counts = {
        State.PROCESSING: (yield from count_some("{running}", most)),
        State.FAILED: (yield from count_some("{failed}", most)),
    }
    for few, many, some_of, all_of, table in (
        (State.ERRORED, State.QUEUED, errored, ("{ready}", "{queued}", "{serial}", "{suspects}"), "{live}"),
        (State.CANCELED, State.COMPLETED, canceled, ("{past}",), "{past}"),
    ):
        far = max(most, MAX_INDEX_ROWS)
        counts[few] = number = yield from count_some(some_of, far)
        if number > far:
            counts[many] = yield from count_some(f"{table} WHERE state = '{many}'", most)
            continue
        # A state without an index of its own: subtract the jobs of the rare state from all jobs.
        counts[many] = -number
        for source in all_of:
            counts[many] += yield from count_some(source, most + number)
    return {state: BoundedCount.up_to(most, counts[state]) for state in State}


def read_figures(engine: Engine, most: int) -> Question[Figures]:
    """Count live jobs by indexes. Known empty queues are included: in metrics, a missing row means unknown."""
    live = yield from _count_live(most)
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    for queue in named_queues((yield from _declared_queues()), workers, pauses):
        live["queue"].add(queue, "waiting", 0)
    return Figures(
        states=(yield from count_states(most)),
        tasks=live["task"].live(),
        serials=live["serial"].live(),
        queues=live["queue"].live(),
        workers=live["worker"].live(),
        paused=(yield from list_paused(engine)),
        pauses=pauses,
    )


def list_tasks(engine: Engine) -> Question[Sequence[BacklogRow]]:
    """Return the known tasks, ordered by name."""
    live = yield from _count_live(MAX_EXACT_COUNT, of_serials=False)
    since = (yield from read_now(engine)) - timedelta(seconds=RECENT_TASK_SECONDS)
    text = "SELECT DISTINCT task FROM {throughput} WHERE seconds = 60 AND begins > :since"
    counted = [task for (task,) in (yield Query(text, {"since": since}))]
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    return known_tasks(live["task"].live(MAX_TASKS_PER_MINUTE), counted, workers, pauses)


def list_queues(engine: Engine) -> Question[Sequence[BacklogRow]]:
    """Return the known queues, ordered by name."""
    live = yield from _count_live(MAX_EXACT_COUNT, of_serials=False)
    declared = yield from _declared_queues()
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    return known_queues(live["queue"].live(MAX_TASKS_PER_MINUTE), declared, workers, pauses)


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


def _count_live(most: int, *, of_serials: bool = True) -> Question[dict[str, NameCounts]]:
    """Count live jobs by task, serial key, queue and worker.

    ``of_serials`` false: waiting and failed jobs are not counted by serial key.
    """
    tallies = {name: NameCounts(most) for name in ("task", "serial", "queue", "worker")}
    yield from _add_ready(tallies, most)
    yield from _add_serial(tallies, ("task", "queue", "serial") if of_serials else ("task", "queue"))
    yield from _add_suspects(tallies, most)
    yield from _add_troubled(tallies)
    if of_serials:
        failed = yield Query(NEWEST_FAILED, {"most": most + 1})
        _add(tallies["serial"], "failed", failed, is_cut=_total(failed) > most)
    running = yield Query(_RUNNING, {"most": most + 1})
    is_cut = _total(running) > most
    for place, name in enumerate(tallies):
        _add(tallies[name], "processing", [(row[place], row[-1]) for row in running], is_cut=is_cut)
    return tallies


def _add_ready(tallies: Mapping[str, NameCounts], most: int) -> Question[None]:
    """Count waiting jobs without a serial key, up to ``most`` of each task and queue."""
    near = min(FULL_COUNT_FACTOR * most, MAX_INDEX_ROWS)
    for source, all_of, levels in (
        ("{ready}", _READY, _levels("ready", "task")),
        ("{queued}", _QUEUED, _levels("queued", "queue", "task")),
    ):
        text = all_of if (yield from count_some(source, near)) <= near else levels
        for task, *queue, waiting, due in (yield Query(text, {"most": most + 1})):
            for column, name in (("task", task), ("queue", queue[0] if queue else DEFAULT_QUEUE)):
                tallies[column].add(name, "waiting", waiting)
                tallies[column].add(name, "due", due)


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
    (SELECT count(*) FROM (SELECT 1 FROM {level} LIMIT :most) AS waiting),
    (SELECT count(*) FROM (SELECT 1 FROM {level} AND run_at <= :now LIMIT :most) AS due)
FROM levels
"""


def _add_serial(tallies: Mapping[str, NameCounts], columns: Sequence[str]) -> Question[None]:
    """Count waiting jobs with a serial key: at most a million in all, as each job may have a key of its own."""
    is_cut = (yield from count_some("{serial}", MAX_INDEX_ROWS)) > MAX_INDEX_ROWS
    for column in columns:
        rows = yield Query(_FIRST_SERIAL % column if is_cut else _SERIAL[column], {"most": MAX_INDEX_ROWS})
        _add(tallies[column], "waiting", [(name, number) for name, number, _ in rows], is_cut=is_cut)
        _add(tallies[column], "due", [(name, number) for name, _, number in rows], is_cut=is_cut)


def _add_suspects(tallies: Mapping[str, NameCounts], most: int) -> Question[None]:
    rows = yield Query(_SUSPECTS, {"most": most + 1})
    is_cut = sum(number for *_, number, _ in rows) > most
    for place, name in enumerate(("task", "serial", "queue")):
        _add(tallies[name], "waiting", [(row[place], row[3]) for row in rows], is_cut=is_cut)
        _add(tallies[name], "due", [(row[place], row[4]) for row in rows], is_cut=is_cut)


def _add_troubled(tallies: Mapping[str, NameCounts]) -> Question[None]:
    """Count errored and failed jobs."""
    for state in (State.ERRORED, State.FAILED):
        rows = yield Query(_TROUBLED, {"state": state.value, "most": MAX_INDEX_ROWS + 1})
        for place, name in enumerate(("task", "queue")):
            _add(
                tallies[name], state.value, [(row[place], row[2]) for row in rows], is_cut=_total(rows) > MAX_INDEX_ROWS
            )


def _add(tallies: NameCounts, part: str, rows: Iterable[Row], *, is_cut: bool) -> None:
    """Add counts of one part. ``is_cut``: there are more jobs, whose names are not known."""
    for name, number in rows:
        if name is not None:
            tallies.add(name, part, number)
    if is_cut:
        tallies.cut(part)


def _total(rows: Iterable[Row]) -> int:
    return sum(row[-1] for row in rows)
