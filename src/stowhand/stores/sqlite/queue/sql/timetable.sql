-- name: known
SELECT identifier, known_since, last_tick, spec FROM stowhand_crontab WHERE identifier = :identifier

-- name: all_known
SELECT identifier, known_since, last_tick, spec FROM stowhand_crontab ORDER BY identifier

-- name: register
INSERT INTO stowhand_crontab (identifier, known_since, spec) VALUES (:identifier, :now, :spec)
ON CONFLICT (identifier) DO UPDATE SET spec = excluded.spec

-- name: entered
SELECT job_id, spec FROM stowhand_ticks WHERE identifier = :identifier AND tick = :tick

-- name: enter
INSERT INTO stowhand_ticks (identifier, tick, job_id, backfilled, spec, scheduled_at)
VALUES (:identifier, :tick, :job_id, :backfilled, :spec, :now)

-- name: ticked
-- A backfill enters ticks that are older than the latest.
INSERT INTO stowhand_crontab (identifier, known_since, last_tick, spec) VALUES (:identifier, :now, :tick, :spec)
ON CONFLICT (identifier) DO UPDATE SET last_tick = max(coalesce(last_tick, excluded.last_tick), excluded.last_tick)

-- name: ticks
SELECT tick FROM stowhand_ticks WHERE identifier = :identifier AND tick >= :since ORDER BY tick
