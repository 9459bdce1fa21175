-- name: known_item
SELECT identifier, known_since, last_tick, spec, spec_since, scheduled_by, scheduled_at FROM stowhand_crontab WHERE identifier = :identifier

-- name: known_items
SELECT identifier, known_since, last_tick, spec, spec_since, scheduled_by, scheduled_at FROM stowhand_crontab ORDER BY identifier

-- name: register
INSERT INTO stowhand_crontab (identifier, known_since, spec) VALUES (:identifier, :now, :spec)
ON CONFLICT (identifier) DO UPDATE SET spec = excluded.spec,
    spec_since = CASE WHEN spec = excluded.spec THEN spec_since ELSE excluded.known_since END

-- name: report
-- A recent report counts for all schedulers. A report in the future was written before the clock was set back.
UPDATE stowhand_crontab SET scheduled_by = :scheduler, scheduled_at = :now
WHERE identifier = :identifier AND (scheduled_at IS NULL OR scheduled_at NOT BETWEEN :now - :interval + 1 AND :now)

-- name: forget_item
DELETE FROM stowhand_crontab
WHERE identifier = :identifier AND (scheduled_at IS NULL OR scheduled_at <= :now - :scheduled_for)
RETURNING identifier

-- name: ledger_entry
SELECT job_id, spec FROM stowhand_ticks WHERE identifier = :identifier AND tick = :tick

-- name: add_ledger_entry
INSERT INTO stowhand_ticks (identifier, tick, job_id, backfilled, spec, scheduled_at)
VALUES (:identifier, :tick, :job_id, :backfilled, :spec, :now)

-- name: set_last_tick
-- A backfill schedules ticks that are older than the last one.
INSERT INTO stowhand_crontab (identifier, known_since, last_tick, spec) VALUES (:identifier, :now, :tick, :spec)
ON CONFLICT (identifier) DO UPDATE SET last_tick = max(coalesce(last_tick, excluded.last_tick), excluded.last_tick)
