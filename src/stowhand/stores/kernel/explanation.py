"""The state of a job and its surroundings, from which the reasons why it does not run follow."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from stowhand.jobs.job import Job
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.operator import MAX_JOBS_AHEAD, OVERDUE_SECONDS, Explanation
from stowhand.stores.kernel.columns import JOB_COLUMNS
from stowhand.stores.kernel.counts import list_pauses
from stowhand.stores.kernel.limits import closed_tasks, read_limits_of
from stowhand.stores.kernel.question import Engine, Query, Question, read_now
from stowhand.stores.kernel.reasons import ClaimScope, Facts, Holder, WaitOfJob, WorkerLoad, claim_scope, explain
from stowhand.stores.kernel.workers import list_workers

_JOB_QUERY = f"""
SELECT {JOB_COLUMNS} FROM {{live_jobs}} WHERE id = :id UNION ALL SELECT {JOB_COLUMNS} FROM {{past_jobs}} WHERE id = :id
"""
_LEASE_QUERY = "SELECT {lease_until}, expires_at, {on_failure_task}, serial FROM {live} WHERE id = :id"
_PAUSE_QUERY = "SELECT since FROM {paused_serials} AS paused WHERE serial = :serial"
_HOLDER_QUERY = "SELECT id, worker, started_at, {lease_until} FROM {running} AND serial = :serial AND id <> :id LIMIT 1"
# Waits that have not ended, and steps with children: the newest first.
_WAITS_QUERY = """
SELECT name, at, until, remaining,
    (SELECT count(*) FROM {steps} AS child
        WHERE child.job_id = step.job_id AND child.name = step.name AND child.place >= 0),
    (SELECT count(*) FROM {steps} AS child
        WHERE child.job_id = step.job_id AND child.name = step.name AND child.place >= 0 AND child.error IS NOT NULL)
FROM {steps} AS step WHERE job_id = :id AND (place = -1 OR (place = 0 AND value IS NULL AND error IS NULL))
ORDER BY at DESC
"""
# The priority is compared twice: SQLite's search in the index uses only the first column of the row comparison.
_JOBS_AHEAD_QUERY = """
SELECT count(*) FROM (
    SELECT 1 FROM {%s} AND priority <= :priority AND (priority, run_at, id) < (:priority, :run_at, :id)
        AND run_at <= :now%s LIMIT :max_rows
) AS counted
"""
# For each worker: the number of jobs it holds, and the one it has held longest.
_WORKER_LOADS_QUERY = """
SELECT worker, jobs, id, task, started_at FROM (
    SELECT worker, id, task, started_at, count(*) OVER (PARTITION BY worker) AS jobs,
        row_number() OVER (PARTITION BY worker ORDER BY started_at, id) AS place
    FROM {running}
) AS held WHERE place = 1
"""


def explain_job(engine: Engine, job_id: int) -> Question[Explanation | None]:
    """Explain why a job is in its state. The statements do not share a snapshot."""
    rows = yield Query(_JOB_QUERY, {"id": job_id})
    if not rows:
        return None
    job = engine.read_job(rows[0])
    now = yield from read_now(engine)
    leases = yield Query(_LEASE_QUERY, {"id": job.id})
    if not leases:  # the job is in the history
        return explain(Facts(job=job, now=now))
    ((lease_until, expires_at, on_failure, serial),) = leases
    paused = yield Query(_PAUSE_QUERY, {"serial": serial})
    workers, pauses = (yield from list_workers(engine)), (yield from list_pauses(engine))
    loads = yield Query(_WORKER_LOADS_QUERY)
    limits = yield from read_limits_of(engine, job.task, serial)
    closed = yield from closed_tasks(engine, now - timedelta(seconds=OVERDUE_SECONDS))
    queued_as = msgspec.structs.replace(job, serial=serial)
    return explain(
        Facts(
            job=job,
            now=now,
            lease_until=None if lease_until is None else engine.read_moment(lease_until),
            paused_since=engine.read_moment(paused[0][0]) if paused else None,
            pauses=pauses,
            holder=(yield from _read_holder(engine, job)),
            ahead=(yield from _count_ahead(queued_as, claim_scope(job, workers, pauses))),
            limits=limits,
            was_limited=job.task in closed,
            workers=workers,
            loads={
                name: WorkerLoad(jobs, oldest, task, engine.read_moment(at)) for name, jobs, oldest, task, at in loads
            },
            expires_at=None if expires_at is None else engine.read_moment(expires_at),
            on_failure=on_failure,
            wait=(yield from _read_wait(engine, job)),
        )
    )


def _read_holder(engine: Engine, job: Job) -> Question[Holder | None]:
    if job.serial is None:
        return None
    rows = yield Query(_HOLDER_QUERY, {"serial": job.serial, "id": job.id})
    for job_id, worker, since, until in rows:
        return Holder(job_id, worker, engine.read_moment(since), None if until is None else engine.read_moment(until))
    return None


def _read_wait(engine: Engine, job: Job) -> Question[WaitOfJob | None]:
    """Read the step that the job waits in (``Job.waits_for``)."""
    if job.waits_for is None:
        return None
    kind, _, subject = job.waits_for.partition(":")
    for name, at, until, remaining, ended, failed in (yield Query(_WAITS_QUERY, {"id": job.id})):
        if (remaining is not None) == (kind == "children") and (kind == "event" or name == subject):
            end = None if until is None else engine.read_moment(until)
            return WaitOfJob(kind, subject, engine.read_moment(at), end, remaining or 0, ended, failed)
    return None


def _count_ahead(job: Job, scope: ClaimScope | None) -> Question[int]:
    """Count the due jobs that workers of this scope claim before the job."""
    if scope is None:
        return 0
    if job.serial is not None:
        name, conditions = "serial", " AND serial = :serial"
    elif job.queue == DEFAULT_QUEUE:
        name, conditions = "ready_by_place", ""
    else:
        name, conditions = "queued_by_place", " AND queue = :queue"
    if scope.tasks is not None:
        conditions += " AND task IN :tasks"
    if scope.forbidden:
        conditions += " AND NOT {is_forbidden}"
    values = {name: getattr(job, name) for name in ("serial", "queue", "priority", "run_at", "id")}
    values |= {"tasks": list(scope.tasks or ()), "forbidden": list(scope.forbidden), "max_rows": MAX_JOBS_AHEAD + 1}
    ((ahead,),) = yield Query(_JOBS_AHEAD_QUERY % (name, conditions), values)
    return int(ahead)
