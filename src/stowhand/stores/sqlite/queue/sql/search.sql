-- Searching in pieces: first where a piece ends, by the order of a key alone, then what is wanted of it.

-- Lists show neither payload nor result. In the order of the views.
-- part: head
id, task, '' AS payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, NULL AS result,
    last_worker, progress, progress_text

-- part: searched
AND state IN (SELECT value FROM json_each(:states))
    AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue) AND (:key IS NULL OR key = :key)
    AND (:worker IS NULL OR last_worker = :worker)
    AND (:flag IS NULL OR :flag IN (SELECT value FROM json_each(CASE WHEN json_valid(flags) THEN flags END)))
    AND (:error IS NULL OR instr(lower(last_error), lower(:error)) > 0)
    AND (:since IS NULL OR coalesce(finished_at, created_at) >= :since)
    AND (:until IS NULL OR coalesce(finished_at, created_at) < :until)

-- name: live_piece
SELECT count(*), min(id) FROM (SELECT id FROM stowhand_jobs WHERE id < :below ORDER BY id DESC LIMIT :rows)

-- name: past_piece
SELECT count(*), min(id) FROM (SELECT id FROM stowhand_history WHERE id < :below ORDER BY id DESC LIMIT :rows)

-- name: live_rows
SELECT count(*) FROM stowhand_jobs WHERE id >= :first AND id < :below

-- name: past_rows
SELECT count(*) FROM stowhand_history WHERE id >= :first AND id < :below

-- name: search_live
SELECT {head} FROM stowhand_live WHERE id >= :first AND id < :below {searched}
ORDER BY id DESC LIMIT :limit

-- name: search_past
SELECT {head} FROM stowhand_past WHERE id >= :first AND id < :below {searched}
ORDER BY id DESC LIMIT :limit

-- name: running_piece
SELECT id, NULL FROM stowhand_jobs INDEXED BY stowhand_jobs_running
WHERE state = 'processing' AND id < :below ORDER BY id DESC LIMIT :rows

-- The index is by time alone: of many that failed at one moment, those below an id would be walked over.
-- name: failed_piece
SELECT * FROM (
    SELECT id, finished_at FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
    WHERE state = 'failed' AND finished_at = :at AND id < :below ORDER BY id DESC LIMIT :rows
)
UNION ALL
SELECT * FROM (
    SELECT id, finished_at FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
    WHERE state = 'failed' AND finished_at < :at ORDER BY finished_at DESC, id DESC LIMIT :rows
)
LIMIT :rows

-- name: search_ids
SELECT {head} FROM stowhand_live WHERE id IN (SELECT value FROM json_each(:ids)) {searched}

-- name: id_of_key
SELECT id FROM stowhand_jobs WHERE key = :key

-- The live jobs of a queue, by indexes: those that wait, and among suspects, running and failed jobs those of the queue. Many rows,
-- and the search by ids finds some soon.
-- name: ids_of_queue
SELECT id, queue = :queue FROM (
    SELECT * FROM (
        SELECT id, queue FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue = :queue AND resets < 2 LIMIT :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT id, queue FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
        WHERE state IN ('queued', 'errored') AND resets >= 2 LIMIT :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT id, queue FROM stowhand_jobs INDEXED BY stowhand_jobs_running WHERE state = 'processing' LIMIT :most
    )
    UNION ALL
    SELECT * FROM (
        SELECT id, queue FROM stowhand_jobs INDEXED BY stowhand_jobs_failed WHERE state = 'failed' LIMIT :most
    )
    LIMIT :most
)

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

-- name: longest_held
SELECT worker, jobs, {head} FROM (
    SELECT id AS held_id, worker AS holder, count(*) OVER (PARTITION BY worker) AS jobs,
        row_number() OVER (PARTITION BY worker ORDER BY started_at, id) AS place
    FROM (
        SELECT id, worker, started_at FROM stowhand_jobs INDEXED BY stowhand_jobs_running
        WHERE state = 'processing' LIMIT :most
    )
) JOIN stowhand_live ON id = held_id
WHERE place <= :each ORDER BY holder, place

-- name: app_versions
SELECT version, since FROM stowhand_app_versions ORDER BY since, version

-- name: app_version_seen
UPDATE stowhand_app_versions SET seen_at = :now WHERE version = :version AND seen_at >= :now - :gone

-- name: app_version_new
INSERT INTO stowhand_app_versions (version, since, seen_at) VALUES (:version, :now, :now)
ON CONFLICT (version, since) DO NOTHING
