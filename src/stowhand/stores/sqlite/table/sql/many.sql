-- Statements that look for records: what waits, what is running. {identified}: where the key's column lets NULL in,
-- this row has one; a record without one could never be found again. {seen}: where a view was given, it shows this row.

-- name: stalled
SELECT {row}.{id} FROM {table}
WHERE {row}.{state} = 'processing' AND {stalled}{identified}
ORDER BY {row}.{id} LIMIT :limit

-- name: foreign
-- Of leases that are not of `:ours`: is one over, and when was the first of the others renewed?
SELECT max({stalled}), min(CASE WHEN NOT {stalled} THEN {beaten} END) FROM {table}
WHERE {row}.{state} = 'processing' AND {row}.{id} NOT IN (SELECT value FROM json_each(:ours)){identified}

-- name: suspected
SELECT 1 FROM {table} WHERE {row}.{state} IN ('queued', 'errored') AND {row}.{num_resets} >= 2{identified} LIMIT 1

-- name: held_by_token
SELECT {row}.{id}, {epoch} FROM {table} WHERE {held_by_token}{identified} ORDER BY {row}.{id}

-- name: held_by_worker
SELECT {row}.{id} FROM {table}
WHERE {row}.{state} = 'processing' AND {marked} AND {worker} = :worker{identified}
ORDER BY {row}.{id} LIMIT :limit

-- name: canceled_waiting
SELECT {row}.{id} FROM {table} WHERE {row}.{state} IN ('queued', 'errored') AND {cancel}{identified} LIMIT :limit

-- name: page
-- What people see. No token.
SELECT {shown} FROM {table}
WHERE {row}.{state} IN (SELECT value FROM json_each(:states)) AND (:after IS NULL OR {row}.{id} > :after){identified}
ORDER BY {row}.{id} LIMIT :limit

-- name: next_due
-- When the first record is due that waits. Those with a process_after are in the order of the column as it is stored,
-- which an index gives and which is within days of the order of the moments: of the first `:limit`, the earliest counts.
-- Another program's retries have none.
SELECT min(due) FROM (
    SELECT * FROM (
        SELECT 0 AS due FROM {table}
        WHERE {row}.{state} = 'queued' AND {row}.{process_after} IS NULL{identified}{seen} LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT stowhand_micros({row}.{process_after}) FROM {table}
        WHERE {row}.{state} = 'queued' AND {row}.{process_after} IS NOT NULL{identified}{seen}
        ORDER BY {row}.{process_after} LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT max(stowhand_micros({row}.{process_after}), coalesce({retried}, stowhand_micros({row}.{process_after})))
        FROM {table}
        WHERE {retries} AND {row}.{state} = 'errored' AND {row}.{process_after} IS NOT NULL{identified}{seen}
        ORDER BY {row}.{process_after} LIMIT :limit
    )
    UNION ALL
    SELECT coalesce({retried}, 0) FROM {table}
    WHERE {retries} AND {row}.{state} = 'errored' AND {row}.{process_after} IS NULL{identified}{seen}
)

-- name: longest_wait
-- Since when the one that has been due longest is due; where that is unknown, the record is left out.
SELECT min(since) FROM (
    SELECT max(coalesce(queued, after), coalesce(after, queued)) AS since
    FROM (
        SELECT {queued_micros} AS queued, stowhand_micros({row}.{process_after}) AS after
        FROM {table} WHERE {row}.{state} = 'queued'{identified}{seen}
    )
    UNION ALL
    SELECT max(coalesce(retried, after), coalesce(after, retried))
    FROM (
        SELECT {retried} AS retried, stowhand_micros({row}.{process_after}) AS after
        FROM {table} WHERE {row}.{state} = 'errored' AND {retries}{identified}{seen}
    )
)
WHERE since <= :now

-- Of claims: what has no heartbeat is the application's own.
-- name: longest_run
SELECT min(stowhand_micros({row}.{started_at})) FROM {table}
WHERE {row}.{state} = 'processing' AND {row}.{last_heartbeat_at} IS NOT NULL{identified}
