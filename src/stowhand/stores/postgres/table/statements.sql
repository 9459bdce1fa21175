-- All statements about one user's table. The {braces} are filled with the user's names, quoted (composer.py). Values are
-- parameters. The table is called `j` unless the statement contains a text of the user.
--
-- held    the row is in processing and has the token and epoch of the claim: the guard of every write after a claim
-- ours    it has both, whatever its state: the condition by which a repeat recognizes its record
-- marked  it has the token; the epoch may be that of another claim, by a program that leaves our mark unchanged
-- epoch   started_at in microseconds, as returned by the claim (composer.py)
-- seen    with a view: the view shows this row, so a claim can take it
-- key     its id as text, whatever its type, so that an ALTER TABLE does not disturb a running worker
-- bare    the mark without a token: the worker's name stays, and a later write with the token finds no row

-- One transaction (claims.py). The lock shows that a claim with this token is in progress: a caller that abandons it
-- waits for its end. The following statements read timestamps as text, so the time zone must be UTC. JIT compilation
-- would cost more than any claim. A claim that a crash of the server undoes leaves its record waiting, so it need not
-- wait for the disk. Settlements do.
-- name: begin_claim
select pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtextextended(%(token)s, 9)),
  pg_catalog.set_config('timezone', 'UTC', true), pg_catalog.set_config('datestyle', 'ISO, YMD', true),
  pg_catalog.set_config('intervalstyle', 'postgres', true), pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('synchronous_commit', 'off', true)

-- As begin_claim, if an index has the waiting records in the order of claims: the index is walked without a sort.
-- Without recent statistics (a new backlog), the planner would assume few waiting records and sort all of them for each
-- claim.
-- name: begin_walk
select pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtextextended(%(token)s, 9)),
  pg_catalog.set_config('timezone', 'UTC', true), pg_catalog.set_config('datestyle', 'ISO, YMD', true),
  pg_catalog.set_config('intervalstyle', 'postgres', true), pg_catalog.set_config('jit', 'off', true),
  pg_catalog.set_config('synchronous_commit', 'off', true),
  pg_catalog.set_config('stowhand.enable_sort', pg_catalog.current_setting('enable_sort'), true),
  pg_catalog.set_config('enable_sort', 'off', true)

-- A view may need a sort.
-- name: end_walk
select pg_catalog.set_config('enable_sort', pg_catalog.current_setting('stowhand.enable_sort'), true)

-- name: claim
with picked as (
  select {p_id} as id{costs}
  from {source}
  where {eligible}{suspicion}{conditions}
  order by {order}
  limit %(limit)s
  for update of {locked} skip locked
), numbered as (
  {numbered}
), marked as (
  update {table} as j
  {marking}
  from numbered n
  where j.{id} = n.id
  returning j.{id} as id, {cancel} as canceled, {epoch} as epoch, coalesce(j.{num_failures}, 0) as failures,
    coalesce(j.{num_resets}, 0) as resets, {cancel} or {signed} as signed
)
-- A row with only an id: a trigger of the user has kept the record unchanged. Not signed: a trigger has changed the mark.
select n.place, n.id::text, m.canceled, m.epoch, m.failures, m.resets, m.signed
from numbered n left join marked m on m.id = n.id

-- The parts of a claim: all locked records, or the first ones whose sums stay within the budgets. (A window function
-- cannot be used with FOR UPDATE, so lock first and sum afterwards. The end of the transaction releases the other
-- records.)
-- name: numbered
select id, row_number() over () as place from picked

-- name: numbered_within
select summed.id, summed.place
  from (
    select placed.id, placed.place{totals}
    from (select *, row_number() over () as place from picked) as placed
  ) as summed
  where {within}

-- name: marking
set {state} = (case when {cancel} then 'canceled' else 'processing' end)::{state_type},
    {started_at} = case when {cancel} then j.{started_at} else {started_now} end,
    {last_heartbeat_at} = case when {cancel} then j.{last_heartbeat_at} else {beat_now} end,
    {finished_at} = case when {cancel} then {finished_now} end,
    {failure_message} = case when {cancel} then j.{failure_message} end,
    {execution_logs} = case when {cancel} then j.{execution_logs} end,
    {worker_hostname} = case when {cancel} then j.{worker_hostname} else %(mark)s end{take_token}

-- The two halves of a claim that contains an invalid record (claims.py: RowValidator). Each part is tried under a
-- savepoint.
-- name: pick
select p.id::text
from (
  select {p_id} as id
  from {source}
  where {eligible}{suspicion}{conditions}
  order by {order}
  limit %(limit)s
  for update of {locked} skip locked
) as p

-- name: mark
update {table} as j
{marking}
where j.{id} = any(%(ids)s::text[]::{id_type}[])
returning {key}, {cancel}, {epoch}, coalesce(j.{num_failures}, 0), coalesce(j.{num_resets}, 0), {cancel} or {signed}

-- After the update, in its transaction: the values of the expressions for the updated record.
-- name: read
select {view_id}::text as stowhand_id, {record}
from {view}
where {view_id} = any(%(ids)s::text[]::{id_type}[])

-- The same if the expressions name the table too. An unqualified name belongs to the view, which is nearer.
-- name: read_beside
select stowhand_shown.*
from {beside}
  cross join lateral (
    select {view_id}::text as stowhand_id, {record}
    from {view}
    where {view_id} = {beside_id}
  ) as stowhand_shown
where {beside_id} = any(%(ids)s::text[]::{id_type}[])

-- Let the server check the order. It returns no rows.
-- name: order
select from {ordered} order by {order}
limit 0

-- Completed records, which are the most common settlements. "= any" finds rows by their ids, whatever the statistics
-- say. By the state, or by a join, each call would read every row that has been in processing since the last vacuum.
-- name: settle_completed
with given as (
  select * from unnest(%(ids)s::text[]::{id_type}[], %(tokens)s::text[], %(epochs)s::bigint[]) as g(id, token, epoch)
), locked as (
  select j.{id} as id
  from given g join {table} as j on j.{id} = g.id and {held}
  where j.{id} = any(array(select id from given))
  order by j.{id}
  for no key update of j skip locked
)
update {table} as j
set {state} = 'completed', {finished_at} = {finished_now}
where j.{id} = any(array(select id from locked))
returning {key}

-- name: settle
with given as (
  select * from unnest(%(ids)s::text[]::{id_type}[], %(tokens)s::text[], %(epochs)s::bigint[], %(states)s::text[],
    %(delays)s::float8[], %(errors)s::text[]) as g(id, token, epoch, state, delay, error)
), locked as (
  select j.{id} as id, g.token, case when g.state <> 'completed' and {cancel} then 'canceled' else g.state end as state,
    g.delay, g.error
  from given g join {table} as j on j.{id} = g.id and {held}
  where j.{id} = any(array(select id from given))
  order by j.{id}
  for no key update of j skip locked
)
update {table} as j
set {state} = l.state::{state_type},
  {failure_message} = coalesce(l.error::{message_type}, j.{failure_message}),
  {num_failures} = coalesce(j.{num_failures}, 0) + (l.state in ('errored', 'failed'))::int,
  {finished_at} = case when l.state = 'queued' then j.{finished_at} else {finished_now} end,
  {process_after} = case when l.state in ('queued', 'errored')
    then {process_now} + l.delay * interval '1 second' else j.{process_after} end,
  {started_at} = case when l.state = 'queued' then null else j.{started_at} end,
  {worker_hostname} = case when l.state = 'queued' then {bare} else j.{worker_hostname} end{queue_up}{leave_token}
from locked l
where j.{id} = l.id
returning {key}, l.token, l.state

-- The status of settlements that found no row to write. A record that returned to the queue has no token, or another
-- claim returned it.
-- name: look
select g.id::text, g.token, case
  when j.{id} is null then 'gone'
  when {held} then 'busy'
  when not {ours} then 'lost'
  when j.{state}::text = 'canceled' and g.state not in ('completed', 'canceled') then 'canceled'
  when j.{state}::text = g.state and g.state <> 'queued'
    and (g.state not in ('errored', 'failed') or j.{failure_message} is not distinct from g.error::{message_type}) then 'settled'
  else 'lost' end
from unnest(%(ids)s::text[]::{id_type}[], %(tokens)s::text[], %(epochs)s::bigint[], %(states)s::text[],
    %(errors)s::text[]) as g(id, token, epoch, state, error)
  left join {table} as j on j.{id} = g.id

-- name: beat
with given as (
  select * from unnest(%(ids)s::text[]::{id_type}[], %(tokens)s::text[], %(epochs)s::bigint[]) as g(id, token, epoch)
), locked as (
  select j.{id} as id, g.token, g.epoch
  from given g join {table} as j on j.{id} = g.id and {held}
  where j.{id} = any(array(select id from given))
  order by j.{id}
  for no key update of j skip locked
), beaten as (
  update {table} as j set {last_heartbeat_at} = {beat_now}
  from locked l where j.{id} = l.id
  -- If a trigger of the user changes started_at, the claim can no longer be recognized.
  returning j.{id} as id, l.token, {cancel} as canceled, {epoch} is distinct from l.epoch as moved
)
select g.id::text, g.token, case
  when b.moved then 'moved'
  when b.canceled then 'canceled'
  when b.id is not null then 'renewed'
  when j.{id} is not null and {held} then 'busy'
  else 'lost' end
from given g
  left join beaten b on b.id = g.id and b.token = g.token
  left join {table} as j on j.{id} = g.id

-- The attempt is not counted, and the record is due as when it was claimed.
-- name: release
with given as (
  select * from unnest(%(ids)s::text[]::{id_type}[], %(tokens)s::text[], %(epochs)s::bigint[]) as g(id, token, epoch)
), locked as (
  select j.{id} as id, g.token
  from given g join {table} as j on j.{id} = g.id and {held}
  where j.{id} = any(array(select id from given))
  order by j.{id}
  for no key update of j skip locked
)
update {table} as j
set {state} = (case when {cancel} then 'canceled' else 'queued' end)::{state_type},
  {finished_at} = case when {cancel} then {finished_now} else j.{finished_at} end,
  {started_at} = case when {cancel} then j.{started_at} end,
  {worker_hostname} = {bare}{drop_token}
from locked l
where j.{id} = l.id
returning {key}, l.token

-- name: claim_is_over
select pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(%(token)s, 9))

-- name: held_by_token
select {key}, {epoch} from {table} as j, (select %(token)s::text as token) as g
where j.{state} = 'processing' and {marked} and j.{id} is not null

-- For leases that are not in `ids`: whether one has expired, and the seconds until the first of the others does. (A
-- subquery is hashed, an array is not.)
-- name: foreign_leases
select coalesce(bool_or({stale}), false),
  extract(epoch from min({beat_read}) filter (where not {stale}) - {now})::float8
    + %(stalled)s::float8 + %(slack)s::float8
from {table} as j
where j.{state} = 'processing' and {key} not in (select u.id from unnest(%(ids)s::text[]) as u(id)) and j.{id} is not null

-- The values by which lifecycle.reset decides, in the columns of the queue.
-- part: stalled_record
{key}, j.{worker_hostname}, {epoch}, %(task)s::text, {bare}, coalesce(j.{num_resets}, 0), %(max_resets)s::int,
  %(max_attempts)s::int, extract(epoch from {now} - {beat_read})::float8

-- name: find_stalled
select {stalled_record}
from {table} as j
where j.{state} = 'processing' and {stale} and j.{id} is not null
order by j.{id}
limit %(page)s
for update of j skip locked

-- name: find_held_by_worker
select {stalled_record}
from {table} as j
where j.{state} = 'processing' and {bare} = %(worker)s and j.{id} is not null
order by j.{id}
limit %(page)s
for update of j skip locked

-- name: find_held_by_lease
select {stalled_record}
from {table} as j, (select %(token)s::text as token, %(epoch)s::bigint as epoch) as g
where {held} and j.{id} = %(id)s::text::{id_type}
for update of j skip locked

-- Reset records that are unchanged since they were found and that no transaction has locked.
-- name: reset
with given as (
  select * from unnest(%(ids)s::text[]::{id_type}[], %(marks)s::text[], %(epochs)s::bigint[], %(states)s::text[])
    as g(id, mark, epoch, state)
), locked as (
  select j.{id} as id, case when {cancel} then 'canceled' else g.state end as state
  from given g join {table} as j on j.{id} = g.id and j.{state} = 'processing'
    and j.{worker_hostname} is not distinct from g.mark and {epoch} is not distinct from g.epoch
    and (%(slack)s::float8 is null or {stale})
  order by j.{id}
  for update of j skip locked
)
update {table} as j
set {state} = l.state::{state_type},
  {num_resets} = coalesce(j.{num_resets}, 0) + (l.state = 'queued')::int,
  {failure_message} = case when l.state = 'failed' then %(reset_failure_message)s::text::{message_type}
    else j.{failure_message} end,
  {finished_at} = case when l.state = 'queued' then j.{finished_at} else {finished_now} end,
  {started_at} = case when l.state = 'queued' then null else j.{started_at} end,
  {worker_hostname} = {bare}{queue_up}{drop_token}
from locked l
where j.{id} = l.id
returning {key}, l.state

-- Waiting records whose cancellation was requested.
-- name: find_cancel_waiting
select {key} from {table} as j where j.{state} in ('queued', 'errored') and {cancel} and j.{id} is not null
limit %(page)s

-- name: cancel_waiting
with locked as (
  select j.{id} as id from {table} as j
  where j.{state} in ('queued', 'errored') and {cancel} and j.{id} is not null
    and (%(ids)s::text[] is null or j.{id} = any(%(ids)s::text[]::{id_type}[]))
  limit %(page)s
  for no key update of j skip locked
)
update {table} as j
set {state} = 'canceled', {finished_at} = {finished_now}
from locked l
where j.{id} = l.id
returning {key}

-- Seconds until the next record is due, at most a day; null: none waits. It may be too early, but never too late.
-- name: next_due
select case when min(d.due) is not null then
    extract(epoch from least(greatest(min(d.due), {now}), {now} + interval '1 day') - {now})::float8 end
from (
  -- In descending order, a null is first. So the index answers this, without a scan of all waiting records.
  select case when last.due is null then {now} end
    from (select j.{process_after} as due from {table} as j where j.{state} = 'queued' and j.{id} is not null{seen}
      order by 1 desc limit 1) as last
  union all
  select min({process_read}) from {table} as j where j.{state} = 'queued' and j.{id} is not null{seen}
  union all
  -- Of all records that wait for a retry, a hundred are read: none of the others is due before the last of them.
  select least(min(greatest(e.due, e.again)), case when count(*) = 100 then max(e.due) end)
    from (
      select {process_read} as due, {finished_read} + {retry_after} as again from {table} as j
        where j.{state} = 'errored' and {retries} and j.{process_after} is not null and j.{id} is not null{seen}
        order by j.{process_after} limit 100
    ) as e
  union all
  select min(coalesce({finished_read} + {retry_after}, {now}))
    from {table} as j where j.{state} = 'errored' and {retries} and j.{process_after} is null and j.{id} is not null{seen}
) as d(due)

-- name: longest_wait
select coalesce(extract(epoch from {now} - min(d.due)), 0)::float8
from (
  select min(greatest({queued_read}, {process_read})) from {table} as j
    where j.{state} = 'queued' and (j.{process_after} is null or j.{process_after} <= {process_now})
      and greatest({queued_read}, {process_read}) between {now} - interval '1000 years' and {now} and j.{id} is not null{seen}
  union all
  select min(greatest({process_read}, {finished_read} + {retry_after})) from {table} as j
    where j.{state} = 'errored' and {retries}
      and greatest({process_read}, {finished_read} + {retry_after}) between {now} - interval '1000 years' and {now} and j.{id} is not null{seen}
) as d(due)

-- Only of claimed records: a record without a heartbeat belongs to the application.
-- name: longest_run
select coalesce(extract(epoch from {now} - min({started_read})), 0)::float8
from {table} as j where j.{state} = 'processing' and j.{last_heartbeat_at} is not null and j.{id} is not null

-- name: seconds_until
select extract(epoch from %(moment)s::timestamptz - {now})::float8

-- A running attempt loses its lease. A record whose cancellation is requested is canceled instead.
-- name: requeue
with locked as (
  select j.{id} as id, {cancel} as canceled
  from {table} as j
  where j.{id} = %(id)s::text::{id_type} and j.{state} in ('queued', 'errored', 'processing')
  for no key update of j skip locked
)
update {table} as j
set {state} = (case when l.canceled then 'canceled' else 'queued' end)::{state_type},
  {process_after} = case when l.canceled then j.{process_after}
    else {after} end,
  {finished_at} = case when l.canceled then {finished_now} else j.{finished_at} end,
  {started_at} = case when l.canceled then j.{started_at} end,
  {worker_hostname} = {bare}{queue_up_unless_canceled}{drop_token}
from locked l
where j.{id} = l.id
returning j.{state}::text

-- A retry by hand: the record begins again, whatever its state. A token that was still there finds no row any more.
-- name: retry
with locked as (
  select j.{id} as id, false as canceled
  from {table} as j
  where j.{id} = %(id)s::text::{id_type} and j.{state} in ('queued', 'errored', 'failed', 'canceled')
  for no key update of j skip locked
)
update {table} as j
set {state} = 'queued', {process_after} = null, {started_at} = null, {finished_at} = null,
  {num_failures} = 0, {num_resets} = 0, {worker_hostname} = {bare}{queue_up_unless_canceled}{drop_token}{uncancel}
from locked l
where j.{id} = l.id
returning j.{state}::text

-- Cancel a waiting record. The worker of a running record learns of it at its next heartbeat.
-- name: cancel
with locked as (
  select j.{id} as id, j.{state}::text as was
  from {table} as j
  where j.{id} = %(id)s::text::{id_type} and j.{state} in ('queued', 'errored'{cancelable})
  for no key update of j skip locked
)
update {table} as j
set {state} = case when l.was = 'processing' then j.{state} else 'canceled' end,
  {finished_at} = case when l.was = 'processing' then j.{finished_at} else {finished_now} end{ask_cancel}
from locked l
where j.{id} = l.id
returning l.was

-- The values for people, without the token.
-- name: page
select {shown} from {table} as j
where j.{state} = any(%(states)s::text[]::{state_type}[])
  and (%(after)s::text is null or j.{id} > %(after)s::text::{id_type}) and j.{id} is not null
order by j.{id}
limit %(limit)s

-- name: find
select {shown} from {table} as j where j.{id} = %(id)s::text::{id_type}

-- name: state_of
select j.{state}::text from {table} as j where j.{id} = %(id)s::text::{id_type}

-- name: count
select {c_state}::text, count(*) from {counted}
where {c_state}::text = any(%(states)s::text[]){conditions}
group by 1

-- name: exists
select exists (select from {counted} where {c_state}::text = any(%(states)s::text[]){conditions})

-- name: logs
select j.{execution_logs}::text[] from {table} as j where j.{id} = %(id)s::text::{id_type}

-- name: add_log
with locked as (
  select j.{id} as id from {table} as j, (select %(token)s::text as token, %(epoch)s::bigint as epoch) as g
  where j.{id} = %(id)s::text::{id_type} and {held}
    and coalesce(array_length(j.{execution_logs}, 1), 0) < %(most)s::int
  for no key update of j skip locked
)
update {table} as j
set {execution_logs} = array_append(j.{execution_logs}, %(entry)s::{log_type})
from locked l
where j.{id} = l.id
returning array_length(j.{execution_logs}, 1)

-- name: update_log
with locked as (
  select j.{id} as id from {table} as j, (select %(token)s::text as token, %(epoch)s::bigint as epoch) as g
  where j.{id} = %(id)s::text::{id_type} and {held}
    and %(number)s::int between 1 and array_length(j.{execution_logs}, 1)
  for no key update of j skip locked
)
update {table} as j
set {execution_logs}[%(number)s::int] = %(entry)s::{log_type}
from locked l
where j.{id} = l.id
returning %(number)s::int

-- name: look_at_log
select {held}, coalesce(array_length(j.{execution_logs}, 1), 0)
from {table} as j, (select %(token)s::text as token, %(epoch)s::bigint as epoch) as g
where j.{id} = %(id)s::text::{id_type}

-- The lock that the transaction of an attempt (transaction.py) holds until its end. It is not FOR UPDATE, so that rows
-- that refer to the record by a foreign key can be written meanwhile.
-- name: lock
select {cancel}
from {table} as j, (select %(token)s::text as token, %(epoch)s::bigint as epoch) as g
where j.{id} = %(id)s::text::{id_type} and {held}
for no key update of j

-- name: write_logs
with locked as (
  select j.{id} as id from {table} as j, (select %(token)s::text as token, %(epoch)s::bigint as epoch) as g
  where j.{id} = %(id)s::text::{id_type} and {held}
  for no key update of j skip locked
)
update {table} as j
set {execution_logs} = %(entries)s::text[]::{log_type}[]
from locked l
where j.{id} = l.id
