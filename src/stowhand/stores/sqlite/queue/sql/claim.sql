-- Every search for waiting jobs names its index, so that a missing index is an error and never a scan of the table.

-- name: claim_obstacle
-- 1: the token is abandoned. 2: a job has expired. One statement checks both, so expiry costs a claim no extra statement.
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
-- Clears the expiry of jobs that a worker claimed before they expired.
UPDATE stowhand_jobs SET expires_at = NULL
WHERE id IN (
    SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_expiring
    WHERE expires_at IS NOT NULL AND expires_at <= :now AND state <> 'queued'
)

-- part: ready
stowhand_jobs AS job INDEXED BY stowhand_jobs_ready
WHERE queue IS NULL AND state IN ('queued', 'errored') AND serial IS NULL AND resets < 2

-- part: queued
stowhand_jobs AS job INDEXED BY stowhand_jobs_queued
WHERE queue IS NOT NULL AND state IN ('queued', 'errored') AND serial IS NULL AND resets < 2

-- part: is_allowed
NOT EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(job.flags) THEN job.flags END) AS flag
    WHERE flag.value IN (SELECT value FROM json_each(:forbidden))
)

-- part: is_served
(:queues IS NULL OR coalesce(queue, 'default') IN (SELECT value FROM json_each(:queues)))
    AND coalesce(queue, 'default') NOT IN (SELECT value FROM json_each(:excluded))

-- name: next_queue
-- One step of a loose index scan over the queues with waiting jobs, except `default`.
SELECT queue FROM {queued} AND queue > :queue ORDER BY queue LIMIT 1

-- name: next_task
-- One step of a loose index scan over the tasks with waiting jobs in the queue `default`.
SELECT task FROM {ready} AND task > :task ORDER BY task LIMIT 1

-- name: next_task_in_queue
SELECT task FROM {queued} AND queue = :queue AND task > :task ORDER BY task LIMIT 1

-- name: next_level
-- The next priority of a task, and the time at which its first job is due. If this job is not due yet, none of the
-- priority is.
SELECT priority, run_at FROM {ready} AND task = :task AND priority > :priority ORDER BY priority, run_at LIMIT 1

-- name: next_level_in_queue
SELECT priority, run_at FROM {queued} AND queue = :queue AND task = :task AND priority > :priority
ORDER BY priority, run_at LIMIT 1

-- name: due
SELECT priority, run_at, id, NULL FROM {ready} AND task = :task AND priority = :priority AND run_at <= :now
ORDER BY run_at, id

-- name: due_in_queue
SELECT priority, run_at, id, NULL FROM {queued}
    AND queue = :queue AND task = :task AND priority = :priority AND run_at <= :now
ORDER BY run_at, id

-- name: due_and_allowed
SELECT priority, run_at, id, NULL FROM {ready} AND task = :task AND priority = :priority AND run_at <= :now AND {is_allowed}
ORDER BY run_at, id

-- name: due_and_allowed_in_queue
SELECT priority, run_at, id, NULL FROM {queued}
    AND queue = :queue AND task = :task AND priority = :priority AND run_at <= :now AND {is_allowed}
ORDER BY run_at, id

-- name: due_suspects
SELECT priority, run_at, id, serial FROM stowhand_jobs AS job INDEXED BY stowhand_jobs_suspect
WHERE state IN ('queued', 'errored') AND resets >= 2 AND run_at <= :now
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks))) AND {is_served}
    AND {is_allowed}
    AND (serial IS NULL OR (
        SELECT count(*) FROM stowhand_jobs AS running WHERE running.serial = job.serial AND running.state = 'processing'
    ) < CASE WHEN instr(serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(job.serial, 1, instr(job.serial, char(9)) - 1)
    ), 9223372036854775807) END
        AND NOT EXISTS (SELECT 1 FROM stowhand_paused AS paused WHERE paused.serial = job.serial))
    AND task NOT IN (SELECT value FROM json_each(:paused))
ORDER BY priority, run_at, id

-- name: take
-- The ids were chosen in the same transaction, and no other transaction can write meanwhile. A job of a limit with keys
-- gets its slot afterwards (`set_key_slot`).
UPDATE stowhand_jobs
SET state = 'processing', attempts = min(attempts + 1, max_attempts), epoch = epoch + 1, token = :token,
    settled_token = NULL, worker = :worker, started_at = :now, lease_boot = :boot, lease_until = :lease_until,
    limit_name = NULL, limit_slot = NULL, key_slot = iif(instr(serial, char(9)), -id, 1)
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING {claimed}, epoch

-- name: next_serial_task
SELECT task FROM stowhand_heads INDEXED BY stowhand_heads_free
WHERE busy = 0 AND id IS NOT NULL AND task > :task
ORDER BY task LIMIT 1

-- name: next_serial_queue
SELECT queue FROM stowhand_heads INDEXED BY stowhand_heads_free
WHERE busy = 0 AND id IS NOT NULL AND task = :task AND queue > :queue
ORDER BY queue LIMIT 1

-- name: heads
SELECT priority, run_at, id, serial FROM stowhand_heads INDEXED BY stowhand_heads_free
WHERE busy = 0 AND id IS NOT NULL AND task = :task AND queue = :queue
ORDER BY priority, run_at, id

-- name: first_allowed
-- If the head has a forbidden flag, a later job of the serial key may be claimed.
SELECT priority, max(run_at, coalesce((SELECT served_at FROM stowhand_limit_keys WHERE name = :serial), run_at)),
    id, serial
FROM stowhand_jobs AS job INDEXED BY stowhand_jobs_serial
WHERE state IN ('queued', 'errored') AND serial IS NOT NULL AND resets < 2
    AND serial = :serial AND task = :task AND coalesce(queue, 'default') = :queue AND run_at <= :now
    AND {is_allowed}
ORDER BY priority, run_at, id LIMIT 1

-- name: heads_to_recheck
SELECT serial, task, queue FROM stowhand_heads INDEXED BY stowhand_heads_recheck
WHERE busy = 0 AND recheck_at IS NOT NULL AND recheck_at <= :now
LIMIT :limit

-- name: next_serial_level
SELECT priority, run_at, id FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
WHERE state IN ('queued', 'errored') AND serial IS NOT NULL AND resets < 2
    AND serial = :serial AND task = :task AND priority > :priority AND coalesce(queue, 'default') = :queue
ORDER BY priority, run_at, id LIMIT 1

-- name: set_head
UPDATE stowhand_heads SET priority = :priority, run_at = :run_at, id = :id, recheck_at = :recheck_at
WHERE serial = :serial AND task = :task AND queue = :queue

-- name: drop_head
DELETE FROM stowhand_heads WHERE serial = :serial AND task = :task AND queue = :queue

-- name: first_head
-- The time at which the first head is due, or must be rechecked. Heads with the lowest time are unknown (`stale_heads`).
-- A paused key is left out: resuming it wakes the workers. So is a key of a limit without a free slot.
-- A head with a job is due; the time of its turn may be later.
SELECT min(iif(id IS NULL, recheck_at, min(run_at, :now))) FROM stowhand_heads
WHERE (recheck_at IS NULL OR recheck_at > -62135596800000000) AND (busy = 0 OR instr(serial, char(9)) = 0)
    AND serial NOT IN (SELECT serial FROM stowhand_paused)
    AND task NOT IN (SELECT value FROM json_each(:paused))
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks))) AND {is_served}

-- name: stale_heads
-- The lowest time means that the serial key has changed since its head was computed, so the caller must search. On an
-- idle queue these are the heads of busy serial keys.
SELECT serial, task, queue FROM stowhand_heads
WHERE recheck_at = -62135596800000000 AND (busy = 0 OR instr(serial, char(9)) = 0) AND serial NOT IN (SELECT serial FROM stowhand_paused)
    AND task NOT IN (SELECT value FROM json_each(:paused))
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks))) AND {is_served}

-- name: first_suspect
SELECT min(run_at) FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
WHERE state IN ('queued', 'errored') AND resets >= 2 AND task NOT IN (SELECT value FROM json_each(:paused))
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks))) AND {is_served}

-- name: pauses
SELECT kind, name FROM stowhand_pauses
