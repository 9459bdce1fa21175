-- What operators ask.

-- name: pause
INSERT INTO stowhand_paused (queue, since) VALUES (:queue, :now) ON CONFLICT (queue) DO NOTHING

-- name: resume
DELETE FROM stowhand_paused WHERE queue = :queue

-- name: pause_task
INSERT INTO stowhand_pauses (task, since) VALUES (:task, :now) ON CONFLICT (task) DO NOTHING

-- name: resume_task
DELETE FROM stowhand_pauses WHERE task = :task

-- name: retry_failed
UPDATE stowhand_jobs
SET state = 'queued', run_at = :now, expires_at = NULL, attempts = 0, resets = 0, finished_at = NULL,
    cancel_requested = 0, loses_retries = NULL, round = (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id)
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'failed'
RETURNING id

-- Each part from its index; of the failed ones the newest.
-- name: queues
SELECT queue, max(since), max(held_by), sum(waiting), sum(due), sum(running), sum(failed), min(due_since) FROM (
    SELECT queue, NULL AS since, NULL AS held_by, count(*) AS waiting, sum(run_at <= :now) AS due, 0 AS running, 0 AS failed,
        min(CASE WHEN run_at <= :now THEN run_at END) AS due_since
    FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
    WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 GROUP BY queue
    UNION ALL
    SELECT queue, NULL, NULL, count(*), sum(run_at <= :now), 0, 0, min(CASE WHEN run_at <= :now THEN run_at END)
    FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
    WHERE state IN ('queued', 'errored') AND resets >= 2 AND queue IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT queue, NULL, max(id), 0, 0, count(*), 0, NULL FROM stowhand_jobs INDEXED BY stowhand_jobs_running
    WHERE state = 'processing' AND queue IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT queue, NULL, NULL, 0, 0, 0, count(*), NULL FROM (
        SELECT queue FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
        WHERE state = 'failed' ORDER BY finished_at DESC LIMIT :most
    ) WHERE queue IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT queue, since, NULL, 0, 0, 0, 0, NULL FROM stowhand_paused
) GROUP BY queue ORDER BY queue

-- name: workers
SELECT name, host, pid, version, tasks, concurrency, stopping, forbidden_flags, app_version, abandoned_threads, blocked,
    started_at, seen_at
FROM stowhand_workers ORDER BY name

-- name: worker_seen
INSERT INTO stowhand_workers
    (name, host, pid, version, tasks, concurrency, stopping, forbidden_flags, app_version, abandoned_threads, blocked,
    started_at, seen_at)
VALUES (:name, :host, :pid, :version, :tasks, :concurrency, :stopping, :forbidden_flags, :app_version,
    :abandoned_threads, :blocked, :now, :now)
ON CONFLICT (name) DO UPDATE SET tasks = excluded.tasks, stopping = excluded.stopping, seen_at = excluded.seen_at,
    abandoned_threads = excluded.abandoned_threads, blocked = excluded.blocked

-- name: worker_gone
DELETE FROM stowhand_workers WHERE name = :name

-- name: circumstances
SELECT job.lease_boot, job.lease_until, paused.since, holder.id, holder.worker, holder.started_at, holder.lease_boot,
    holder.lease_until, job.expires_at, json_extract(job.on_failure, '$.task')
FROM stowhand_jobs AS job
LEFT JOIN stowhand_paused AS paused ON paused.queue = job.queue
LEFT JOIN stowhand_jobs AS holder ON holder.queue = job.queue AND holder.state = 'processing' AND holder.id <> job.id
WHERE job.id = :id

-- name: ahead
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_jobs
    WHERE state IN ('queued', 'errored') AND queue IS :queue AND resets < 2 AND run_at <= :now
        AND (priority, run_at, id) < (:priority, :run_at, :id)
        AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        AND NOT EXISTS (
            SELECT 1 FROM json_each(CASE WHEN json_valid(flags) THEN flags END) AS flag
            WHERE flag.value IN (SELECT value FROM json_each(:forbidden))
        )
    LIMIT :most
)

-- Of each worker how many it holds, and the one that it has held longest (a bare column goes with the only min).
-- name: busy
SELECT worker, count(*), id, task, min(started_at) FROM stowhand_jobs WHERE state = 'processing' GROUP BY worker

-- A page of what ended in this state before that moment, from where the last page ended.
-- name: purge_history
DELETE FROM stowhand_history WHERE id IN (
    SELECT id FROM stowhand_history INDEXED BY stowhand_history_finished
    WHERE finished_at >= :since AND finished_at < :before AND state = :state ORDER BY finished_at LIMIT :limit
) RETURNING finished_at

-- name: purge_failed
DELETE FROM stowhand_jobs WHERE id IN (
    SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
    WHERE state = 'failed' AND finished_at >= :since AND finished_at < :before ORDER BY finished_at LIMIT :limit
) RETURNING finished_at

-- name: purgeable_history
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_history INDEXED BY stowhand_history_finished
    WHERE finished_at < :before AND state = :state LIMIT :limit
)

-- name: purgeable_failed
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
    WHERE state = 'failed' AND finished_at < :before LIMIT :limit
)
