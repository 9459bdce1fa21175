"""Due jobs that wait for a worker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from stowhand.protocols.operator import MAX_OVERDUE_JOBS
from stowhand.stores.kernel.limits import closed_tasks
from stowhand.stores.kernel.question import Engine, Query, Question, read_now

# The first job of each queue, task and priority (and of each serial key) is its oldest, so a backlog costs a few steps.
# Each walk ends after 2000 steps; the answer then covers only the visited jobs.
FIRST_DUE_JOBS = """
WITH RECURSIVE free (task, priority, run_at, id, number) AS (
    SELECT * FROM (SELECT task, priority, run_at, id, 1 FROM {ready} ORDER BY task, priority, run_at LIMIT 1) AS first
    UNION ALL
    SELECT job.task, job.priority, job.run_at, job.id, number + 1 FROM free AS here {next_ready} WHERE number < 2000
), queued (queue, task, priority, run_at, id, number) AS (
    SELECT * FROM (
        SELECT queue, task, priority, run_at, id, 1 FROM {queued} ORDER BY queue, task, priority, run_at LIMIT 1
    ) AS first
    UNION ALL
    SELECT job.queue, job.task, job.priority, job.run_at, job.id, number + 1 FROM queued AS here {next_queued}
    WHERE number < 2000
), serial (serial, task, priority, run_at, id, number) AS (
    SELECT * FROM (
        SELECT serial, task, priority, run_at, id, 1 FROM {serial} ORDER BY serial, task, priority, run_at LIMIT 1
    ) AS first
    UNION ALL
    SELECT job.serial, job.task, job.priority, job.run_at, job.id, number + 1 FROM serial AS here {next_serial}
    WHERE number < 2000
)
SELECT id, run_at, queue FROM (
    SELECT serial, task, run_at, id,
        coalesce((SELECT queue FROM {live} AS job WHERE job.id = firsts.id), 'default') AS queue
    FROM (
        SELECT CAST(NULL AS text) AS serial, task, run_at, id FROM free
        UNION ALL
        SELECT NULL, task, run_at, id FROM queued
        UNION ALL
        SELECT serial, task, run_at, id FROM serial
        UNION ALL
        SELECT * FROM (SELECT serial, task, run_at, id FROM {suspects} ORDER BY priority, run_at LIMIT 2000) AS suspects
    ) AS firsts
    WHERE run_at < :before
) AS heads
WHERE task NOT IN (SELECT name FROM {pauses} WHERE kind = 'task')
    AND queue NOT IN (SELECT name FROM {pauses} WHERE kind = 'queue')
    AND (serial IS NULL OR serial NOT IN (SELECT serial FROM {paused_serials} AS paused))
"""
_OLDEST_DUE_BY_QUEUE = (
    FIRST_DUE_JOBS.replace("SELECT id, run_at, queue FROM", "SELECT queue, min(run_at) FROM", 1) + "GROUP BY queue"
)
_SERIAL_NOT_HELD = """
AND (serial IS NULL OR serial NOT IN (SELECT serial FROM {running} AND serial IS NOT NULL)
    AND serial NOT IN (SELECT name FROM {limit_keys} AS keys WHERE next_start > :before OR held_until > :before))
"""


def oldest_due(engine: Engine) -> Question[dict[str, float]]:
    """Return the seconds for which the longest due job of each queue could have run.

    Paused jobs do not count. Queues without a due job are left out.
    """
    now = yield from read_now(engine)
    rows = yield Query(_OLDEST_DUE_BY_QUEUE, {"before": now})
    return {queue: max((now - engine.read_moment(run_at)).total_seconds(), 0.0) for queue, run_at in sorted(rows)}


def find_overdue(engine: Engine, tasks: Sequence[str] | None, min_seconds: float) -> Question[Sequence[int]]:
    """Return ids of due jobs that no pause, serial key or limit blocks, the oldest first.

    ``tasks``: ``None`` means any task. ``min_seconds``: the jobs have been due for at least this time.
    """
    before = (yield from read_now(engine)) - timedelta(seconds=min_seconds)
    task_condition = "" if tasks is None else " AND task IN :tasks"
    closed = yield from closed_tasks(engine, before)
    values = {"before": before, "tasks": [*(tasks or ())], "closed": closed, "max_rows": MAX_OVERDUE_JOBS}
    if closed:
        task_condition += " AND NOT (task IN :closed)"
    rows = yield Query(
        f"{FIRST_DUE_JOBS} {_SERIAL_NOT_HELD}{task_condition} ORDER BY run_at, id LIMIT :max_rows", values
    )
    return [job_id for job_id, *_ in rows]
