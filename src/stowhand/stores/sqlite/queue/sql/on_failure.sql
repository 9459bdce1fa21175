-- name: untold
SELECT untold.id, task, payload, last_error, on_failure
FROM stowhand_untold AS untold LEFT JOIN stowhand_jobs AS job ON job.id = untold.id
ORDER BY untold.id LIMIT 1000

-- name: is_untold
SELECT 1 FROM stowhand_untold LIMIT 1

-- name: told
DELETE FROM stowhand_untold WHERE id = :id

-- name: untell_revived
-- Of `ids`, those that `reschedule` revives.
DELETE FROM stowhand_untold WHERE id IN (
    SELECT id FROM stowhand_jobs
    WHERE id IN (SELECT value FROM json_each(:ids)) AND (:attempts IS NOT NULL OR :max_attempts IS NOT NULL)
        AND coalesce(:attempts, attempts) < coalesce(:max_attempts, max_attempts)
)

-- name: note
UPDATE stowhand_jobs SET last_error = substr(coalesce(last_error || char(10), '') || :why, 1, 16384) WHERE id = :id
