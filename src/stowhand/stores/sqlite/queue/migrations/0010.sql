-- What attempts leave that did not complete: the last ten of a job. Programs of version 9 write none.
CREATE TABLE stowhand_tries (
    job_id INTEGER NOT NULL,
    place INTEGER NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    worker TEXT,
    started_at INTEGER,
    ended_at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    error_class TEXT,
    error TEXT,
    PRIMARY KEY (job_id, place)
) WITHOUT ROWID;

-- Who held it last; and the round of the entries that its attempts will leave, NULL for the first.
ALTER TABLE stowhand_jobs ADD COLUMN last_worker TEXT;
ALTER TABLE stowhand_jobs ADD COLUMN round INTEGER;
ALTER TABLE stowhand_history ADD COLUMN last_worker TEXT;

-- They go with their job, whatever statement deletes it. A job that completes at its first attempt pays for a comparison.
CREATE TRIGGER stowhand_job_forgotten AFTER DELETE ON stowhand_jobs
WHEN (OLD.last_worker IS NOT NULL OR OLD.state = 'failed')
    AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = OLD.id)
BEGIN
    DELETE FROM stowhand_tries WHERE job_id = OLD.id;
END;

CREATE TRIGGER stowhand_past_forgotten AFTER DELETE ON stowhand_history
WHEN NOT EXISTS (SELECT 1 FROM stowhand_jobs WHERE id = OLD.id)
BEGIN
    DELETE FROM stowhand_tries WHERE job_id = OLD.id;
END;

DROP VIEW stowhand_live;
DROP VIEW stowhand_past;

CREATE VIEW stowhand_live AS
SELECT id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, NULL AS result,
    coalesce(worker, last_worker) AS last_worker
FROM stowhand_jobs;

CREATE VIEW stowhand_past AS
SELECT id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, NULL AS worker, cancel_requested, result,
    last_worker
FROM stowhand_history;
