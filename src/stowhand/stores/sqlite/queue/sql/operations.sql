-- Operators' changes, and the list of workers.

-- name: pause
INSERT INTO stowhand_paused (serial, since) VALUES (:serial, :now) ON CONFLICT (serial) DO NOTHING

-- name: resume
DELETE FROM stowhand_paused WHERE serial = :serial

-- name: pause_kind
INSERT INTO stowhand_pauses (kind, name, since) VALUES (:kind, :name, :now) ON CONFLICT (kind, name) DO NOTHING

-- name: resume_kind
DELETE FROM stowhand_pauses WHERE kind = :kind AND name = :name

-- name: clear_task_queues
DELETE FROM stowhand_task_queues WHERE task IN (SELECT key FROM json_each(:task_queues) WHERE value = 'default')

-- name: set_task_queues
INSERT INTO stowhand_task_queues (task, queue) SELECT key, value FROM json_each(:task_queues) WHERE value <> 'default'
ON CONFLICT (task) DO UPDATE SET queue = excluded.queue

-- name: worker_seen
INSERT INTO stowhand_workers
    (name, host, pid, version, tasks, concurrency, stopping, forbidden_flags, app_version, abandoned_threads, blocked,
    queues, excluded_queues, started_at, seen_at)
VALUES (:name, :host, :pid, :version, :tasks, :concurrency, :stopping, :forbidden_flags, :app_version,
    :abandoned_threads, :blocked, :queues, :excluded_queues, :now, :now)
ON CONFLICT (name) DO UPDATE SET tasks = excluded.tasks, stopping = excluded.stopping, seen_at = excluded.seen_at,
    abandoned_threads = excluded.abandoned_threads, blocked = excluded.blocked

-- name: worker_gone
DELETE FROM stowhand_workers WHERE name = :name

-- name: purge_history
-- Deletes a page of jobs that ended in this state before a time. `since` is the end of the page before.
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
