-- The queue inside one SQLite file, which may be the application's own: every name begins with stowhand_, and the
-- file's application_id and user_version are left to the application.
-- No CHECK uses a JSON function: many builds of SQLite refuse those to connections that do not trust a schema.
-- Moments are whole microseconds since 1970, UTC. Lease deadlines are microseconds of the monotonic clock of one boot.

CREATE TABLE stowhand_schema (
    version INTEGER PRIMARY KEY,
    -- 1: programs that know only older versions must not touch the file any more.
    breaking INTEGER NOT NULL DEFAULT 0,
    applied_at INTEGER NOT NULL
);

-- What may still run, and what failed: keys and people still address that.
CREATE TABLE stowhand_jobs (
    -- AUTOINCREMENT: an id that moved to the history, or was removed, is never given again.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    queue TEXT,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    resets INTEGER NOT NULL DEFAULT 0,
    max_resets INTEGER,
    key TEXT,
    flags TEXT,
    last_error TEXT,
    revision INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    worker TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    loses_retries TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    token TEXT,
    settled_token TEXT,
    lease_boot TEXT,
    lease_until INTEGER,
    CONSTRAINT state_is_live CHECK (state IN ('queued', 'errored', 'processing', 'failed')),
    CONSTRAINT token_iff_processing CHECK ((state = 'processing') = (token IS NOT NULL)),
    CONSTRAINT lease_iff_processing CHECK ((state = 'processing') = (lease_until IS NOT NULL AND lease_boot IS NOT NULL)),
    CONSTRAINT settled_iff_not_processing CHECK (token IS NULL OR settled_token IS NULL),
    CONSTRAINT finished_iff_failed CHECK ((state = 'failed') = (finished_at IS NOT NULL)),
    CONSTRAINT attempts_within_maximum CHECK (attempts BETWEEN 0 AND max_attempts),
    CONSTRAINT at_least_one_attempt CHECK (max_attempts BETWEEN 1 AND 2147483647),
    CONSTRAINT resets_not_negative CHECK (resets >= 0 AND (max_resets IS NULL OR max_resets >= 0)),
    CONSTRAINT priority_has_32_bits CHECK (priority BETWEEN -2147483648 AND 2147483647),
    CONSTRAINT run_at_is_a_date CHECK (run_at BETWEEN -62135596800000000 AND 253402300799999999),
    CONSTRAINT loses_retries_is_known CHECK (loses_retries IN ('replaced', 'removed')),
    -- SQLite keeps a value of any type in a column of any type: one such row would stop everybody who reads it.
    CONSTRAINT task_is_text CHECK (typeof(task) = 'text'),
    CONSTRAINT payload_is_text CHECK (typeof(payload) = 'text'),
    CONSTRAINT queue_is_text CHECK (queue IS NULL OR typeof(queue) = 'text'),
    CONSTRAINT key_is_text CHECK (key IS NULL OR typeof(key) = 'text'),
    CONSTRAINT flags_are_an_array CHECK (flags IS NULL OR (typeof(flags) = 'text' AND flags GLOB '[[]*]')),
    CONSTRAINT attempts_are_whole CHECK (typeof(attempts) = 'integer' AND typeof(max_attempts) = 'integer'),
    CONSTRAINT resets_are_whole CHECK (
        typeof(resets) = 'integer' AND (max_resets IS NULL OR typeof(max_resets) = 'integer')
    ),
    CONSTRAINT priority_is_whole CHECK (typeof(priority) = 'integer'),
    CONSTRAINT epoch_is_whole CHECK (typeof(epoch) = 'integer'),
    CONSTRAINT run_at_is_whole CHECK (typeof(run_at) = 'integer'),
    CONSTRAINT created_at_is_a_date CHECK (
        typeof(created_at) = 'integer' AND created_at BETWEEN -62135596800000000 AND 253402300799999999
    ),
    CONSTRAINT updated_at_is_a_date CHECK (
        typeof(updated_at) = 'integer' AND updated_at BETWEEN -62135596800000000 AND 253402300799999999
    )
);

CREATE UNIQUE INDEX stowhand_jobs_key ON stowhand_jobs (key) WHERE key IS NOT NULL;

-- A waiting job is in exactly one of these three. Task first: a million jobs of tasks that a worker lacks are never
-- walked over. Priority before run_at: so is a million jobs of one priority that are not due.
CREATE INDEX stowhand_jobs_ready ON stowhand_jobs (task, priority, run_at, id)
    WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2;
CREATE INDEX stowhand_jobs_serial ON stowhand_jobs (queue, task, priority, run_at, id)
    WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2;
CREATE INDEX stowhand_jobs_suspect ON stowhand_jobs (priority, run_at, id)
    WHERE state IN ('queued', 'errored') AND resets >= 2;

CREATE INDEX stowhand_jobs_running ON stowhand_jobs (token) WHERE state = 'processing';
-- The promise that a queue is serial, as something that cannot be broken.
CREATE UNIQUE INDEX stowhand_jobs_one_per_queue ON stowhand_jobs (queue)
    WHERE state = 'processing' AND queue IS NOT NULL;

-- The next job of each (queue, task), so that a claim looks at as many rows as it takes, however many queues there
-- are and however long they are. A head is looked for again only when recheck_at has come:
--   priority, run_at, id   the first job that was due when last looked; NULL: none was
--   recheck_at             when a better one may be due; NULL: not before something changes
CREATE TABLE stowhand_heads (
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    busy INTEGER NOT NULL,
    priority INTEGER,
    run_at INTEGER,
    id INTEGER,
    recheck_at INTEGER,
    PRIMARY KEY (queue, task)
) WITHOUT ROWID;

CREATE INDEX stowhand_heads_free ON stowhand_heads (task, priority, run_at, id, queue)
    WHERE busy = 0 AND id IS NOT NULL;
CREATE INDEX stowhand_heads_recheck ON stowhand_heads (recheck_at) WHERE busy = 0 AND recheck_at IS NOT NULL;

-- Heads are kept by triggers, so that no statement, ours or a person's, can forget them.
CREATE TRIGGER stowhand_head_inserted AFTER INSERT ON stowhand_jobs WHEN NEW.queue IS NOT NULL
BEGIN
    INSERT INTO stowhand_heads (queue, task, busy, recheck_at)
    SELECT NEW.queue, NEW.task, EXISTS (
        SELECT 1 FROM stowhand_jobs WHERE queue = NEW.queue AND state = 'processing'
    ), NEW.run_at
    WHERE true
    ON CONFLICT (queue, task) DO UPDATE SET recheck_at = excluded.recheck_at
    WHERE recheck_at IS NULL OR recheck_at > excluded.recheck_at;
END;

CREATE TRIGGER stowhand_head_updated
AFTER UPDATE OF state, queue, task, priority, run_at, resets ON stowhand_jobs
WHEN OLD.queue IS NOT NULL OR NEW.queue IS NOT NULL
BEGIN
    UPDATE stowhand_heads SET busy = EXISTS (
        SELECT 1 FROM stowhand_jobs WHERE queue = OLD.queue AND state = 'processing'
    ) WHERE queue = OLD.queue AND OLD.state <> NEW.state;
    UPDATE stowhand_heads SET recheck_at = -62135596800000000 WHERE queue = OLD.queue AND task = OLD.task;
    INSERT INTO stowhand_heads (queue, task, busy, recheck_at)
    SELECT NEW.queue, NEW.task, EXISTS (
        SELECT 1 FROM stowhand_jobs WHERE queue = NEW.queue AND state = 'processing'
    ), -62135596800000000
    WHERE NEW.queue IS NOT NULL AND NEW.state IN ('queued', 'errored')
    ON CONFLICT (queue, task) DO UPDATE SET recheck_at = excluded.recheck_at;
END;

CREATE TRIGGER stowhand_head_deleted AFTER DELETE ON stowhand_jobs WHEN OLD.queue IS NOT NULL
BEGIN
    UPDATE stowhand_heads SET busy = 0 WHERE queue = OLD.queue AND OLD.state = 'processing';
    UPDATE stowhand_heads SET recheck_at = -62135596800000000 WHERE queue = OLD.queue AND task = OLD.task;
END;

-- What completed or was canceled. Hot and cold apart: a claim never pays for what is over.
CREATE TABLE stowhand_history (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL,
    queue TEXT,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    resets INTEGER NOT NULL,
    max_resets INTEGER,
    key TEXT,
    flags TEXT,
    last_error TEXT,
    revision INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    loses_retries TEXT,
    epoch INTEGER NOT NULL,
    settled_token TEXT,
    result TEXT,
    CONSTRAINT state_is_over CHECK (state IN ('completed', 'canceled'))
);

CREATE INDEX stowhand_history_finished ON stowhand_history (finished_at);

-- Tokens that may never claim again: the reply to their claim was lost.
CREATE TABLE stowhand_abandoned (
    token TEXT PRIMARY KEY,
    abandoned_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Jobs as everybody may see them: no tokens.
CREATE VIEW stowhand_live AS
SELECT id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, NULL AS result
FROM stowhand_jobs;

CREATE VIEW stowhand_past AS
SELECT id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, NULL AS worker, cancel_requested, result
FROM stowhand_history;
