-- Every look at what waits names its index: a plan that walks the table must fail in a test, not in production.

-- name: is_abandoned
-- 1: this token claims no more; 2: something has expired, so that what expires costs other claims no statement.
SELECT 1 FROM stowhand_abandoned WHERE token = :token
UNION ALL
SELECT 2 FROM stowhand_jobs INDEXED BY stowhand_jobs_expiring WHERE expires_at IS NOT NULL AND expires_at <= :now
LIMIT 1

-- name: expired
SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_expiring
WHERE expires_at IS NOT NULL AND expires_at <= :now AND state = 'queued' ORDER BY expires_at, id LIMIT :limit

-- name: next_expiry
SELECT expires_at FROM stowhand_jobs INDEXED BY stowhand_jobs_expiring
WHERE expires_at IS NOT NULL AND state = 'queued' ORDER BY expires_at LIMIT 1

-- name: claimed_in_time
UPDATE stowhand_jobs SET expires_at = NULL
WHERE id IN (
    SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_expiring
    WHERE expires_at IS NOT NULL AND expires_at <= :now AND state <> 'queued'
)

-- name: next_task
-- One step of a loose scan over the tasks that have something waiting.
SELECT task FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
WHERE state IN ('queued', 'errored') AND serial IS NULL AND resets < 2 AND task > :task
ORDER BY task LIMIT 1

-- name: next_level
-- The next priority of a task, and when its first job is due: if that one is not, none of this priority is.
SELECT priority, run_at FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
WHERE state IN ('queued', 'errored') AND serial IS NULL AND resets < 2 AND task = :task AND priority > :priority
ORDER BY priority, run_at LIMIT 1

-- name: due
SELECT priority, run_at, id, NULL FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
WHERE state IN ('queued', 'errored') AND serial IS NULL AND resets < 2
    AND task = :task AND priority = :priority AND run_at <= :now
ORDER BY run_at, id

-- name: due_and_allowed
SELECT priority, run_at, id, NULL FROM stowhand_jobs AS job INDEXED BY stowhand_jobs_ready
WHERE state IN ('queued', 'errored') AND serial IS NULL AND resets < 2
    AND task = :task AND priority = :priority AND run_at <= :now
    AND NOT EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(job.flags) THEN job.flags END) AS flag WHERE flag.value IN (SELECT value FROM json_each(:forbidden)))
ORDER BY run_at, id

-- name: due_suspects
SELECT priority, run_at, id, serial FROM stowhand_jobs AS job INDEXED BY stowhand_jobs_suspect
WHERE state IN ('queued', 'errored') AND resets >= 2 AND run_at <= :now
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
    AND NOT EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(job.flags) THEN job.flags END) AS flag WHERE flag.value IN (SELECT value FROM json_each(:forbidden)))
    AND (serial IS NULL OR NOT EXISTS (
        SELECT 1 FROM stowhand_jobs AS running WHERE running.serial = job.serial AND running.state = 'processing'
    ) AND NOT EXISTS (SELECT 1 FROM stowhand_paused AS paused WHERE paused.serial = job.serial))
    AND task NOT IN (SELECT task FROM stowhand_pauses)
ORDER BY priority, run_at, id

-- name: take
-- Ids that were chosen in this very transaction, while no other transaction can write.
UPDATE stowhand_jobs
SET state = 'processing', attempts = min(attempts + 1, max_attempts), epoch = epoch + 1, token = :token,
    settled_token = NULL, worker = :worker, started_at = :now, lease_boot = :boot, lease_until = :lease_until
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING {claimed}, epoch

-- name: next_serial_task
SELECT task FROM stowhand_heads INDEXED BY stowhand_heads_free
WHERE busy = 0 AND id IS NOT NULL AND task > :task
ORDER BY task LIMIT 1

-- name: heads
SELECT priority, run_at, id, serial FROM stowhand_heads INDEXED BY stowhand_heads_free
WHERE busy = 0 AND id IS NOT NULL AND task = :task
ORDER BY priority, run_at, id

-- name: first_allowed
-- Behind a head whose flag is forbidden the next job of the key may be claimed.
SELECT priority, run_at, id, serial FROM stowhand_jobs AS job INDEXED BY stowhand_jobs_serial
WHERE state IN ('queued', 'errored') AND serial IS NOT NULL AND resets < 2
    AND serial = :serial AND task = :task AND run_at <= :now
    AND NOT EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(job.flags) THEN job.flags END) AS flag WHERE flag.value IN (SELECT value FROM json_each(:forbidden)))
ORDER BY priority, run_at, id LIMIT 1

-- name: heads_to_recheck
SELECT serial, task FROM stowhand_heads INDEXED BY stowhand_heads_recheck
WHERE busy = 0 AND recheck_at IS NOT NULL AND recheck_at <= :now
LIMIT :limit

-- name: next_serial_level
SELECT priority, run_at, id FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
WHERE state IN ('queued', 'errored') AND serial IS NOT NULL AND resets < 2
    AND serial = :serial AND task = :task AND priority > :priority
ORDER BY priority, run_at, id LIMIT 1

-- name: set_head
UPDATE stowhand_heads SET priority = :priority, run_at = :run_at, id = :id, recheck_at = :recheck_at
WHERE serial = :serial AND task = :task

-- name: drop_head
DELETE FROM stowhand_heads WHERE serial = :serial AND task = :task

-- name: first_head
-- When the first head is or may become due: exact, but for those marked with the floor. A resumed key will be heard of.
SELECT min(coalesce(run_at, recheck_at)) FROM stowhand_heads
WHERE (recheck_at IS NULL OR recheck_at > -62135596800000000) AND serial NOT IN (SELECT serial FROM stowhand_paused)
    AND task NOT IN (SELECT task FROM stowhand_pauses)
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))

-- name: unknown_heads
-- The floor says: something changed, look yourself. At rest those are the heads of busy serial keys.
SELECT serial, task FROM stowhand_heads
WHERE recheck_at = -62135596800000000 AND serial NOT IN (SELECT serial FROM stowhand_paused)
    AND task NOT IN (SELECT task FROM stowhand_pauses)
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))

-- name: first_suspect
SELECT min(run_at) FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
WHERE state IN ('queued', 'errored') AND resets >= 2 AND task NOT IN (SELECT task FROM stowhand_pauses)
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))

-- name: pauses
SELECT task FROM stowhand_pauses
