-- Queues that are paused, the roll of workers, and failed jobs by their age. Programs of version 3 need none of it; they
-- obey a pause, because a paused queue's heads are busy, but for jobs in quarantine.

CREATE TABLE stowhand_paused (
    queue TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    CONSTRAINT queue_is_text CHECK (typeof(queue) = 'text' AND length(queue) BETWEEN 1 AND 128)
) WITHOUT ROWID;

-- For people only: no claim and no lease looks here.
CREATE TABLE stowhand_workers (
    name TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    tasks TEXT,
    concurrency INTEGER NOT NULL,
    stopping INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX stowhand_workers_seen ON stowhand_workers (seen_at);

CREATE INDEX stowhand_jobs_failed ON stowhand_jobs (finished_at) WHERE state = 'failed';

-- The heads' triggers once more: a queue is busy while a job of it runs, or while it is paused.
DROP TRIGGER stowhand_head_inserted;
DROP TRIGGER stowhand_head_updated;
DROP TRIGGER stowhand_head_deleted;

CREATE TRIGGER stowhand_head_inserted AFTER INSERT ON stowhand_jobs WHEN NEW.queue IS NOT NULL
BEGIN
    INSERT INTO stowhand_heads (queue, task, busy, recheck_at)
    SELECT NEW.queue, NEW.task, EXISTS (
        SELECT 1 FROM stowhand_jobs WHERE queue = NEW.queue AND state = 'processing'
    ) OR EXISTS (SELECT 1 FROM stowhand_paused WHERE queue = NEW.queue), NEW.run_at
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
    ) OR EXISTS (SELECT 1 FROM stowhand_paused WHERE queue = OLD.queue)
    WHERE queue = OLD.queue AND OLD.state <> NEW.state;
    UPDATE stowhand_heads SET recheck_at = -62135596800000000 WHERE queue = OLD.queue AND task = OLD.task;
    INSERT INTO stowhand_heads (queue, task, busy, recheck_at)
    SELECT NEW.queue, NEW.task, EXISTS (
        SELECT 1 FROM stowhand_jobs WHERE queue = NEW.queue AND state = 'processing'
    ) OR EXISTS (SELECT 1 FROM stowhand_paused WHERE queue = NEW.queue), -62135596800000000
    WHERE NEW.queue IS NOT NULL AND NEW.state IN ('queued', 'errored')
    ON CONFLICT (queue, task) DO UPDATE SET recheck_at = excluded.recheck_at;
END;

CREATE TRIGGER stowhand_head_deleted AFTER DELETE ON stowhand_jobs WHEN OLD.queue IS NOT NULL
BEGIN
    UPDATE stowhand_heads SET busy = EXISTS (SELECT 1 FROM stowhand_paused WHERE queue = OLD.queue)
    WHERE queue = OLD.queue AND OLD.state = 'processing';
    UPDATE stowhand_heads SET recheck_at = -62135596800000000 WHERE queue = OLD.queue AND task = OLD.task;
END;

CREATE TRIGGER stowhand_queue_paused AFTER INSERT ON stowhand_paused
BEGIN
    UPDATE stowhand_heads SET busy = 1 WHERE queue = NEW.queue;
END;

CREATE TRIGGER stowhand_queue_resumed AFTER DELETE ON stowhand_paused
BEGIN
    UPDATE stowhand_heads SET busy = EXISTS (
        SELECT 1 FROM stowhand_jobs WHERE queue = OLD.queue AND state = 'processing'
    ) WHERE queue = OLD.queue;
END;
