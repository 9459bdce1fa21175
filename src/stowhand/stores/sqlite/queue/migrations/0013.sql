-- How far a running job is, as its handler says: NULL where it says nothing. It is kept over retries, and cleared at the end.
ALTER TABLE stowhand_jobs ADD COLUMN progress REAL;
ALTER TABLE stowhand_jobs ADD COLUMN progress_text TEXT;

DROP VIEW stowhand_live;
DROP VIEW stowhand_past;

CREATE VIEW stowhand_live AS
SELECT id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, NULL AS result,
    coalesce(worker, last_worker) AS last_worker, progress, progress_text
FROM stowhand_jobs;

CREATE VIEW stowhand_past AS
SELECT id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, NULL AS worker, cancel_requested, result,
    last_worker, NULL AS progress, NULL AS progress_text
FROM stowhand_history;
