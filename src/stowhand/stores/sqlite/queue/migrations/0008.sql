-- breaking
-- Older programs do not know a parent that waits for children without naming each, nor an attribute that is kept apart.

-- Long attributes of a job (what a parent's children are given), apart from its steps, which then do not carry them.
CREATE TABLE stowhand_flow_lists (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    content TEXT NOT NULL
);

CREATE INDEX stowhand_flow_lists_job ON stowhand_flow_lists (job);

CREATE TRIGGER stowhand_flow_forgotten AFTER DELETE ON stowhand_flow_jobs
BEGIN
    DELETE FROM stowhand_flow_lists WHERE job = OLD.id;
END;
