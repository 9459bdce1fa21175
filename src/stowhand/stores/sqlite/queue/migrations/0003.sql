-- What flows keep beside their steps, which are jobs like any other. Programs of version 2 need none of it.

-- looked_at: when it was last looked whether there is still a step of the job, live or in the history.
CREATE TABLE stowhand_flow_jobs (
    id TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    looked_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX stowhand_flow_jobs_looked_at ON stowhand_flow_jobs (looked_at);

CREATE TABLE stowhand_flow_lookups (
    flow TEXT NOT NULL,
    attribute TEXT NOT NULL,
    value TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (flow, attribute, value, id)
) WITHOUT ROWID;

CREATE INDEX stowhand_flow_lookups_id ON stowhand_flow_lookups (id);

CREATE TRIGGER stowhand_flow_deleted AFTER DELETE ON stowhand_flow_jobs
BEGIN
    DELETE FROM stowhand_flow_lookups WHERE id = OLD.id;
END;

-- What a limiter has let pass in its window, and whom it has told to wait for a later one.
CREATE TABLE stowhand_flow_limits (
    limiter TEXT NOT NULL,
    part TEXT NOT NULL,
    slot INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    PRIMARY KEY (limiter, part)
) WITHOUT ROWID;

CREATE TABLE stowhand_flow_waits (
    limiter TEXT NOT NULL,
    part TEXT NOT NULL,
    holder TEXT NOT NULL,
    ready_at INTEGER NOT NULL,
    PRIMARY KEY (limiter, part, holder)
) WITHOUT ROWID;

CREATE INDEX stowhand_flow_waits_ready_at ON stowhand_flow_waits (limiter, part, ready_at);

-- Partial, so that other jobs pay nothing. Queries repeat its condition word by word.
CREATE INDEX stowhand_history_flow ON stowhand_history (key, id) WHERE key >= 'flow:' AND key < 'flow;';
