-- Actions on one job.

-- name: state
SELECT state FROM stowhand_jobs WHERE id = :id
UNION ALL
SELECT state FROM stowhand_history WHERE id = :id

-- name: retry
UPDATE stowhand_jobs
SET state = 'queued', run_at = :now, expires_at = NULL, attempts = 0, resets = 0, finished_at = NULL, cancel_requested = 0,
    loses_retries = NULL, round = (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id)
WHERE id = :id

-- name: retry_failed
UPDATE stowhand_jobs
SET state = 'queued', run_at = :now, expires_at = NULL, attempts = 0, resets = 0, finished_at = NULL,
    cancel_requested = 0, loses_retries = NULL, round = (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id)
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'failed'
RETURNING id

-- name: revive
-- Restores a canceled job with its id, and with its key unless another live job has the key.
INSERT INTO stowhand_jobs (
    id, task, payload, state, run_at, attempts, resets, key, {details}, last_error, revision, replaced, created_at,
    updated_at, started_at, epoch, settled_token, last_worker, round, on_failure, parent_id
)
SELECT
    id, task, payload, 'queued', :now, 0, 0,
    CASE WHEN EXISTS (SELECT 1 FROM stowhand_jobs AS live WHERE live.key = past.key) THEN NULL ELSE key END, {details},
    last_error, revision, replaced, created_at, updated_at, started_at, epoch, settled_token, last_worker,
    (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id), on_failure, parent_id
FROM stowhand_history AS past WHERE id = :id

-- name: has_other_key
-- Whether the restored job has lost its key.
SELECT 1 FROM stowhand_history AS past JOIN stowhand_jobs AS job ON job.id = past.id
WHERE past.id = :id AND past.key IS NOT job.key

-- name: forget
DELETE FROM stowhand_history WHERE id = :id

-- name: ask_to_cancel
UPDATE stowhand_jobs SET cancel_requested = 1 WHERE id = :id

-- Actions on many jobs. `ids` are those that `actionable` has returned in the same transaction. A job that loses its token
-- gets a new epoch, so that its worker detects the loss.

-- name: actionable
-- Live jobs, except those under a valid lease. A lease of another boot has no live holder.
SELECT id, token FROM stowhand_jobs
WHERE id IN (SELECT value FROM json_each(:ids))
    AND (state <> 'processing' OR lease_boot <> :boot OR lease_until < :ticks)
ORDER BY id

-- name: held_by_workers
SELECT id, token FROM stowhand_jobs INDEXED BY stowhand_jobs_running
WHERE state = 'processing' AND worker IN (SELECT value FROM json_each(:workers))
ORDER BY id

-- name: live_jobs
SELECT {job} FROM stowhand_live WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: archive_completed
INSERT INTO stowhand_history ({archived})
SELECT
    {kept}, payload, 'completed', attempts, resets, last_error, :now, epoch + (state = 'processing'), settled_token,
    coalesce(worker, last_worker)
FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: clear_keys
-- For completed jobs if no history is kept: the trigger `stowhand_key_freed` then ignores their deletion.
UPDATE stowhand_jobs SET key = NULL WHERE id IN (SELECT value FROM json_each(:ids))

-- name: fail
UPDATE stowhand_jobs
SET state = 'failed', attempts = max_attempts, waits_for = NULL, last_error = :reason, finished_at = coalesce(finished_at, :now),
    updated_at = :now, epoch = epoch + (state = 'processing'),
    progress = NULL, progress_text = NULL, last_worker = coalesce(worker, last_worker), token = NULL, worker = NULL, lease_boot = NULL, lease_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: reschedule
-- For waiting and failed jobs. Every expression on a right side sees the row as it was before the update.
UPDATE stowhand_jobs
SET run_at = coalesce(:run_at, run_at),
    expires_at = iif(stowhand_jobs.state = 'failed', NULL, expires_at + coalesce(:run_at, run_at) - run_at), priority = coalesce(:priority, priority), updated_at = :now,
    max_attempts = coalesce(:max_attempts, max_attempts),
    queue = iif(:queue IS NULL, queue, nullif(:queue, 'default')),
    attempts = min(coalesce(:attempts, attempts), coalesce(:max_attempts, max_attempts)),
    loses_retries = iif(:attempts IS NULL AND :max_attempts IS NULL, loses_retries, NULL),
    state = then_.state,
    waits_for = iif(then_.state = 'failed', NULL, waits_for),
    finished_at = iif(then_.state = 'failed', coalesce(finished_at, :now), NULL),
    progress = iif(then_.state = 'failed', NULL, progress),
    progress_text = iif(then_.state = 'failed', NULL, progress_text),
    resets = iif(stowhand_jobs.state = 'failed' AND then_.state = 'queued', 0, resets),
    cancel_requested = iif(stowhand_jobs.state = 'failed' AND then_.state = 'queued', 0, cancel_requested)
FROM (
    SELECT id AS of_id, CASE
        WHEN coalesce(:attempts, attempts) >= coalesce(:max_attempts, max_attempts) THEN 'failed'
        WHEN state = 'failed' AND (:attempts IS NOT NULL OR :max_attempts IS NOT NULL) THEN 'queued'
        ELSE state END AS state
    FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))
) AS then_
WHERE id = then_.of_id AND stowhand_jobs.state <> 'processing'
