-- name: is_installed
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'stowhand_schema'

-- name: ledger
SELECT * FROM stowhand_schema ORDER BY version

-- name: record
INSERT INTO stowhand_schema (version, breaking, applied_at, fingerprint) VALUES (:version, :breaking, :now, :fingerprint)

-- name: own_objects
-- In the order in which they can be dropped: views and triggers before their tables, which drop their own indexes.
SELECT type, name FROM sqlite_schema WHERE name LIKE 'stowhand\_%' ESCAPE '\' AND type IN ('view', 'trigger', 'table')
ORDER BY type = 'table', type = 'trigger'

-- name: other_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name LIMIT 5
