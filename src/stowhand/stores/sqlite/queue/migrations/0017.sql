-- Which job last took a key for a period: a repeat within it gives that job, also when it has completed.
CREATE TABLE stowhand_uniques (
    key TEXT NOT NULL PRIMARY KEY,
    job_id INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX stowhand_uniques_job ON stowhand_uniques (job_id);

CREATE INDEX stowhand_uniques_until ON stowhand_uniques (until);

-- What goes without having completed frees its key. What a worker held is told apart where it ends (finish.py).
CREATE TRIGGER stowhand_key_freed AFTER DELETE ON stowhand_jobs
WHEN OLD.key IS NOT NULL AND OLD.state <> 'processing'
    AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = OLD.id AND state = 'completed')
BEGIN
    DELETE FROM stowhand_uniques WHERE job_id = OLD.id;
END;
