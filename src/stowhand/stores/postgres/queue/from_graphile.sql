-- Statements that move the jobs of a graphile-worker schema ({theirs}) into ours. Its layouts differ, so {jobs}, {crontabs},
-- {task}, {queue} and {joins} are filled in for the existing one. A lock of graphile-worker expires after four hours.

-- part: failed
 j.attempts >= j.max_attempts

-- part: locked
 j.locked_at > now() - interval '4 hours'

-- name: tables
select c.relname::text, array_agg(a.attname::text)
from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
where c.relnamespace = pg_catalog.to_regnamespace({theirs_name}) and c.relkind in ('r', 'p')
  and a.attnum > 0 and not a.attisdropped
group by c.relname

-- Row security without a policy hides all rows from any login but the owner. An error is better than an empty copy.
-- name: see_all_rows
select pg_catalog.set_config('row_security', 'off', true)

-- name: lock_theirs
lock table {jobs}, {crontabs} in access exclusive mode

-- name: counts
select count(*)::bigint, (count(*) filter (where {failed}))::bigint,
  (count(*) filter (where j.attempts > 0 and not ({failed})))::bigint,
  count(j.key)::bigint, count({queue})::bigint, count(distinct {queue})::bigint,
  (count(*) filter (where j.flags <> '{}'::jsonb))::bigint, (select count(*) from {crontabs})::bigint
from {jobs} j {joins}

-- name: holders
select coalesce(j.locked_by, '(no name)'), count(*)::bigint from {jobs} j where {locked} group by 1 order by 1

-- Jobs beyond our limits. A payload that no worker can decode is copied, as its job fails alone.
-- name: misfits
select count(*)::bigint, (array_agg(j.id::bigint order by j.id))[1:5]
from {jobs} j {joins}
where {task} = any({reserved}) or length({task}) not between 1 and 128
  or length({queue}) not between 1 and 128 or length(j.key) > 512 or j.max_attempts < 1
  or concat({task}, {queue}, j.key) ~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028\\u2029]'
  or case when pg_catalog.pg_column_size(j.payload) >= 2000 then octet_length(j.payload::text) > 1048576 end
  or case pg_catalog.jsonb_typeof(j.flags)
    when 'object' then (
      select count(*) > 64 or coalesce(bool_or(
        length(f.flag) not between 1 and 128 or f.flag ~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028\\u2029]'), false)
      from pg_catalog.jsonb_object_keys(j.flags) as f(flag))
    else pg_catalog.jsonb_typeof(j.flags) <> 'null' end

-- name: taken_keys
select count(*)::bigint, (array_agg(j.key order by j.key))[1:5]
from {jobs} j join {schema}.live l on l.key = j.key

-- Whether no id of ours was used yet, so that the jobs can keep their ids.
-- name: is_unused
select not is_called from {schema}.live_id_seq

-- name: has_kept
select pg_catalog.to_regnamespace({kept_name}) is not null

-- name: rename
alter schema {theirs} rename to {kept}

-- name: copy_jobs
insert into {schema}.live (
  {id} task, payload, serial, priority, run_at, state, attempts, max_attempts, key, flags, revision, finished_at, created_at,
  updated_at, last_error)
{overriding}
select {id_value} {task}, j.payload, {queue}, j.priority, j.run_at,
  case when {failed} then 'failed' when j.attempts > 0 and j.last_error is not null then 'errored' else 'queued' end,
  least(j.attempts, j.max_attempts), j.max_attempts, j.key,
  case when pg_catalog.jsonb_typeof(j.flags) = 'object' then
    nullif(array(select k.flag from pg_catalog.jsonb_object_keys(j.flags) as k(flag) order by k.flag), '{}') end,
  j.revision, case when {failed} then j.updated_at end, j.created_at, j.updated_at, left(j.last_error, 16384)
from {jobs} j {joins}
order by j.id

-- name: continue_ids
select pg_catalog.setval({sequence_text}, max(l.id)) from {schema}.live l having max(l.id) is not null

-- graphile-worker stores only the last tick. It becomes the last tick of the item and a row of the ledger, so it is not
-- scheduled again.
-- name: copy_crontab
insert into {schema}.crontab as known (identifier, known_since, last_tick, spec)
select c.identifier, c.known_since, c.last_execution, '' from {crontabs} c
on conflict (identifier) do update set known_since = least(known.known_since, excluded.known_since),
  last_tick = greatest(known.last_tick, excluded.last_tick)

-- name: copy_ticks
insert into {schema}.ticks (identifier, tick, job_id, backfilled, spec, scheduled_at)
select c.identifier, c.last_execution, 0, false, '', c.last_execution from {crontabs} c
where c.last_execution is not null
on conflict do nothing

-- name: count_for_planner
analyze {schema}.live

-- name: wake
select {schema}.wake()
