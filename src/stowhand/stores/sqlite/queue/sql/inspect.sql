-- name: get
SELECT {job} FROM stowhand_live WHERE id = :id
UNION ALL
SELECT {job} FROM stowhand_past WHERE id = :id

-- name: state
SELECT state FROM stowhand_jobs WHERE id = :id
UNION ALL
SELECT state FROM stowhand_history WHERE id = :id

-- name: retry
UPDATE stowhand_jobs
SET state = 'queued', run_at = :now, expires_at = NULL, attempts = 0, resets = 0, finished_at = NULL, cancel_requested = 0,
    loses_retries = NULL, round = (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id)
WHERE id = :id

-- name: revive
-- A canceled job comes back with its id; with its key only if no other job has taken that.
INSERT INTO stowhand_jobs (
    id, task, payload, state, run_at, attempts, resets, key, {details}, last_error, revision, replaced, created_at,
    updated_at, started_at, epoch, settled_token, last_worker, round, on_failure
)
SELECT
    id, task, payload, 'queued', :now, 0, 0,
    CASE WHEN EXISTS (SELECT 1 FROM stowhand_jobs AS live WHERE live.key = past.key) THEN NULL ELSE key END, {details},
    last_error, revision, replaced, created_at, updated_at, started_at, epoch, settled_token, last_worker,
    (SELECT max(round) + 1 FROM stowhand_tries WHERE job_id = id), on_failure
FROM stowhand_history AS past WHERE id = :id

-- name: standings
-- Of jobs that somebody waits for: those that have ended, have made place for another job, or are nowhere.
SELECT
    asked.value, coalesce(job.state, past.state), coalesce(job.attempts, past.attempts),
    coalesce(job.resets, past.resets), iif(job.id IS NULL, past.last_error, job.last_error), past.result,
    iif(job.id IS NULL, past.started_at, job.started_at), iif(job.id IS NULL, past.finished_at, job.finished_at),
    coalesce(job.revision, past.revision), iif(job.id IS NULL, past.replaced, job.replaced)
FROM json_each(:ids) AS asked
LEFT JOIN stowhand_jobs AS job ON job.id = asked.value
LEFT JOIN stowhand_history AS past ON job.id IS NULL AND past.id = asked.value
WHERE job.id IS NULL OR job.state = 'failed' OR job.replaced IS NOT NULL

-- name: has_other_key
-- Did it come back without the key that it had?
SELECT 1 FROM stowhand_history AS past JOIN stowhand_jobs AS job ON job.id = past.id
WHERE past.id = :id AND past.key IS NOT job.key

-- name: forget
DELETE FROM stowhand_history WHERE id = :id

-- name: ask_to_cancel
UPDATE stowhand_jobs SET cancel_requested = 1 WHERE id = :id
