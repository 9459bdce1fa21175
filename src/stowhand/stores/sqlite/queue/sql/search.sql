-- Counting by index, up to a number.

-- name: some_failed
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_failed WHERE state = 'failed' LIMIT :most
)

-- name: some_running
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_running WHERE state = 'processing' LIMIT :most
)

-- name: some_canceled
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_history INDEXED BY stowhand_history_canceled WHERE state = 'canceled' LIMIT :most
)

-- name: some_over
SELECT count(*) FROM (SELECT 1 FROM stowhand_history LIMIT :most)

-- name: some_errored
SELECT count(*) FROM (
    SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_errored WHERE state = 'errored' LIMIT :most
)

-- name: some_waiting
SELECT count(*) FROM (
    SELECT * FROM (
        SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
        WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2 LIMIT :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 LIMIT :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
        WHERE state IN ('queued', 'errored') AND resets >= 2 LIMIT :most
    )
    LIMIT :most
)

-- name: app_version_seen
UPDATE stowhand_app_versions SET seen_at = :now WHERE version = :version AND seen_at >= :now - :gone

-- name: app_version_new
INSERT INTO stowhand_app_versions (version, since, seen_at) VALUES (:version, :now, :now)
ON CONFLICT (version, since) DO NOTHING
