-- name: untold
SELECT untold.id, task, payload, last_error, on_failure
FROM stowhand_untold AS untold LEFT JOIN stowhand_jobs AS job ON job.id = untold.id
ORDER BY untold.id LIMIT 1000

-- name: is_untold
SELECT 1 FROM stowhand_untold LIMIT 1

-- name: told
DELETE FROM stowhand_untold WHERE id = :id

-- name: note
UPDATE stowhand_jobs SET last_error = substr(coalesce(last_error || char(10), '') || :why, 1, 16384) WHERE id = :id
