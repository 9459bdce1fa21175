-- The version of the application, as a worker says it; NULL: it does not.
ALTER TABLE stowhand_workers ADD COLUMN app_version TEXT;

-- When the first worker of a version came up, and when one was last seen: once more after it was gone for a while.
CREATE TABLE stowhand_app_versions (
    version TEXT NOT NULL,
    since INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (version, since)
) WITHOUT ROWID;

CREATE INDEX stowhand_app_versions_seen ON stowhand_app_versions (seen_at);
