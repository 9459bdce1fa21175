-- name: create
INSERT INTO stowhand_flow_jobs (id, flow, created_at, looked_at) VALUES (:id, :flow, :now, :now)
ON CONFLICT (id) DO NOTHING

-- name: add_lookup
INSERT INTO stowhand_flow_lookups (flow, attribute, value, id) VALUES (:flow, :attribute, :value, :id)
ON CONFLICT DO NOTHING

-- name: key_holder
SELECT l.id FROM stowhand_flow_lookups l JOIN stowhand_jobs j ON j.key = 'flow:' || l.flow || ':' || l.id
WHERE l.flow = :flow AND l.attribute = '' AND l.value = :key AND j.state <> 'failed' LIMIT 1

-- name: keep
-- Writes nothing for a job that has been deleted.
INSERT INTO stowhand_flow_lists (id, job, content)
SELECT :id, :job, :content WHERE EXISTS (SELECT 1 FROM stowhand_flow_jobs WHERE id = :job)
ON CONFLICT (id) DO NOTHING

-- name: kept
SELECT content FROM stowhand_flow_lists WHERE id = :id

-- name: ids
SELECT id FROM stowhand_flow_lookups WHERE flow = :flow AND attribute = :attribute AND value = :value ORDER BY id

-- name: exists
SELECT id FROM stowhand_flow_jobs WHERE id IN (SELECT value FROM json_each(:ids))

-- name: live_step
SELECT {job} FROM stowhand_live WHERE key = :key

-- name: past_step
SELECT {job} FROM stowhand_past WHERE key = :key AND key >= 'flow:' AND key < 'flow;' ORDER BY id DESC LIMIT 1

-- name: delete_flow
DELETE FROM stowhand_flow_jobs WHERE id = :id AND flow = :flow

-- name: delete_past_steps
DELETE FROM stowhand_history WHERE key = :key AND key >= 'flow:' AND key < 'flow;'

-- name: parked
SELECT id, state, run_at, payload FROM stowhand_jobs WHERE key = :key

-- name: is_open
-- Searches from the last child, because children end in order: then few failed children are skipped.
SELECT 1 FROM stowhand_jobs WHERE key >= :min_key AND key <= :max_key AND state <> 'failed' ORDER BY key DESC LIMIT 1

-- name: make_due
UPDATE stowhand_jobs SET run_at = min(run_at, :now) WHERE id = :id

-- name: limit
-- `waiting` is the next ticket (`following` in protocols/flow_tables.py).
SELECT slot, calls, waiting FROM stowhand_flow_limits WHERE limiter = :limiter AND part = :part

-- name: forgive
DELETE FROM stowhand_flow_waits
WHERE limiter = :limiter AND part = :part AND (holder = :holder OR ready_at < :forgiven) RETURNING holder

-- name: note_limit
INSERT INTO stowhand_flow_limits (limiter, part, slot, calls, waiting, used_at)
VALUES (:limiter, :part, :slot, :calls, :waiting, :now)
ON CONFLICT (limiter, part) DO UPDATE
SET slot = excluded.slot, calls = excluded.calls, waiting = excluded.waiting, used_at = excluded.used_at

-- name: note_wait
INSERT INTO stowhand_flow_waits (limiter, part, holder, ready_at) VALUES (:limiter, :part, :holder, :ready_at)

-- name: jobs_to_check
SELECT id, 'flow:' || flow || ':' || id FROM stowhand_flow_jobs WHERE looked_at < :before ORDER BY looked_at LIMIT :limit

-- name: set_checked
UPDATE stowhand_flow_jobs SET looked_at = :now WHERE id = :id

-- name: prune
DELETE FROM stowhand_flow_jobs WHERE id = :id

-- name: prune_waits
DELETE FROM stowhand_flow_waits WHERE ready_at < :before

-- name: prune_limits
DELETE FROM stowhand_flow_limits WHERE used_at < :before
