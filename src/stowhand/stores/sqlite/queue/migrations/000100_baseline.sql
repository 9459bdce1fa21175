-- breaking
-- The whole queue inside one SQLite file, which may be the application's own: every name begins with stowhand_, and the
-- file's application_id and user_version belong to the application.
-- Until the first release this text is edited in place; a file made from another version of it is refused.
-- No CHECK or trigger uses a JSON function: many builds of SQLite refuse those to connections that do not trust the schema.
-- Times are whole microseconds since 1970, UTC. Lease deadlines are microseconds of the monotonic clock of one boot.

-- Applied migrations.
CREATE TABLE stowhand_schema (
    version INTEGER PRIMARY KEY,
    -- 1: programs that know only earlier migrations cannot use the file.
    breaking INTEGER NOT NULL DEFAULT 0,
    applied_at INTEGER NOT NULL,
    fingerprint TEXT NOT NULL
);

-- Live jobs: those that may still run, and failed ones, which still hold their keys and can be retried.
CREATE TABLE stowhand_jobs (
    -- AUTOINCREMENT: the id of a job that was removed or moved to the history is never used again.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    -- The serial key; or, for a job of a limit with keys, the name of the limit, a tab, and the key.
    serial TEXT,
    -- NULL: the queue `default`.
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
    -- The worker that held the job last.
    last_worker TEXT,
    -- The round of the next entries in stowhand_tries. NULL: the first round, without any entry yet.
    round INTEGER,
    -- The revision at which another job last replaced this one under its key. NULL: never.
    replaced INTEGER,
    -- The job that is enqueued when this one fails permanently, as JSON. NULL: none.
    on_failure TEXT,
    -- The progress that the handler reports. Kept across retries, cleared at the end.
    progress REAL,
    progress_text TEXT,
    -- The job is canceled at this time unless a worker has claimed it. NULL: no expiry, or an attempt has started.
    expires_at INTEGER,
    -- While the job is processing: its slot in its key, and its slot in the concurrency limit of its task. Otherwise the
    -- last ones.
    key_slot INTEGER NOT NULL DEFAULT 1,
    limit_name TEXT,
    limit_slot INTEGER,
    -- What a workflow waits for: `event:NAME`, `children:STEP` or `time:STEP`. While it runs: the last wait.
    waits_for TEXT,
    -- The workflow that has created the job, and the row of stowhand_steps that its end writes. A child that was created
    -- anew takes over the row of the earlier one, whose step is NULL then.
    parent_id INTEGER,
    parent_step TEXT,
    parent_place INTEGER,
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
    -- SQLite stores a value of any type in a column of any type, and one wrong value would fail every read of its row.
    CONSTRAINT task_is_text CHECK (typeof(task) = 'text'),
    CONSTRAINT payload_is_text CHECK (typeof(payload) = 'text'),
    CONSTRAINT serial_is_text CHECK (serial IS NULL OR typeof(serial) = 'text'),
    CONSTRAINT queue_is_text CHECK (queue IS NULL OR (typeof(queue) = 'text' AND queue NOT IN ('', 'default'))),
    CONSTRAINT queue_without_comma_and_outer_blanks CHECK (instr(queue, ',') = 0 AND queue = trim(queue)),
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

-- A waiting job is in exactly one of these four indexes. The task is first, so that a claim skips all jobs of tasks that the
-- worker does not have. The priority is before run_at, so that a claim skips all jobs of a priority that are not due.
CREATE INDEX stowhand_jobs_ready ON stowhand_jobs (task, priority, run_at, id)
    WHERE queue IS NULL AND state IN ('queued', 'errored') AND serial IS NULL AND resets < 2;
-- Jobs outside the queue `default` have their own index, so that a claim of `default` does not read them.
CREATE INDEX stowhand_jobs_queued ON stowhand_jobs (queue, task, priority, run_at, id)
    WHERE queue IS NOT NULL AND state IN ('queued', 'errored') AND serial IS NULL AND resets < 2;
-- The queue is the last column, for counts only.
CREATE INDEX stowhand_jobs_serial ON stowhand_jobs (serial, task, priority, run_at, id, queue)
    WHERE state IN ('queued', 'errored') AND serial IS NOT NULL AND resets < 2;
CREATE INDEX stowhand_jobs_suspect ON stowhand_jobs (priority, run_at, id)
    WHERE state IN ('queued', 'errored') AND resets >= 2;

CREATE INDEX stowhand_jobs_running ON stowhand_jobs (token) WHERE state = 'processing';
-- A slot of a key is held by one job, while that job is processing. A serial key has one slot.
CREATE UNIQUE INDEX stowhand_jobs_key_slots ON stowhand_jobs (serial, key_slot)
    WHERE state = 'processing' AND serial IS NOT NULL;

-- A slot of a limit is held by one job, while that job is processing.
CREATE UNIQUE INDEX stowhand_jobs_slots ON stowhand_jobs (limit_name, limit_slot)
    WHERE state = 'processing' AND limit_slot IS NOT NULL;

-- Partial indexes, so that they cost other jobs nothing.
CREATE INDEX stowhand_jobs_waiting ON stowhand_jobs (waits_for) WHERE waits_for IS NOT NULL AND state = 'queued';
CREATE INDEX stowhand_jobs_children ON stowhand_jobs (parent_id) WHERE parent_id IS NOT NULL;

CREATE INDEX stowhand_jobs_expiring ON stowhand_jobs (expires_at) WHERE expires_at IS NOT NULL;

-- For administrative reads. A job that never fails is in neither index.
CREATE INDEX stowhand_jobs_failed ON stowhand_jobs (finished_at) WHERE state = 'failed';
CREATE INDEX stowhand_jobs_troubled ON stowhand_jobs (state, task, queue) WHERE state IN ('errored', 'failed');

-- Paused serial keys.
CREATE TABLE stowhand_paused (
    serial TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    CONSTRAINT serial_is_text CHECK (typeof(serial) = 'text' AND length(serial) BETWEEN 1 AND 257)
) WITHOUT ROWID;

-- Paused tasks and queues.
CREATE TABLE stowhand_pauses (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (kind, name),
    CONSTRAINT kind_is_known CHECK (kind IN ('task', 'queue')),
    CONSTRAINT name_is_text CHECK (typeof(name) = 'text' AND length(name) BETWEEN 1 AND 128)
) WITHOUT ROWID;

-- The queue of each task, as its latest worker declared it, for producers that do not know the task. The queue `default`
-- has no row.
CREATE TABLE stowhand_task_queues (
    task TEXT PRIMARY KEY,
    queue TEXT NOT NULL
) WITHOUT ROWID;

-- The limits of tasks, by name (limits.py). declared and override are jobs/task_limits.py: LimitValues in JSON; a value of
-- the override takes precedence. key_concurrency is that value in effect, for triggers. next_start: the start of the next
-- job if all starts were evenly spaced; NULL: none has started. No job starts before held_until.
CREATE TABLE stowhand_limits (
    name TEXT PRIMARY KEY,
    declared TEXT NOT NULL,
    override TEXT NOT NULL DEFAULT '{}',
    key_concurrency INTEGER,
    next_start INTEGER,
    held_until INTEGER
) WITHOUT ROWID;

-- The names of the limits of each task that has some.
CREATE TABLE stowhand_task_limits (
    task TEXT PRIMARY KEY,
    concurrency TEXT,
    rate TEXT,
    -- The limit with keys, and the argument that is the key.
    key_limit TEXT,
    key TEXT,
    -- 1: the keys take turns.
    fair INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Keys of limits that have started jobs at a rate, take turns, or are held: by name, as in stowhand_jobs.serial. served_at:
-- the last claim of a key that takes turns.
CREATE TABLE stowhand_limit_keys (
    name TEXT PRIMARY KEY,
    next_start INTEGER,
    held_until INTEGER,
    served_at INTEGER
) WITHOUT ROWID;

CREATE INDEX stowhand_limit_keys_served ON stowhand_limit_keys (served_at) WHERE served_at IS NOT NULL;

-- The head, that is the next job, of each (serial, task, queue). With it a claim reads only as many rows as it claims,
-- however many keys there are and however many jobs each has. A head is computed again when recheck_at is reached.
--   busy                   1: no more jobs of the key may run (of a serial key one), or the key is paused
--   priority, run_at, id   the first job that was due when the head was computed; NULL: no job was due. If the key takes
--                          turns, run_at is not before its last claim.
--   recheck_at             the time at which a better job may be due; NULL: not before a change
CREATE TABLE stowhand_heads (
    serial TEXT NOT NULL,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    busy INTEGER NOT NULL,
    priority INTEGER,
    run_at INTEGER,
    id INTEGER,
    recheck_at INTEGER,
    PRIMARY KEY (serial, task, queue)
) WITHOUT ROWID;

CREATE INDEX stowhand_heads_free ON stowhand_heads (task, queue, priority, run_at, id, serial)
    WHERE busy = 0 AND id IS NOT NULL;
CREATE INDEX stowhand_heads_recheck ON stowhand_heads (recheck_at) WHERE busy = 0 AND recheck_at IS NOT NULL;

-- Triggers maintain the heads, so that every statement updates them, including those of users.
CREATE TRIGGER stowhand_head_inserted AFTER INSERT ON stowhand_jobs WHEN NEW.serial IS NOT NULL
BEGIN
    INSERT INTO stowhand_heads (serial, task, queue, busy, recheck_at)
    SELECT NEW.serial, NEW.task, coalesce(NEW.queue, 'default'), (
        SELECT count(*) FROM stowhand_jobs WHERE serial = NEW.serial AND state = 'processing'
    ) >= CASE WHEN instr(NEW.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(NEW.serial, 1, instr(NEW.serial, char(9)) - 1)
    ), 9223372036854775807) END OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = NEW.serial), NEW.run_at
    WHERE true
    ON CONFLICT (serial, task, queue) DO UPDATE SET recheck_at = excluded.recheck_at
    WHERE recheck_at IS NULL OR recheck_at > excluded.recheck_at;
END;

CREATE TRIGGER stowhand_head_updated
AFTER UPDATE OF state, serial, task, queue, priority, run_at, resets ON stowhand_jobs
WHEN OLD.serial IS NOT NULL OR NEW.serial IS NOT NULL
BEGIN
    UPDATE stowhand_heads SET busy = (
        SELECT count(*) FROM stowhand_jobs WHERE serial = OLD.serial AND state = 'processing'
    ) >= CASE WHEN instr(OLD.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(OLD.serial, 1, instr(OLD.serial, char(9)) - 1)
    ), 9223372036854775807) END OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = OLD.serial)
    WHERE serial = OLD.serial AND OLD.state <> NEW.state;
    UPDATE stowhand_heads SET busy = (
        SELECT count(*) FROM stowhand_jobs WHERE serial = NEW.serial AND state = 'processing'
    ) >= CASE WHEN instr(NEW.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(NEW.serial, 1, instr(NEW.serial, char(9)) - 1)
    ), 9223372036854775807) END OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = NEW.serial)
    WHERE serial = NEW.serial AND OLD.serial IS NOT NEW.serial;
    UPDATE stowhand_heads SET recheck_at = -62135596800000000
    WHERE serial = OLD.serial AND task = OLD.task AND queue = coalesce(OLD.queue, 'default');
    INSERT INTO stowhand_heads (serial, task, queue, busy, recheck_at)
    SELECT NEW.serial, NEW.task, coalesce(NEW.queue, 'default'), (
        SELECT count(*) FROM stowhand_jobs WHERE serial = NEW.serial AND state = 'processing'
    ) >= CASE WHEN instr(NEW.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(NEW.serial, 1, instr(NEW.serial, char(9)) - 1)
    ), 9223372036854775807) END OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = NEW.serial),
        -62135596800000000
    WHERE NEW.serial IS NOT NULL AND NEW.state IN ('queued', 'errored')
    ON CONFLICT (serial, task, queue) DO UPDATE SET recheck_at = excluded.recheck_at;
END;

CREATE TRIGGER stowhand_head_deleted AFTER DELETE ON stowhand_jobs WHEN OLD.serial IS NOT NULL
BEGIN
    UPDATE stowhand_heads SET busy = (
        SELECT count(*) FROM stowhand_jobs WHERE serial = OLD.serial AND state = 'processing'
    ) >= CASE WHEN instr(OLD.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(OLD.serial, 1, instr(OLD.serial, char(9)) - 1)
    ), 9223372036854775807) END OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = OLD.serial)
    WHERE serial = OLD.serial AND OLD.state = 'processing';
    UPDATE stowhand_heads SET recheck_at = -62135596800000000
    WHERE serial = OLD.serial AND task = OLD.task AND queue = coalesce(OLD.queue, 'default');
END;

CREATE TRIGGER stowhand_queue_paused AFTER INSERT ON stowhand_paused
BEGIN
    UPDATE stowhand_heads SET busy = 1 WHERE serial = NEW.serial;
END;

CREATE TRIGGER stowhand_serial_resumed AFTER DELETE ON stowhand_paused
BEGIN
    UPDATE stowhand_heads SET busy = (
        SELECT count(*) FROM stowhand_jobs WHERE serial = OLD.serial AND state = 'processing'
    ) >= CASE WHEN instr(OLD.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(OLD.serial, 1, instr(OLD.serial, char(9)) - 1)
    ), 9223372036854775807) END WHERE serial = OLD.serial;
END;

CREATE TRIGGER stowhand_limit_changed AFTER UPDATE OF key_concurrency ON stowhand_limits
BEGIN
    UPDATE stowhand_heads SET busy = (
        SELECT count(*) FROM stowhand_jobs WHERE serial = stowhand_heads.serial AND state = 'processing'
    ) >= CASE WHEN instr(stowhand_heads.serial, char(9)) = 0 THEN 1 ELSE coalesce((
        SELECT key_concurrency FROM stowhand_limits WHERE name = substr(stowhand_heads.serial, 1, instr(stowhand_heads.serial, char(9)) - 1)
    ), 9223372036854775807) END OR EXISTS (SELECT 1 FROM stowhand_paused WHERE serial = stowhand_heads.serial),
        recheck_at = -62135596800000000
    WHERE substr(serial, 1, length(NEW.name) + 1) = NEW.name || char(9);
END;

-- Completed and canceled jobs.
CREATE TABLE stowhand_history (
    id INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL,
    serial TEXT,
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
    last_worker TEXT,
    replaced INTEGER,
    -- Needed when a canceled job is retried.
    on_failure TEXT,
    parent_id INTEGER,
    CONSTRAINT state_is_over CHECK (state IN ('completed', 'canceled'))
);

CREATE INDEX stowhand_history_finished ON stowhand_history (finished_at);
-- A partial index, so that it costs other jobs nothing. Queries repeat its condition verbatim.
CREATE INDEX stowhand_history_flow ON stowhand_history (key, id) WHERE key >= 'flow:' AND key < 'flow;';
CREATE INDEX stowhand_history_canceled ON stowhand_history (id) WHERE state = 'canceled';
CREATE INDEX stowhand_history_children ON stowhand_history (parent_id) WHERE parent_id IS NOT NULL;

-- Recorded steps of workflows (protocols/workflows.py). Their rowids are in the order of recording.
--   place       the place of a child in its step; -1: the row that counts the children; 0: another step
--   value       JSON text. Without value, error and remaining, the row is a wait that has not ended.
--   until       the end of a wait
--   remaining   the number of children that have not ended
--   epoch       the claim whose attempt has recorded the step; 0: the end of a child
CREATE TABLE stowhand_steps (
    job_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    place INTEGER NOT NULL,
    value TEXT,
    error TEXT,
    until INTEGER,
    remaining INTEGER,
    epoch INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (job_id, name, place)
);

-- Events that were emitted, for all jobs (job_id = 0) or for one.
CREATE TABLE stowhand_events (
    name TEXT NOT NULL,
    job_id INTEGER NOT NULL DEFAULT 0,
    payload TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (name, job_id)
);

CREATE INDEX stowhand_events_at ON stowhand_events (at);

-- Tokens that may never claim again, because the reply to their claim was lost.
CREATE TABLE stowhand_abandoned (
    token TEXT PRIMARY KEY,
    abandoned_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The last ten failed attempts of each job.
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

-- Every statement that deletes a job also deletes its entries. A job has entries only if its row has a round.
CREATE TRIGGER stowhand_job_forgotten AFTER DELETE ON stowhand_jobs
WHEN (OLD.round IS NOT NULL OR OLD.last_worker IS NOT NULL OR OLD.state = 'failed')
    AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = OLD.id)
BEGIN
    DELETE FROM stowhand_tries WHERE job_id = OLD.id;
END;

CREATE TRIGGER stowhand_past_forgotten AFTER DELETE ON stowhand_history
WHEN NOT EXISTS (SELECT 1 FROM stowhand_jobs WHERE id = OLD.id)
BEGIN
    DELETE FROM stowhand_tries WHERE job_id = OLD.id;
END;

-- Permanently failed jobs whose on_failure job is not enqueued yet. A trigger adds them, whichever statement fails the
-- job. Our code enqueues the on_failure job in the same transaction; after a user's statement, the next sweep does.
CREATE TABLE stowhand_untold (
    id INTEGER PRIMARY KEY
);

CREATE TRIGGER stowhand_job_failed AFTER UPDATE OF state ON stowhand_jobs
WHEN NEW.on_failure IS NOT NULL AND NEW.state = 'failed' AND OLD.state <> 'failed'
BEGIN
    INSERT OR IGNORE INTO stowhand_untold (id) VALUES (NEW.id);
END;

-- The job that holds a key for a period: another enqueue within the period returns this job, even if it has completed.
CREATE TABLE stowhand_uniques (
    key TEXT NOT NULL PRIMARY KEY,
    job_id INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX stowhand_uniques_job ON stowhand_uniques (job_id);
CREATE INDEX stowhand_uniques_until ON stowhand_uniques (until);

-- A job that is deleted without having completed frees its key. For a running job, finish.py frees the key.
CREATE TRIGGER stowhand_key_freed AFTER DELETE ON stowhand_jobs
WHEN OLD.key IS NOT NULL AND OLD.state <> 'processing'
    AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = OLD.id AND state = 'completed')
BEGIN
    DELETE FROM stowhand_uniques WHERE job_id = OLD.id;
END;

-- Jobs without their tokens, which are secret.
CREATE VIEW stowhand_live AS
SELECT id, task, payload, state, coalesce(queue, 'default') AS queue, serial, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, NULL AS result,
    coalesce(worker, last_worker) AS last_worker, progress, progress_text, parent_id, waits_for
FROM stowhand_jobs;

CREATE VIEW stowhand_past AS
SELECT id, task, payload, state, coalesce(queue, 'default') AS queue, serial, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
    last_error, revision, created_at, updated_at, started_at, finished_at, NULL AS worker, cancel_requested, result,
    last_worker, NULL AS progress, NULL AS progress_text, parent_id, NULL AS waits_for
FROM stowhand_history;

-- Every item that any scheduler has registered, with the scheduler that last reported it and the time of that report.
-- spec_since is the time from which the item has its spec.
CREATE TABLE stowhand_crontab (
    identifier TEXT PRIMARY KEY,
    known_since INTEGER NOT NULL,
    last_tick INTEGER,
    spec TEXT NOT NULL,
    scheduled_by TEXT,
    scheduled_at INTEGER,
    spec_since INTEGER,
    CONSTRAINT identifier_is_text CHECK (typeof(identifier) = 'text' AND length(identifier) BETWEEN 1 AND 256)
) WITHOUT ROWID;

-- The ledger: one row, and so one job, for each tick of an item, regardless of the scheduler that writes it.
CREATE TABLE stowhand_ticks (
    identifier TEXT NOT NULL,
    tick INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    backfilled INTEGER NOT NULL,
    spec TEXT NOT NULL,
    scheduled_at INTEGER NOT NULL,
    PRIMARY KEY (identifier, tick)
) WITHOUT ROWID;

-- For pruning.
CREATE INDEX stowhand_ticks_by_time ON stowhand_ticks (tick);

-- Jobs of flows. Their steps are ordinary jobs. looked_at: the time of the last check whether a step is live or in the history.
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

-- Long attributes of a flow's job, such as the arguments of a parent's children, which are not copied into its steps.
CREATE TABLE stowhand_flow_lists (
    id TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    content TEXT NOT NULL
);

CREATE INDEX stowhand_flow_lists_job ON stowhand_flow_lists (job);

CREATE TRIGGER stowhand_flow_deleted AFTER DELETE ON stowhand_flow_jobs
BEGIN
    DELETE FROM stowhand_flow_lookups WHERE id = OLD.id;
    DELETE FROM stowhand_flow_lists WHERE job = OLD.id;
END;

-- The number of calls that a limiter has allowed in its window, and the jobs that wait for a later window.
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

-- Workers, for display only: claims and leases do not use this table.
CREATE TABLE stowhand_workers (
    name TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    tasks TEXT,
    concurrency INTEGER NOT NULL,
    stopping INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    -- The flags whose jobs the worker does not claim. NULL: a function decides at each claim.
    forbidden_flags TEXT DEFAULT '[]',
    -- The queues that the worker serves (NULL: all), and those that it excludes.
    queues TEXT,
    excluded_queues TEXT NOT NULL DEFAULT '[]',
    -- The version of the application. NULL: not reported.
    app_version TEXT,
    abandoned_threads INTEGER NOT NULL DEFAULT 0,
    -- 1: the worker's event loop is blocked.
    blocked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE INDEX stowhand_workers_seen ON stowhand_workers (seen_at);

-- The time at which the first worker of an application version started, and the time at which one was last seen. A version
-- that returns after an absence has another row.
CREATE TABLE stowhand_app_versions (
    version TEXT NOT NULL,
    since INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (version, since)
) WITHOUT ROWID;

CREATE INDEX stowhand_app_versions_seen ON stowhand_app_versions (seen_at);

-- Counts of ended jobs by minute and task, later by hour: one row for each run of a worker, until the rows are added up.
-- tally is a JSON object of numbers: outcomes, and the buckets of two histograms. writer is empty in rows that were added up.
CREATE TABLE stowhand_throughput (
    seconds INTEGER NOT NULL,
    begins INTEGER NOT NULL,
    task TEXT NOT NULL,
    writer TEXT NOT NULL,
    tally TEXT NOT NULL,
    PRIMARY KEY (seconds, begins, task, writer)
) WITHOUT ROWID;
