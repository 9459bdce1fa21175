-- Limits of tasks (limits.py).

-- name: task_limits
SELECT task, concurrency, rate FROM stowhand_task_limits

-- name: limits
SELECT name, declared, override, next_start, held_until FROM stowhand_limits

-- name: used_slots
SELECT limit_slot FROM stowhand_jobs INDEXED BY stowhand_jobs_slots
WHERE state = 'processing' AND limit_slot IS NOT NULL AND limit_name = :name
ORDER BY limit_slot

-- name: tasks_of
SELECT id, task FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: set_slots
-- Each slot: the id of a job, the name of the limit, and the number.
UPDATE stowhand_jobs
SET limit_name = (SELECT json_extract(value, '$[1]') FROM json_each(:slots) WHERE json_extract(value, '$[0]') = stowhand_jobs.id),
    limit_slot = (SELECT json_extract(value, '$[2]') FROM json_each(:slots) WHERE json_extract(value, '$[0]') = stowhand_jobs.id)
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:slots))

-- name: set_next_start
UPDATE stowhand_limits SET next_start = :next_start WHERE name = :name

-- name: hold_limit
UPDATE stowhand_limits SET held_until = max(coalesce(held_until, :until), :until) WHERE name = :name

-- name: declare_limit
INSERT INTO stowhand_limits (name, declared) VALUES (:name, :declared)
ON CONFLICT (name) DO UPDATE SET declared = excluded.declared WHERE declared <> excluded.declared

-- name: declare_task_limits
INSERT INTO stowhand_task_limits (task, concurrency, rate) VALUES (:task, :concurrency, :rate)
ON CONFLICT (task) DO UPDATE SET concurrency = excluded.concurrency, rate = excluded.rate
WHERE concurrency IS NOT excluded.concurrency OR rate IS NOT excluded.rate

-- name: clear_task_limits
DELETE FROM stowhand_task_limits WHERE task IN (SELECT value FROM json_each(:tasks))

-- name: clear_limits
DELETE FROM stowhand_limits WHERE override = '{}' AND name NOT IN (
    SELECT concurrency FROM stowhand_task_limits WHERE concurrency IS NOT NULL
    UNION SELECT rate FROM stowhand_task_limits WHERE rate IS NOT NULL
)

-- name: set_override
UPDATE stowhand_limits SET override = :override WHERE name = :name AND override <> :override

-- name: reset_limit
UPDATE stowhand_limits SET override = '{}', held_until = NULL
WHERE name = :name AND (override <> '{}' OR held_until IS NOT NULL)
