-- The ends of attempts. The caller holds the write lock, so rows that it has read are unchanged. Nevertheless the pair
-- (id, token) guards every write.

-- name: held
SELECT id, token, task, serial, worker, attempts, max_attempts, resets, max_resets, cancel_requested, loses_retries, parent_id
FROM stowhand_jobs WHERE id = :id AND token = :token AND state = 'processing'

-- name: complete
-- The most frequent settlement, for a whole batch. `settled` is [[id, token, result], …]; the jobs are moved to the history.
INSERT INTO stowhand_history ({archived}, result)
SELECT
    {job_kept}, payload, 'completed', attempts, 0, last_error, :now, epoch, token, worker,
    json_extract(settled.value, '$[2]')
FROM json_each(:settled) AS settled
CROSS JOIN stowhand_jobs AS job ON job.id = json_extract(settled.value, '$[0]')
WHERE job.token = json_extract(settled.value, '$[1]') AND job.state = 'processing'
RETURNING id, parent_id

-- name: held_jobs
-- The same guard, if no history is kept.
SELECT job.id, job.parent_id FROM json_each(:settled) AS settled
CROSS JOIN stowhand_jobs AS job ON job.id = json_extract(settled.value, '$[0]')
WHERE job.token = json_extract(settled.value, '$[1]') AND job.state = 'processing'

-- name: delete
DELETE FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: requeue_or_fail
UPDATE stowhand_jobs
SET state = :state, run_at = coalesce(:run_at, run_at), resets = :resets,
    attempts = iif(:state = 'failed' AND loses_retries IS NOT NULL, max_attempts, :attempts),
    last_error = coalesce(:error, last_error), finished_at = :finished_at, epoch = epoch + :epochs,
    expires_at = iif(:settled_token IS NULL AND :epochs = 0, expires_at, NULL),
    settled_token = :settled_token, payload = coalesce(:payload, payload),
    waits_for = :waits_for,
    progress = iif(:state = 'failed', NULL, progress), progress_text = iif(:state = 'failed', NULL, progress_text),
    last_worker = coalesce(worker, last_worker), token = NULL, worker = NULL, lease_boot = NULL, lease_until = NULL
WHERE id = :id AND token = :token AND state = 'processing'

-- name: archive
-- Copies one completed or canceled job to the history. NULL keeps the value of the row.
INSERT INTO stowhand_history ({archived}, result)
SELECT
    {kept}, coalesce(:payload, payload), :state, coalesce(:attempts, attempts), coalesce(:resets, resets),
    coalesce(:error, last_error), :now, epoch + :epochs, coalesce(:settled_token, settled_token),
    coalesce(worker, last_worker), :result
FROM stowhand_jobs WHERE id = :id

-- name: archive_canceled
-- Copies waiting jobs to the history.
INSERT INTO stowhand_history ({archived})
SELECT
    {kept}, payload, 'canceled', attempts, resets, coalesce(:reason, last_error), :now, epoch, settled_token,
    coalesce(worker, last_worker)
FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: delete_one
DELETE FROM stowhand_jobs WHERE id = :id

-- name: trace
-- The lease that settled this job last, by its token. No row: the job leaves no trace.
SELECT settled_token, state FROM stowhand_jobs WHERE id = :id
UNION ALL
SELECT settled_token, state FROM stowhand_history WHERE id = :id
