-- name: renew
-- Renews an expired lease too, as long as the job has not been reset.
UPDATE stowhand_jobs SET lease_boot = :boot, lease_until = :lease_until
FROM json_each(:leases) AS lease
WHERE stowhand_jobs.id = json_extract(lease.value, '$[0]') AND stowhand_jobs.token = json_extract(lease.value, '$[1]')
    AND stowhand_jobs.state = 'processing'
RETURNING id, token, cancel_requested

-- name: find_canceled
SELECT job.id, job.token FROM json_each(:leases) AS lease
CROSS JOIN stowhand_jobs AS job ON job.id = json_extract(lease.value, '$[0]')
WHERE job.token = json_extract(lease.value, '$[1]') AND job.cancel_requested

-- name: keep_progress
-- `notes` is [[id, token, progress, text], …].
UPDATE stowhand_jobs
SET progress = json_extract(note.value, '$[2]'), progress_text = json_extract(note.value, '$[3]')
FROM json_each(:notes) AS note
WHERE stowhand_jobs.id = json_extract(note.value, '$[0]') AND stowhand_jobs.token = json_extract(note.value, '$[1]')
    AND stowhand_jobs.state = 'processing'

-- name: abandon
INSERT INTO stowhand_abandoned (token, abandoned_at) VALUES (:token, :now) ON CONFLICT (token) DO NOTHING

-- name: held_by_token
SELECT id, token FROM stowhand_jobs INDEXED BY stowhand_jobs_running
WHERE state = 'processing' AND token = :token ORDER BY id

-- name: held_by_worker
SELECT id, token FROM stowhand_jobs INDEXED BY stowhand_jobs_running
WHERE state = 'processing' AND worker = :worker ORDER BY id LIMIT :limit

-- name: stalled
-- A lease of another boot has no live holder, regardless of its deadline.
SELECT id, token FROM stowhand_jobs INDEXED BY stowhand_jobs_running
WHERE state = 'processing' AND (lease_boot <> :boot OR lease_until < :late) ORDER BY id LIMIT :limit

-- name: foreign_leases
-- For leases of jobs other than `own_ids`: whether one has been expired for the slack, and the ticks at which the first
-- of the others expires.
SELECT max(lease_boot <> :boot OR lease_until < :late),
    min(CASE WHEN lease_boot = :boot AND lease_until >= :late THEN lease_until END)
FROM stowhand_jobs INDEXED BY stowhand_jobs_running
WHERE state = 'processing' AND id NOT IN (SELECT value FROM json_each(:own_ids))

-- name: is_history_old
SELECT 1 FROM stowhand_history WHERE finished_at < :before LIMIT 1

-- name: prune_history
DELETE FROM stowhand_history WHERE id IN (
    SELECT id FROM stowhand_history INDEXED BY stowhand_history_finished
    WHERE finished_at < :before ORDER BY finished_at LIMIT :limit
)

-- name: is_failed_old
SELECT 1 FROM stowhand_jobs INDEXED BY stowhand_jobs_failed WHERE state = 'failed' AND finished_at < :before LIMIT 1

-- name: prune_failed
DELETE FROM stowhand_jobs WHERE id IN (
    SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
    WHERE state = 'failed' AND finished_at < :before ORDER BY finished_at LIMIT :limit
)

-- name: is_uniques_old
SELECT 1 FROM stowhand_uniques WHERE until < :before LIMIT 1

-- name: prune_uniques
DELETE FROM stowhand_uniques WHERE key IN (
    SELECT key FROM stowhand_uniques WHERE until < :before ORDER BY until LIMIT :limit
)

-- name: is_workers_old
SELECT 1 FROM stowhand_workers WHERE seen_at < :before LIMIT 1

-- name: is_app_versions_old
SELECT 1 FROM stowhand_app_versions WHERE seen_at < :before LIMIT 1

-- name: prune_app_versions
DELETE FROM stowhand_app_versions WHERE seen_at < :before

-- name: prune_workers
DELETE FROM stowhand_workers WHERE seen_at < :before

-- name: is_abandoned_old
SELECT 1 FROM stowhand_abandoned WHERE abandoned_at < :before LIMIT 1

-- name: prune_abandoned
DELETE FROM stowhand_abandoned WHERE abandoned_at < :before

-- name: is_ticks_old
SELECT 1 FROM stowhand_ticks WHERE tick < :before LIMIT 1

-- name: prune_ticks
DELETE FROM stowhand_ticks WHERE (identifier, tick) IN (
    SELECT identifier, tick FROM stowhand_ticks INDEXED BY stowhand_ticks_by_time
    WHERE tick < :before ORDER BY tick LIMIT :limit
)

-- name: app_version_seen
UPDATE stowhand_app_versions SET seen_at = :now WHERE version = :version AND seen_at >= :now - :gone

-- name: app_version_new
INSERT INTO stowhand_app_versions (version, since, seen_at) VALUES (:version, :now, :now)
ON CONFLICT (version, since) DO NOTHING
