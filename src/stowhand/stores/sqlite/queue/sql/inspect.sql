-- name: get
SELECT {job} FROM stowhand_live WHERE id = :id
UNION ALL
SELECT {job} FROM stowhand_past WHERE id = :id

-- name: standings
-- Of the jobs that callers wait for, those that have ended, were replaced by another job, or do not exist.
SELECT
    requested.value, coalesce(job.state, past.state), coalesce(job.attempts, past.attempts),
    coalesce(job.resets, past.resets), iif(job.id IS NULL, past.last_error, job.last_error), past.result,
    iif(job.id IS NULL, past.started_at, job.started_at), iif(job.id IS NULL, past.finished_at, job.finished_at),
    coalesce(job.revision, past.revision), iif(job.id IS NULL, past.replaced, job.replaced)
FROM json_each(:ids) AS requested
LEFT JOIN stowhand_jobs AS job ON job.id = requested.value
LEFT JOIN stowhand_history AS past ON job.id IS NULL AND past.id = requested.value
WHERE job.id IS NULL OR job.state = 'failed' OR job.replaced IS NOT NULL
