-- name: last_id
SELECT seq FROM sqlite_sequence WHERE name = 'stowhand_jobs'

-- name: insert
INSERT INTO stowhand_jobs (id, {inserted}) VALUES (?, {inserted_values})

-- name: holder
SELECT id, state, payload, attempts, run_at, epoch > 0, state = 'queued' AND expires_at <= :now FROM stowhand_jobs WHERE key = :key

-- name: completed_key_holder
-- The job is no longer live, so it has completed: any other end frees the key.
SELECT job_id, enqueued_at FROM stowhand_uniques
WHERE key = :key AND until > :now AND NOT EXISTS (SELECT 1 FROM stowhand_jobs WHERE id = job_id)

-- name: hold_key_until
-- A revived job keeps the period of its first enqueue.
INSERT INTO stowhand_uniques (key, job_id, enqueued_at, until) VALUES (:key, :id, :now, :until)
ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, enqueued_at = excluded.enqueued_at, until = excluded.until
WHERE until <= :now OR job_id <> excluded.job_id

-- name: free_key
DELETE FROM stowhand_uniques WHERE job_id = :id

-- name: replace
-- Every detail takes its new value. A failed job is revived, so the values that only a failed job can have are cleared.
UPDATE stowhand_jobs
SET task = :task, payload = :payload, run_at = :run_at, {detail_assignments}, on_failure = :on_failure,
    expires_at = :expires_at,
    resets = iif(state = 'failed', 0, resets), cancel_requested = iif(state = 'failed', 0, cancel_requested),
    loses_retries = iif(state = 'failed', NULL, loses_retries), finished_at = NULL,
    progress = NULL, progress_text = NULL, waits_for = NULL, state = 'queued', attempts = 0, last_error = NULL, revision = revision + 1, updated_at = :now,
    replaced = iif(:is_repeat, replaced, revision + 1),
    round = (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id)
WHERE id = :id

-- name: touch
UPDATE stowhand_jobs SET revision = revision + 1, updated_at = :now WHERE id = :id

-- name: lose_key
UPDATE stowhand_jobs SET key = NULL, loses_retries = :cause WHERE id = :id

-- name: live
SELECT {job} FROM stowhand_live WHERE id = :id
