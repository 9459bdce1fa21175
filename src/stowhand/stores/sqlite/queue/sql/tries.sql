-- What attempts leave that did not complete. `ids`: rows as they were before their end is written.

-- name: keep_tries
INSERT INTO stowhand_tries (job_id, place, round, number, worker, started_at, ended_at, outcome, error_class, error)
SELECT id, coalesce((SELECT max(place) FROM stowhand_tries WHERE job_id = id), 0) + 1, coalesce(round, 1), attempts, worker,
    iif(worker IS NULL, NULL, started_at), :now, :outcome, :error_class, :error
FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: mark_round
-- By it, the trigger that forgets entries with their job knows that there are some.
UPDATE stowhand_jobs SET round = 1 WHERE round IS NULL AND id IN (SELECT value FROM json_each(:ids))

-- name: drop_tries
DELETE FROM stowhand_tries WHERE job_id IN (SELECT value FROM json_each(:ids))
    AND place <= (SELECT max(place) FROM stowhand_tries AS last WHERE last.job_id = stowhand_tries.job_id) - :kept

-- name: tries
SELECT number, round, worker, started_at, ended_at, outcome, error_class, error
FROM stowhand_tries WHERE job_id = :id ORDER BY place

-- name: failed_by_numbers
-- Of `ids`, those that `reschedule` fails.
SELECT id FROM stowhand_jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('queued', 'errored')
    AND coalesce(:attempts, attempts) >= coalesce(:max_attempts, max_attempts)
