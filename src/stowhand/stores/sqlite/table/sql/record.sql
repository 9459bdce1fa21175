-- Statements about one record: the names of the user's table are filled in, values are parameters.
-- A name in double quotes that no column has would be a text to SQLite, so each is prefixed with its table.

-- name: held
-- A record, and whether it has a claim's token and epoch: the fence.
SELECT {row}.{state}, {matches}, {cancel}, {row}.{failure_message}, coalesce({row}.{num_resets}, 0), {worker},
    stowhand_micros({row}.{last_heartbeat_at})
FROM {table} WHERE {row}.{id} = :id

-- name: take
UPDATE {table} SET {state} = 'processing', {started_at} = {now_started_at}, {last_heartbeat_at} = {now_last_heartbeat_at},
    {finished_at} = NULL, {failure_message} = NULL, {execution_logs} = NULL, {sign}
WHERE {row}.{id} = :id AND {row}.{state} IN ('queued', 'errored')
RETURNING coalesce({row}.{num_failures}, 0), coalesce({row}.{num_resets}, 0)

-- name: taken
-- The epoch, by which later writes are guarded, and whether the token is there: once the application's triggers have run.
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
-- Not now. The token is taken out of the mark, so that nothing more can be written with it.
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {process_after} = {due_process_after}, {strip}{queued_now}
WHERE {row}.{id} = :id AND {held}

-- name: given_back
-- As if it had never been claimed.
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {strip}
WHERE {row}.{id} = :id AND {held}

-- name: given_back_canceled
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
-- A person's: whatever it came to, it begins anew.
UPDATE {table} SET {state} = 'queued', {started_at} = NULL, {finished_at} = NULL, {process_after} = NULL,
    {num_failures} = 0, {num_resets} = 0, {strip}{queued_now}{uncancel}
WHERE {row}.{id} = :id AND {row}.{state} IN ('queued', 'errored', 'failed', 'canceled')

-- name: ask_cancel
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
