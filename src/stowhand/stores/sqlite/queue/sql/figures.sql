-- Figures about the jobs without reading them all: from indexes that hold what is asked. Each question reads a bounded
-- number of entries.

-- name: waiting_tasks
SELECT task, count(*), sum(run_at <= :now) FROM (
    SELECT task, run_at FROM (
        SELECT task, run_at FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
        WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2 LIMIT :most
    )
    UNION ALL
    SELECT task, run_at FROM (
        SELECT task, run_at FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 LIMIT :most
    )
    UNION ALL
    SELECT task, run_at FROM (
        SELECT task, run_at FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
        WHERE state IN ('queued', 'errored') AND resets >= 2 LIMIT :few
    )
) GROUP BY task

-- name: waiting_queues
SELECT queue, count(*), sum(run_at <= :now) FROM (
    SELECT queue, run_at FROM (
        SELECT queue, run_at FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 LIMIT :most
    )
    UNION ALL
    SELECT queue, run_at FROM (
        SELECT queue, run_at FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
        WHERE state IN ('queued', 'errored') AND resets >= 2 LIMIT :few
    ) WHERE queue IS NOT NULL
) GROUP BY queue

-- At least as many ids as there are live jobs. (Each from its end of the index: both at once read all of it.)
-- name: live_ids
SELECT coalesce((SELECT max(id) FROM stowhand_jobs) - (SELECT min(id) FROM stowhand_jobs) + 1, 0)

-- The same as waiting_tasks and waiting_queues, of all there are: without LIMIT groups are read in the order of the index,
-- which takes a third of the time.
-- name: all_waiting_tasks
SELECT task, sum(jobs), sum(due) FROM (
    SELECT task, count(*) AS jobs, sum(run_at <= :now) AS due FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
    WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2 GROUP BY task
    UNION ALL
    SELECT task, count(*), sum(run_at <= :now) FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
    WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 GROUP BY queue, task
    UNION ALL
    SELECT task, count(*), sum(run_at <= :now) FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
    WHERE state IN ('queued', 'errored') AND resets >= 2 GROUP BY task
) GROUP BY task

-- name: all_waiting_queues
SELECT queue, sum(jobs), sum(due) FROM (
    SELECT queue, count(*) AS jobs, sum(run_at <= :now) AS due FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
    WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 GROUP BY queue
    UNION ALL
    SELECT queue, count(*), sum(run_at <= :now) FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
    WHERE state IN ('queued', 'errored') AND resets >= 2 AND queue IS NOT NULL GROUP BY queue
) GROUP BY queue

-- name: paused
SELECT queue, since FROM stowhand_paused ORDER BY queue

-- Tasks that are paused.
-- name: pauses
SELECT task, since FROM stowhand_pauses ORDER BY task

-- name: errored
SELECT task, queue, count(*) FROM (
    SELECT task, queue FROM stowhand_jobs INDEXED BY stowhand_jobs_errored WHERE state = 'errored' LIMIT :most
) GROUP BY task, queue

-- name: running
SELECT task, queue, worker, count(*) FROM (
    SELECT task, queue, worker FROM stowhand_jobs INDEXED BY stowhand_jobs_running WHERE state = 'processing' LIMIT :few
) GROUP BY task, queue, worker

-- The newest; how many there are in all is another question.
-- name: failed
SELECT task, queue, count(*) FROM (
    SELECT task, queue FROM stowhand_jobs INDEXED BY stowhand_jobs_failed
    WHERE state = 'failed' ORDER BY finished_at DESC LIMIT :few
) GROUP BY task, queue

-- The first job of each task and priority (of each queue, too) is the oldest of it: a backlog costs a few steps. Each step
-- compares one column: of (a, b) > (x, y) SQLite's search uses the first alone, and reads all that has the same one.
-- name: due_heads
-- Jobs that were due before, and are not paused; the first of each task and priority, and of each queue. ``held``: also those
-- whose queue is busy.
WITH RECURSIVE free (task, priority, run_at, id) AS (
    SELECT * FROM (
        SELECT task, priority, run_at, id FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
        WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2
        ORDER BY task, priority, run_at LIMIT 1
    )
    UNION ALL
    SELECT job.task, job.priority, job.run_at, job.id FROM free JOIN stowhand_jobs AS job ON job.id = coalesce((
        SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
        WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2
            AND task = free.task AND priority > free.priority
        ORDER BY priority, run_at LIMIT 1
    ), (
        SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_ready
        WHERE state IN ('queued', 'errored') AND queue IS NULL AND resets < 2 AND task > free.task
        ORDER BY task, priority, run_at LIMIT 1
    ))
    LIMIT 2000
), serial (queue, task, priority, run_at, id) AS (
    SELECT * FROM (
        SELECT queue, task, priority, run_at, id FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2
        ORDER BY queue, task, priority, run_at LIMIT 1
    )
    UNION ALL
    SELECT job.queue, job.task, job.priority, job.run_at, job.id FROM serial JOIN stowhand_jobs AS job ON job.id = coalesce((
        SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2
            AND queue = serial.queue AND task = serial.task AND priority > serial.priority
        ORDER BY priority, run_at LIMIT 1
    ), (
        SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2
            AND queue = serial.queue AND task > serial.task
        ORDER BY task, priority, run_at LIMIT 1
    ), (
        SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_serial
        WHERE state IN ('queued', 'errored') AND queue IS NOT NULL AND resets < 2 AND queue > serial.queue
        ORDER BY queue, task, priority, run_at LIMIT 1
    ))
    LIMIT 2000
)
SELECT id, run_at FROM (
    SELECT NULL AS queue, task, run_at, id FROM free
    UNION ALL
    SELECT queue, task, run_at, id FROM serial
    UNION ALL
    SELECT * FROM (
        SELECT queue, task, run_at, id FROM stowhand_jobs INDEXED BY stowhand_jobs_suspect
        WHERE state IN ('queued', 'errored') AND resets >= 2 LIMIT 2000
    )
) WHERE (queue IS NULL OR queue NOT IN (SELECT queue FROM stowhand_paused))
    AND task NOT IN (SELECT task FROM stowhand_pauses)
    AND run_at < :before
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
    AND (:held OR queue IS NULL OR queue NOT IN (
        SELECT queue FROM stowhand_jobs INDEXED BY stowhand_jobs_one_per_queue WHERE state = 'processing' AND queue IS NOT NULL
    ))
ORDER BY run_at, id LIMIT :limit
