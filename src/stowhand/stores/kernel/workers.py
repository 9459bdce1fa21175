"""Workers and the jobs they hold."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import Job
from stowhand.jobs.queues import Queues
from stowhand.protocols.counts import MAX_EXACT_COUNT, BoundedCount
from stowhand.protocols.operator import AppVersion, HeldJobs, WorkerDescription, WorkerRow, worker_row
from stowhand.stores.kernel.columns import JOB_SUMMARY_COLUMNS
from stowhand.stores.kernel.question import Engine, Query, Question
from stowhand.stores.kernel.search import read_summary

_WORKER_DESCRIPTIONS = """
SELECT name, host, pid, version, tasks, concurrency, stopping, forbidden_flags, app_version, abandoned_threads, blocked,
    queues, excluded_queues, started_at, seen_at, :now
FROM {workers}
"""
# For each worker, the jobs that it has held longest, among the first ten thousand running jobs.
_HELD_JOBS = """
SELECT id, worker, jobs FROM (
    SELECT id, worker, count(*) OVER (PARTITION BY worker) AS jobs,
        row_number() OVER (PARTITION BY worker ORDER BY started_at, id) AS place
    FROM (SELECT id, worker, started_at FROM {running} LIMIT :max_rows) AS counted
) AS held WHERE place <= :max_jobs ORDER BY place
"""


def list_workers(engine: Engine) -> Question[Sequence[WorkerRow]]:
    """Return the workers, ordered by name."""
    rows = yield Query(_WORKER_DESCRIPTIONS)
    descriptions = []
    for row in rows:
        name, host, pid, version, tasks, concurrency, stopping, flags, app_version, threads, blocked, *others = row
        included, excluded, *moments = others
        description = WorkerDescription(
            *(name, host, pid, version, engine.read_names(tasks), concurrency, bool(stopping)),
            *(engine.read_names(flags), app_version, threads, bool(blocked)),
            queues=Queues(engine.read_names(included), engine.read_names(excluded) or ()),
        )
        descriptions.append(worker_row(description, *map(engine.read_moment, moments)))
    return sorted(descriptions, key=lambda row: row.description.name)


def list_held(engine: Engine, max_jobs_per_worker: int) -> Question[Sequence[HeldJobs]]:
    """Return the jobs that each worker holds, ordered by worker."""
    held = yield Query(_HELD_JOBS, {"max_jobs": max_jobs_per_worker, "max_rows": MAX_EXACT_COUNT})
    # This is not a join: without statistics, a planner may read all live jobs for each row.
    rows = yield Query(
        f"SELECT {JOB_SUMMARY_COLUMNS} FROM {{live_jobs}} WHERE id IN :ids", {"ids": [job_id for job_id, *_ in held]}
    )
    jobs = {row[0]: read_summary(engine, row) for row in rows}
    jobs_by_worker: dict[str, tuple[int, list[Job]]] = {}
    for job_id, worker, number in held:
        if job_id in jobs:  # otherwise the job has ended meanwhile
            jobs_by_worker.setdefault(worker or "", (number, []))[1].append(jobs[job_id])
    is_cut = sum(number for number, _ in jobs_by_worker.values()) >= MAX_EXACT_COUNT
    return [
        HeldJobs(worker=worker, jobs=BoundedCount(number, is_cut), longest=jobs)
        for worker, (number, jobs) in sorted(jobs_by_worker.items())
    ]


def list_app_versions(engine: Engine) -> Question[Sequence[AppVersion]]:
    """Return the versions of the application, ordered by time."""
    rows = yield Query("SELECT version, since FROM {app_versions}")
    versions = [AppVersion(version, engine.read_moment(since)) for version, since in rows]
    return sorted(versions, key=lambda row: (row.since, row.version))
