-- The job that is enqueued when another has failed for good, as JSON; NULL: none. The history has it for jobs that are tried again
-- after they were canceled.
ALTER TABLE stowhand_jobs ADD COLUMN on_failure TEXT;
ALTER TABLE stowhand_history ADD COLUMN on_failure TEXT;

-- Jobs that have failed and of which nobody has told yet. By a trigger, so that no statement forgets it: whoever fails a job tells
-- of it in the same transaction, and of what a program of version 11 or a person has failed, the next sweep. (No JSON function
-- here: many builds of SQLite refuse those to connections that do not trust a schema.)
CREATE TABLE stowhand_untold (
    id INTEGER PRIMARY KEY
);

CREATE TRIGGER stowhand_job_failed AFTER UPDATE OF state ON stowhand_jobs
WHEN NEW.on_failure IS NOT NULL AND NEW.state = 'failed' AND OLD.state <> 'failed'
BEGIN
    INSERT OR IGNORE INTO stowhand_untold (id) VALUES (NEW.id);
END;
