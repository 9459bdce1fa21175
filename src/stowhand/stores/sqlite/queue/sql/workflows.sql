-- Steps, waits, events and children of workflows. The caller holds the write lock, so that no attempt loses its lease, no
-- event is emitted and no child ends between two of these statements.

-- name: held_epochs
-- `leases` is [[id, token], …]. A step is recorded only under the lease that holds its job.
SELECT job.id, job.token, job.epoch FROM json_each(:leases) AS lease
CROSS JOIN stowhand_jobs AS job ON job.id = json_extract(lease.value, '$[0]')
WHERE job.token = json_extract(lease.value, '$[1]') AND job.state = 'processing'

-- name: record_step
-- The first value or error is kept. A wait that has not ended gets the value or the error.
INSERT INTO stowhand_steps (job_id, name, place, value, error, epoch, at) VALUES (?, ?, 0, ?, ?, ?, ?)
ON CONFLICT (job_id, name, place) DO UPDATE SET value = excluded.value, error = excluded.error, epoch = excluded.epoch
WHERE value IS NULL AND error IS NULL AND remaining IS NULL

-- name: steps
SELECT name, place, value, error, until, remaining, at FROM stowhand_steps WHERE job_id = :id ORDER BY rowid

-- name: start_wait
INSERT INTO stowhand_steps (job_id, name, place, until, epoch, at)
SELECT id, :step, 0, :until, epoch, :now FROM stowhand_jobs WHERE id = :id
ON CONFLICT (job_id, name, place) DO NOTHING

-- name: end_wait
UPDATE stowhand_steps SET value = :value
WHERE job_id = :id AND name = :step AND place = 0 AND value IS NULL AND error IS NULL

-- name: started_wait
SELECT until, value IS NOT NULL OR error IS NOT NULL FROM stowhand_steps
WHERE job_id = :id AND name = :step AND place = 0

-- name: has_children
SELECT 1 FROM stowhand_steps WHERE job_id = :id AND name = :step AND place = -1

-- name: forget_places
DELETE FROM stowhand_steps
WHERE job_id = :id AND name = :step AND place IN (SELECT value FROM json_each(:places))

-- name: detach_children
-- These failed children are created anew. A retry of one of them by hand records nothing any more.
UPDATE stowhand_jobs SET parent_step = NULL, parent_place = NULL
WHERE parent_id IS NOT NULL AND parent_id = :id AND parent_step = :step
    AND parent_place IN (SELECT value FROM json_each(:places))

-- name: count_children
INSERT INTO stowhand_steps (job_id, name, place, value, until, remaining, epoch, at)
SELECT id, :step, -1, :value, :until, :created, epoch, :now FROM stowhand_jobs WHERE id = :id
ON CONFLICT (job_id, name, place) DO UPDATE SET value = excluded.value, remaining = remaining + excluded.remaining
RETURNING until, remaining

-- name: insert_child
INSERT INTO stowhand_jobs (id, {inserted}, parent_id, parent_step, parent_place) VALUES (?, {inserted_values}, ?, ?, ?)

-- name: record_ends
-- `ends` is [[id, value, error], …]. Returns the steps of the children that end for the first time.
INSERT INTO stowhand_steps (job_id, name, place, value, error, epoch, at)
SELECT parent_id, parent_step, parent_place, json_extract(ended.value, '$[1]'), json_extract(ended.value, '$[2]'), 0, :now
FROM json_each(:ends) AS ended CROSS JOIN stowhand_jobs AS job ON job.id = json_extract(ended.value, '$[0]')
WHERE parent_step IS NOT NULL
ON CONFLICT (job_id, name, place) DO NOTHING
RETURNING job_id, name

-- name: record_late_value
-- For a failed child that was retried by hand: the value replaces the error.
UPDATE stowhand_steps SET value = :value, error = NULL
WHERE (job_id, name, place) = (SELECT parent_id, parent_step, parent_place FROM stowhand_jobs WHERE id = :id)
    AND error IS NOT NULL

-- name: count_ends
UPDATE stowhand_steps SET remaining = max(remaining - :ended, 0)
WHERE job_id = :id AND name = :step AND place = -1
RETURNING remaining

-- name: wake_parent
UPDATE stowhand_jobs SET run_at = min(run_at, :now)
WHERE id = :id AND state = 'queued' AND waits_for = 'children:' || :step

-- name: run_children_anew
-- The attempts of the job start again: a retry of the job then creates failed children anew (tasks/workflow.py).
UPDATE stowhand_steps SET value = json_set(value, '$.attempts', -1)
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND place = -1

-- name: unfinished_children
SELECT id, state FROM stowhand_jobs INDEXED BY stowhand_jobs_children
WHERE parent_id IS NOT NULL AND parent_id IN (SELECT value FROM json_each(:ids)) AND state <> 'failed'
ORDER BY id

-- name: request_cancels
UPDATE stowhand_jobs SET cancel_requested = 1 WHERE id IN (SELECT value FROM json_each(:ids))

-- name: detach_all_children
UPDATE stowhand_jobs SET parent_step = NULL, parent_place = NULL WHERE parent_id IS NOT NULL AND parent_id = :id

-- name: forget_steps
DELETE FROM stowhand_steps WHERE job_id = :id

-- name: add_event
INSERT INTO stowhand_events (name, job_id, payload, at) VALUES (:event, :id, :payload, :now)
ON CONFLICT (name, job_id) DO NOTHING

-- name: event
-- An event for this job precedes one for all jobs.
SELECT payload FROM stowhand_events WHERE name = :event AND job_id IN (0, :id) ORDER BY job_id DESC LIMIT 1

-- name: waiting_for_event
SELECT id FROM stowhand_jobs INDEXED BY stowhand_jobs_waiting
WHERE waits_for IS NOT NULL AND state = 'queued' AND waits_for = 'event:' || :event AND (:id = 0 OR id = :id)

-- name: end_waits
-- The steps of waits for an event are `event:NAME`, `event:NAME#2` …
UPDATE stowhand_steps SET value = :value
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND place = 0 AND value IS NULL AND error IS NULL
    AND (name = 'event:' || :event OR substr(name, 1, length(:event) + 7) = 'event:' || :event || '#')

-- name: wake_jobs
UPDATE stowhand_jobs SET run_at = min(run_at, :now)
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued'

-- name: is_events_old
SELECT 1 FROM stowhand_events WHERE at < :before LIMIT 1

-- name: prune_events
DELETE FROM stowhand_events WHERE rowid IN (
    SELECT rowid FROM stowhand_events INDEXED BY stowhand_events_at WHERE at < :before ORDER BY at LIMIT :limit
)

-- name: step_place
-- The first row of a step. Earlier steps have all of their first rows before it.
SELECT min(rowid) FROM stowhand_steps WHERE job_id = :id AND name = :step

-- name: copy_steps
-- Children are copied with their step, and sleeps that are over. Pending waits are not, nor steps with unfinished children.
INSERT INTO stowhand_steps (job_id, name, place, value, error, until, remaining, epoch, at)
SELECT :fork_id, name, place, value, error, until, remaining, epoch, at FROM stowhand_steps AS step
WHERE job_id = :id AND (value IS NOT NULL OR error IS NOT NULL OR until <= :now) AND name IN (
    SELECT name FROM stowhand_steps WHERE job_id = :id
    GROUP BY name HAVING min(rowid) < :place AND coalesce(max(remaining), 0) = 0
)
ORDER BY rowid

-- name: set_epoch
UPDATE stowhand_jobs SET epoch = :epoch WHERE id = :id

-- name: jobs_with_steps
-- A loose index scan over the jobs that have steps.
WITH RECURSIVE page (job_id) AS (
    SELECT min(job_id) FROM stowhand_steps WHERE job_id > :after
    UNION ALL
    SELECT (SELECT min(job_id) FROM stowhand_steps WHERE job_id > page.job_id) FROM page WHERE page.job_id IS NOT NULL
    LIMIT :limit
)
SELECT
    job_id, EXISTS (SELECT 1 FROM stowhand_jobs WHERE id = job_id) OR EXISTS (SELECT 1 FROM stowhand_history WHERE id = job_id)
FROM page WHERE job_id IS NOT NULL

-- name: prune_steps
-- Checks the jobs again, under the write lock.
DELETE FROM stowhand_steps WHERE rowid IN (
    SELECT step.rowid FROM json_each(:ids) AS unknown CROSS JOIN stowhand_steps AS step ON step.job_id = unknown.value
    WHERE NOT EXISTS (SELECT 1 FROM stowhand_jobs WHERE id = unknown.value)
        AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = unknown.value)
    LIMIT :limit
)
