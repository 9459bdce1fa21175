-- The names of the user's table are filled in; values are parameters. SQLite reads an unknown name in double quotes as a
-- text, so each column has the prefix of its table. Statements about one record come first, then those about several.
-- A key may be NULL (SQLite allows this in a TEXT PRIMARY KEY): such a record cannot be found again, so it is ignored.
-- {seen}: the condition that the view, if there is one, shows the row.

-- name: held
-- A record, and whether it has the token and the epoch of a claim, which is the fence.
SELECT {row}.{state}, {matches}, {cancel}, {row}.{failure_message}, coalesce({row}.{num_resets}, 0), {worker},
    stowhand_micros({row}.{last_heartbeat_at})
FROM {table} WHERE {row}.{id} = :id

-- name: mark
UPDATE {table} SET {state} = 'processing', {started_at} = {now_started_at}, {last_heartbeat_at} = {now_last_heartbeat_at},
    {finished_at} = NULL, {failure_message} = NULL, {execution_logs} = NULL, {sign}
WHERE {row}.{id} = :id AND {row}.{state} IN ('queued', 'errored')
RETURNING coalesce({row}.{num_failures}, 0), coalesce({row}.{num_resets}, 0)

-- name: taken
-- The epoch, which guards later writes, and whether the row has the token, both read after the application's triggers ran.
SELECT {epoch}, {has_token} FROM {table} WHERE {row}.{id} = :id

-- name: cancel_waiting
UPDATE {table} SET {state} = 'canceled', {finished_at} = {now_finished_at}
WHERE {row}.{id} = :id AND {row}.{state} IN ('queued', 'errored')

-- name: completed
UPDATE {table} SET {state} = 'completed', {finished_at} = {now_finished_at}
WHERE {row}.{id} = :id AND {held}

-- name: errored
UPDATE {table} SET {state} = 'errored', {finished_at} = {now_finished_at}, {failure_message} = :error,
    {num_failures} = coalesce({row}.{num_failures}, 0) + 1, {process_after} = {due_process_after}
WHERE {row}.{id} = :id AND {held}

-- name: failed
UPDATE {table} SET {state} = 'failed', {finished_at} = {now_finished_at}, {failure_message} = :error,
    {num_failures} = coalesce({row}.{num_failures}, 0) + 1
WHERE {row}.{id} = :id AND {held}

-- name: canceled
UPDATE {table} SET {state} = 'canceled', {finished_at} = {now_finished_at}, {failure_message} = coalesce(:error, {row}.{failure_message})
WHERE {row}.{id} = :id AND {held}

-- name: queued
-- Snoozed. The token is removed from the mark, so that its lease can write nothing more.
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {process_after} = {due_process_after}, {strip}{queued_now}
WHERE {row}.{id} = :id AND {held}

-- name: release
-- Restores the record as it was before the claim.
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {strip}
WHERE {row}.{id} = :id AND {held}

-- name: release_canceled
UPDATE {table} SET {state} = 'canceled', {finished_at} = {now_finished_at}, {strip}
WHERE {row}.{id} = :id AND {held}

-- name: reset
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {num_resets} = coalesce({row}.{num_resets}, 0) + 1,
    {strip}{queued_now}
WHERE {row}.{id} = :id AND {row}.{state} = 'processing'

-- name: reset_failed
UPDATE {table} SET {state} = 'failed', {finished_at} = {now_finished_at}, {failure_message} = :error, {strip}
WHERE {row}.{id} = :id AND {row}.{state} = 'processing'

-- name: reset_canceled
UPDATE {table} SET {state} = 'canceled', {finished_at} = {now_finished_at}, {strip}
WHERE {row}.{id} = :id AND {row}.{state} = 'processing'

-- name: requeue
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {process_after} = {due_process_after}, {strip}{queued_now}
WHERE {row}.{id} = :id AND {row}.{state} IN ('queued', 'errored', 'processing')

-- name: retry
-- A retry by a user, from any state except processing and completed.
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {finished_at} = NULL, {process_after} = NULL,
    {num_failures} = 0, {num_resets} = 0, {strip}{queued_now}{uncancel}
WHERE {row}.{id} = :id AND {row}.{state} IN ('queued', 'errored', 'failed', 'canceled')

-- name: cancel
UPDATE {table} SET {ask_cancel} WHERE {row}.{id} = :id AND {row}.{state} = 'processing'

-- name: find
SELECT {shown} FROM {table} WHERE {row}.{id} = :id

-- name: beat
UPDATE {table} SET {last_heartbeat_at} = {now_last_heartbeat_at}
WHERE {row}.{id} = :id AND {held}
RETURNING {cancel}

-- name: add_log
UPDATE {table} SET {execution_logs} = CASE
        WHEN json_valid({row}.{execution_logs}) AND json_type({row}.{execution_logs}) = 'array'
        THEN json_insert({row}.{execution_logs}, '$[#]', json(:entry))
        ELSE json_array(json(:entry))
    END
WHERE {row}.{id} = :id AND {held}
    AND (json_valid({row}.{execution_logs}) IS NOT 1 OR json_array_length({row}.{execution_logs}) < :most)
RETURNING json_array_length({row}.{execution_logs})

-- name: update_log
UPDATE {table} SET {execution_logs} = json_replace({row}.{execution_logs}, '$[' || (:number - 1) || ']', json(:entry))
WHERE {row}.{id} = :id AND {held} AND :number > 0
    AND json_valid({row}.{execution_logs}) AND json_array_length({row}.{execution_logs}) >= :number
RETURNING 1

-- name: logs
SELECT {row}.{execution_logs} FROM {table} WHERE {row}.{id} = :id

-- name: find_stalled
SELECT {row}.{id} FROM {table}
WHERE {row}.{state} = 'processing' AND {stalled} AND {row}.{id} IS NOT NULL
ORDER BY {row}.{id} LIMIT :limit

-- name: foreign_leases
-- For leases of records other than `own_ids`: whether one has expired, and the earliest renewal of the others.
SELECT max({stalled}), min(CASE WHEN NOT {stalled} THEN {beaten} END) FROM {table}
WHERE {row}.{state} = 'processing' AND {row}.{id} NOT IN (SELECT value FROM json_each(:own_ids)) AND {row}.{id} IS NOT NULL

-- name: suspected
SELECT 1 FROM {table} WHERE {row}.{state} IN ('queued', 'errored') AND {row}.{num_resets} >= 2 AND {row}.{id} IS NOT NULL LIMIT 1

-- name: held_by_token
SELECT {row}.{id}, {epoch} FROM {table} WHERE {held_by_token} AND {row}.{id} IS NOT NULL ORDER BY {row}.{id}

-- name: find_held_by_worker
SELECT {row}.{id} FROM {table}
WHERE {row}.{state} = 'processing' AND {marked} AND {worker} = :worker AND {row}.{id} IS NOT NULL
ORDER BY {row}.{id} LIMIT :limit

-- name: find_cancel_waiting
SELECT {row}.{id} FROM {table} WHERE {row}.{state} IN ('queued', 'errored') AND {cancel} AND {row}.{id} IS NOT NULL LIMIT :limit

-- name: page
-- Records for display, without their tokens.
SELECT {shown} FROM {table}
WHERE {row}.{state} IN (SELECT value FROM json_each(:states)) AND (:after IS NULL OR {row}.{id} > :after) AND {row}.{id} IS NOT NULL
ORDER BY {row}.{id} LIMIT :limit

-- name: next_due
-- The earliest due time of a waiting record. Records with a process_after are read in the stored order of the column, as
-- an index returns them. This order differs from that of the times by at most days, so the earliest of the first `:limit`
-- records counts. Retries by another program have no process_after.
SELECT min(due) FROM (
    SELECT * FROM (
        SELECT 0 AS due FROM {table}
        WHERE {row}.{state} = 'queued' AND {row}.{process_after} IS NULL AND {row}.{id} IS NOT NULL{seen} LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT stowhand_micros({row}.{process_after}) FROM {table}
        WHERE {row}.{state} = 'queued' AND {row}.{process_after} IS NOT NULL AND {row}.{id} IS NOT NULL{seen}
        ORDER BY {row}.{process_after} LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT max(stowhand_micros({row}.{process_after}), coalesce({retried}, stowhand_micros({row}.{process_after})))
        FROM {table}
        WHERE {retries} AND {row}.{state} = 'errored' AND {row}.{process_after} IS NOT NULL AND {row}.{id} IS NOT NULL{seen}
        ORDER BY {row}.{process_after} LIMIT :limit
    )
    UNION ALL
    SELECT coalesce({retried}, 0) FROM {table}
    WHERE {retries} AND {row}.{state} = 'errored' AND {row}.{process_after} IS NULL AND {row}.{id} IS NOT NULL{seen}
)

-- name: longest_wait
-- The time since which the earliest due record has been due. Records without a known time are left out.
SELECT min(since) FROM (
    SELECT max(coalesce(queued, after), coalesce(after, queued)) AS since
    FROM (
        SELECT {queued_micros} AS queued, stowhand_micros({row}.{process_after}) AS after
        FROM {table} WHERE {row}.{state} = 'queued' AND {row}.{id} IS NOT NULL{seen}
    )
    UNION ALL
    SELECT max(coalesce(retried, after), coalesce(after, retried))
    FROM (
        SELECT {retried} AS retried, stowhand_micros({row}.{process_after}) AS after
        FROM {table} WHERE {row}.{state} = 'errored' AND {retries} AND {row}.{id} IS NOT NULL{seen}
    )
)
WHERE since <= :now

-- name: longest_run
-- Records without a heartbeat are left out, since the application itself set them to processing.
SELECT min(stowhand_micros({row}.{started_at})) FROM {table}
WHERE {row}.{state} = 'processing' AND {row}.{last_heartbeat_at} IS NOT NULL AND {row}.{id} IS NOT NULL
