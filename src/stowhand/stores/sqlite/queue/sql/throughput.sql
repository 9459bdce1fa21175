-- Counts of ended jobs by minute and task.

-- name: write_throughput
-- The numbers are absolute, so a repeated call counts nothing twice. Minutes that have been added up do not change.
INSERT INTO stowhand_throughput (seconds, begins, task, writer, tally)
SELECT 60, :begins, :task, :writer, :tally
WHERE NOT EXISTS (
    SELECT 1 FROM stowhand_throughput WHERE seconds = 60 AND begins = :begins AND task = :task AND writer = ''
)
ON CONFLICT (seconds, begins, task, writer) DO UPDATE SET tally = excluded.tally

-- name: closed_minutes
SELECT DISTINCT begins FROM stowhand_throughput
WHERE seconds = 60 AND begins <= :newest AND writer <> '' ORDER BY begins LIMIT :limit

-- name: old_hours
SELECT DISTINCT begins / 3600000000 * 3600000000 FROM stowhand_throughput
WHERE seconds = 60 AND begins < :newest + 3600000000 ORDER BY begins LIMIT :limit

-- name: take_throughput
DELETE FROM stowhand_throughput WHERE seconds <= :seconds AND begins >= :begins AND begins < :begins + :seconds * 1000000
RETURNING task, tally

-- name: add_throughput
INSERT INTO stowhand_throughput (seconds, begins, task, writer, tally) VALUES (:seconds, :begins, :task, '', :tally)

-- name: is_throughput_old
SELECT 1 FROM stowhand_throughput WHERE seconds = 3600 AND begins < :before LIMIT 1

-- name: prune_throughput
DELETE FROM stowhand_throughput WHERE (seconds, begins, task, writer) IN (
    SELECT seconds, begins, task, writer FROM stowhand_throughput
    WHERE seconds = 3600 AND begins < :before LIMIT :limit
)
