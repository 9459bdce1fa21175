-- Failed attempts.

-- name: record_failed_attempts
-- Runs before the end of the attempt is written to the rows of `ids`.
INSERT INTO stowhand_tries (job_id, place, round, number, worker, started_at, ended_at, outcome, error_class, error)
SELECT id, coalesce((SELECT max(place) FROM stowhand_tries WHERE job_id = id), 0) + 1, coalesce(round, 1), attempts, worker,
    iif(worker IS NULL, NULL, started_at), :now, :outcome, :error_class, :error
FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: set_first_round
-- The trigger that deletes a job's failed attempts runs only for rows with a round.
UPDATE stowhand_jobs SET round = 1 WHERE round IS NULL AND id IN (SELECT value FROM json_each(:ids))

-- name: prune_failed_attempts
DELETE FROM stowhand_tries WHERE job_id IN (SELECT value FROM json_each(:ids))
    AND place <= (SELECT max(place) FROM stowhand_tries AS last WHERE last.job_id = stowhand_tries.job_id) - :max_kept

-- name: tries
SELECT number, round, worker, started_at, ended_at, outcome, error_class, error
FROM stowhand_tries WHERE job_id = :id ORDER BY place

-- name: failed_by_numbers
-- Those of `ids` that `reschedule` fails.
SELECT id FROM stowhand_jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('queued', 'errored')
    AND coalesce(:attempts, attempts) >= coalesce(:max_attempts, max_attempts)
