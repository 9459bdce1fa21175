-- Limits of tasks (limits.py).

-- name: task_limits
SELECT task, concurrency, rate, key_limit, key, fair FROM stowhand_task_limits

-- name: limits
SELECT name, declared, override, next_start, held_until FROM stowhand_limits

-- name: used_slots
SELECT limit_slot FROM stowhand_jobs INDEXED BY stowhand_jobs_slots
WHERE state = 'processing' AND limit_slot IS NOT NULL AND limit_name = :name
ORDER BY limit_slot

-- name: used_key_slots
SELECT key_slot FROM stowhand_jobs INDEXED BY stowhand_jobs_key_slots
WHERE state = 'processing' AND serial IS NOT NULL AND serial = :name
ORDER BY key_slot

-- name: limited_jobs
SELECT id, task, serial, payload FROM stowhand_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: is_paused
SELECT 1 FROM stowhand_paused WHERE serial = :name

-- name: limit_key
SELECT next_start, held_until, served_at FROM stowhand_limit_keys WHERE name = :name

-- name: set_key_start
INSERT INTO stowhand_limit_keys (name, next_start) VALUES (:name, :next_start)
ON CONFLICT (name) DO UPDATE SET next_start = excluded.next_start

-- name: set_served
-- Every turn is later than the last one, also in one claim, and after the clock was set back. It is later than every due
-- job.
INSERT INTO stowhand_limit_keys (name, served_at)
SELECT :name, 1 + max(:now, coalesce(max(served_at), 0))
FROM stowhand_limit_keys INDEXED BY stowhand_limit_keys_served WHERE served_at IS NOT NULL
ON CONFLICT (name) DO UPDATE SET served_at = excluded.served_at

-- name: end_turns
-- Forgets the turns of the keys of a limit whose tasks are no longer fair.
UPDATE stowhand_limit_keys SET served_at = NULL
WHERE served_at IS NOT NULL AND substr(name, 1, length(:name) + 1) = :name || char(9)

-- name: hold_key
INSERT INTO stowhand_limit_keys (name, held_until) VALUES (:name, :until)
ON CONFLICT (name) DO UPDATE SET held_until = max(coalesce(held_until, excluded.held_until), excluded.held_until)

-- name: recheck_heads
UPDATE stowhand_heads SET recheck_at = -62135596800000000 WHERE serial = :name

-- name: end_holds
UPDATE stowhand_limit_keys SET held_until = NULL
WHERE held_until IS NOT NULL AND substr(name, 1, length(:name) + 1) = :name || char(9)

-- name: recheck_keys
-- Computes the heads of all keys of a limit anew.
UPDATE stowhand_heads SET recheck_at = -62135596800000000 WHERE substr(serial, 1, length(:name) + 1) = :name || char(9)

-- name: set_key
-- Gives waiting jobs their key.
UPDATE stowhand_jobs SET serial = :name WHERE id IN (SELECT value FROM json_each(:ids))

-- name: take_keys
-- Takes the keys of waiting jobs whose task declares another key now. The next claim gives them the new one.
UPDATE stowhand_jobs SET serial = NULL
WHERE task = :task AND state IN ('queued', 'errored') AND instr(serial, char(9)) > 0

-- name: set_key_slot
UPDATE stowhand_jobs SET key_slot = :slot WHERE id = :id

-- name: is_limit_keys_old
SELECT 1 FROM stowhand_limit_keys
WHERE max(coalesce(next_start, 0), coalesce(held_until, 0), coalesce(served_at, 0)) < :before LIMIT 1

-- name: prune_limit_keys
DELETE FROM stowhand_limit_keys WHERE name IN (
    SELECT name FROM stowhand_limit_keys
    WHERE max(coalesce(next_start, 0), coalesce(held_until, 0), coalesce(served_at, 0)) < :before LIMIT :limit
)

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
INSERT INTO stowhand_limits (name, declared, key_concurrency) VALUES (:name, :declared, :key_concurrency)
ON CONFLICT (name) DO UPDATE SET declared = excluded.declared, key_concurrency = excluded.key_concurrency
WHERE declared <> excluded.declared

-- name: declare_task_limits
INSERT INTO stowhand_task_limits (task, concurrency, rate, key_limit, key, fair)
VALUES (:task, :concurrency, :rate, :key_limit, :key, :fair)
ON CONFLICT (task) DO UPDATE
SET concurrency = excluded.concurrency, rate = excluded.rate, key_limit = excluded.key_limit, key = excluded.key,
    fair = excluded.fair
WHERE (concurrency, rate, key_limit, key, fair)
    IS NOT (excluded.concurrency, excluded.rate, excluded.key_limit, excluded.key, excluded.fair)

-- name: clear_task_limits
DELETE FROM stowhand_task_limits WHERE task IN (SELECT value FROM json_each(:tasks))

-- name: clear_limits
DELETE FROM stowhand_limits WHERE override = '{}' AND name NOT IN (
    SELECT concurrency FROM stowhand_task_limits WHERE concurrency IS NOT NULL
    UNION SELECT rate FROM stowhand_task_limits WHERE rate IS NOT NULL
    UNION SELECT key_limit FROM stowhand_task_limits WHERE key_limit IS NOT NULL
)

-- name: set_override
UPDATE stowhand_limits SET override = :override, key_concurrency = :key_concurrency
WHERE name = :name AND override <> :override

-- name: reset_limit
UPDATE stowhand_limits
SET override = '{}', held_until = NULL, key_concurrency = json_extract(declared, '$.key_concurrency')
WHERE name = :name AND (override <> '{}' OR held_until IS NOT NULL)
