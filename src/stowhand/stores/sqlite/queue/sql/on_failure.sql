-- Permanently failed jobs whose on_failure job is not enqueued yet.

-- name: unreported
SELECT unreported.id, task, payload, last_error, on_failure
FROM stowhand_untold AS unreported LEFT JOIN stowhand_jobs AS job ON job.id = unreported.id
ORDER BY unreported.id LIMIT 1000

-- name: has_unreported
SELECT 1 FROM stowhand_untold LIMIT 1

-- name: mark_reported
DELETE FROM stowhand_untold WHERE id = :id

-- name: drop_reports_of_revived
-- For those of `ids` that `reschedule` revives.
DELETE FROM stowhand_untold WHERE id IN (
    SELECT id FROM stowhand_jobs
    WHERE id IN (SELECT value FROM json_each(:ids)) AND (:attempts IS NOT NULL OR :max_attempts IS NOT NULL)
        AND coalesce(:attempts, attempts) < coalesce(:max_attempts, max_attempts)
)

-- name: append_error
UPDATE stowhand_jobs SET last_error = substr(coalesce(last_error || char(10), '') || :text, 1, 16384) WHERE id = :id
