-- Recurring jobs. The crontab knows every item that any scheduler ever had; the ledger has one row, and so there is one
-- job, for each tick of an item, whoever schedules it. Programs of version 1 need neither.

CREATE TABLE stowhand_crontab (
    identifier TEXT PRIMARY KEY,
    known_since INTEGER NOT NULL,
    last_tick INTEGER,
    spec TEXT NOT NULL,
    CONSTRAINT identifier_is_text CHECK (typeof(identifier) = 'text' AND length(identifier) BETWEEN 1 AND 256)
) WITHOUT ROWID;

CREATE TABLE stowhand_ticks (
    identifier TEXT NOT NULL,
    tick INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    backfilled INTEGER NOT NULL,
    spec TEXT NOT NULL,
    scheduled_at INTEGER NOT NULL,
    PRIMARY KEY (identifier, tick)
) WITHOUT ROWID;

-- For the ledger's pruning.
CREATE INDEX stowhand_ticks_by_time ON stowhand_ticks (tick);
