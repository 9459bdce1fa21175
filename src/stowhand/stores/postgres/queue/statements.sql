-- Calls of the schema's functions. Ids and tokens are sent as array literals, which are one text for any number of
-- elements, so one prepared statement serves all batches. rows.py defines the columns of a job: {live_job} for live jobs,
-- {any_job} for live jobs and the history, {claimed_job} for claimed jobs.

-- name: claim
select {claimed_job}
from {schema}.claim(%s, %s::uuid, %s::int, %s::float8, %s::text[], %s::text[], %s, %s::timestamptz,
  %s::int, %s::timestamptz, %s::bigint, %s::bigint[], %s, %s::text[], %s::text[], %s::int, %s::jsonb)

-- The last columns: for foreign leases, 1 if one is late, and the seconds until the first of the others expires; and
-- whether this connection listens.
-- name: poll
select {claimed_job},
  case when id = -1 and %s then (select array[f.late::int::float8, f.ends_in]
    from {schema}.foreign_leases(%s::bigint[], %s, %s::timestamptz) f) end,
  id = -1 and {channel} in (select pg_catalog.pg_listening_channels())
from {schema}.poll(%s, %s::uuid, %s::int, %s::float8, %s::text[], %s::text[], %s::timestamptz, %s::text[], %s::text[],
  %s::int, %s::jsonb)

-- name: settle_completed
select * from {schema}.settle_completed(%s::bigint[], %s::uuid[], %s, %s::timestamptz)

-- name: settle_and_claim
select settled, {claimed_job}
from {schema}.settle_and_claim(%s::bigint[], %s::uuid[], %s, %s, %s::uuid, %s::int, %s::float8, %s::text[], %s::text[],
  %s::timestamptz, %s::text[], %s::text[])

-- name: settle
select id, token::text, state from {schema}.settle_attempts(%s::bigint[], %s::uuid[], %s::text[], %s::float8[],
  %s::bool[], %s::text[], %s::text[], %s::text[], %s::text[], %s, %s::timestamptz, %s::bool[], %s::json[])

-- name: enqueue_children
select {schema}.enqueue_children(%s, %s, %s::int[], %s::text[], %s::json[], %s::text[], %s::timestamptz[], %s::float8[],
  %s::int[], %s::int[], %s::json[], %s::int[], %s::text[], %s::timestamptz)

-- name: adopt
select {schema}.adopt(%s, %s, %s::int[], %s::bigint[])

-- name: record_steps
select * from {schema}.record_steps(%s::bigint[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::timestamptz)

-- name: read_steps
select s.name, s.place, s.value::text, s.error, s.until, coalesce(s.until <= coalesce(%s::timestamptz, clock_timestamp()), false),
  s.remaining, s.at
from {schema}.steps s where s.job_id = %s order by s.seq

-- name: emit_event
select {schema}.emit_event(%s, %s::json, %s::bigint, %s::timestamptz)

-- name: is_emitted
select exists (select from {schema}.events e where e.name = %s and e.job_id in (0, %s::bigint))

-- name: fork_job
select {schema}.fork_job(%s, %s, %s::timestamptz)

-- name: look
select id, token::text, found, state from {schema}.look(%(ids)s::bigint[], %(tokens)s::uuid[])

-- name: beat
select id, token::text, found from {schema}.beat(%(ids)s::bigint[], %(tokens)s::uuid[], %(lease)s::float8,
  %(now)s::timestamptz)

-- name: find_canceled
select id, token::text from {schema}.find_canceled(%(ids)s::bigint[], %(tokens)s::uuid[])

-- name: keep_progress
select {schema}.keep_progress(%(ids)s::bigint[], %(tokens)s::uuid[], %(progress)s::float8[], %(texts)s::text[])

-- name: release
select * from {schema}.release(%(ids)s::bigint[], %(tokens)s::uuid[], %(keep)s, %(now)s::timestamptz)

-- name: abandon
select {schema}.abandon(%(token)s::uuid, %(keep)s, %(now)s::timestamptz)

-- name: foreign_leases
select late, ends_in from {schema}.foreign_leases(%(ids)s::bigint[], %(slack)s::float8, %(now)s::timestamptz)

-- The columns of a user's table. Only there, the epoch of the claim and the age of the last heartbeat have values.
-- part: stalled
id, token, null::bigint, task, worker, resets, max_resets, max_attempts, null::float8

-- name: find_stalled
select {stalled}
from {schema}.find_stalled(%(slack)s::float8, null, null, null, %(page)s::int, %(now)s::timestamptz)

-- name: find_held_by_worker
select {stalled}
from {schema}.find_stalled(null, %(worker)s, null, null, %(page)s::int, %(now)s::timestamptz)

-- name: find_held_by_lease
select {stalled}
from {schema}.find_stalled(null, null, %(id)s::bigint, %(token)s::uuid, %(page)s::int, %(now)s::timestamptz)

-- name: reset
select id, state from {schema}.reset(%(ids)s::bigint[], %(marks)s::uuid[], %(states)s::text[], %(errors)s::text[],
  %(slack)s::float8, %(keep)s, %(now)s::timestamptz)

-- name: maintain
select {schema}.maintain(%(history)s::float8, %(now)s::timestamptz, %(failed_retention)s::float8)

-- name: next_due
select {schema}.next_due(%s::text[], %s::timestamptz, %s::text[], %s::text[]),
  case when %s then (select f.ends_in from {schema}.foreign_leases(%s::bigint[], %s, %s::timestamptz) f) end

-- name: enqueue
select {live_job}
from {schema}.enqueue(_task => %s, _payload => %s::json, _run_at => %s::timestamptz, _delay => %s::float8, _key => %s,
  _mode => %s, {detail_arguments}, _now => %s::timestamptz, _on_failure => %s::json, _expires => %s::float8,
  _unique_period => %s::float8)

-- name: enqueue_built_in
select {live_job}
from {schema}.enqueue_built_in(_task => %s, _payload => %s::json, _run_at => %s::timestamptz, _delay => %s::float8,
  _key => %s, _mode => %s, {detail_arguments}, _now => %s::timestamptz)

-- An idle worker holds the lock (idle_announcement.py) and is notified.
-- part: wake_sleepers
case when pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended({channel}, 4))
  then pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended({channel}, 4))::text
  else pg_catalog.pg_notify({channel}, '')::text end

-- name: enqueue_plain
-- The commonest job: no key, short and plain, in a queue that the caller knows (NULL: `default`). A function call and a row of 21 columns cost half as much again
-- as this whole insert; what its answer leaves out, the caller knows (new_jobs.py: new_job). It is a transaction by itself, so
-- what it sees of sleepers is true but for the moment of its commit (idle_announcement.py): only if there is one it notifies.
insert into {schema}.live (task, payload, run_at, max_attempts, queue, {other_details}, created_at, updated_at)
select v.task, v.payload, coalesce(v.run_at, v.at + v.delay * interval '1 second', v.at),
  coalesce(v.max_attempts, (select s.max_attempts from {schema}.settings s)), v.queue, {other_values},
  v.at, v.at
from (values (%s::text, %s::json, %s::timestamptz, %s::float8, coalesce(%s::timestamptz, now()), {detail_values}))
  as v(task, payload, run_at, delay, at, {details})
returning id, nullif(run_at, created_at), created_at, max_attempts, queue,
  {wake_sleepers}

-- Several of those, of callers at the same time (group_commit.py), and those of a login that may not write the table: all or none,
-- in the order given. Whether a worker sleeps is asked once, with the first row, which comes when all are written.
-- name: enqueue_group
select id, nullif(run_at, created_at), created_at, max_attempts, queue,
  case when row_number() over () = 1 then {wake_sleepers} end
from {schema}.enqueue_many(%s::text[], %s::json[], %s::text[], %s::timestamptz[], %s::float8[], %s::int[], %s::int[],
  %s::json[], %s::int[], %s::text[], %s::timestamptz)

-- name: enqueue_many
select id from {schema}.enqueue_many(%s::text[], %s::json[], %s::text[], %s::timestamptz[], %s::float8[], %s::int[],
  %s::int[], %s::json[], %s::int[], %s::text[], %s::timestamptz)

-- name: enqueue_jobs
select {live_job} from {schema}.enqueue_jobs(%s::json, %s::timestamptz)

-- An idle worker holds this lock on its listening connection (idle_announcement.py).
-- name: fall_asleep
select pg_catalog.pg_advisory_lock_shared(pg_catalog.hashtextextended({channel}, 4))

-- name: wake_up
select pg_catalog.pg_advisory_unlock_shared(pg_catalog.hashtextextended({channel}, 4))

-- name: wake
select pg_catalog.pg_notify({channel}, '')

-- name: job_ends
select * from {schema}.job_ends(%s::bigint[])

-- name: get
select {any_job}
from {schema}.everything where id = %s::bigint

-- name: tries
select number, round, worker, started_at, ended_at, outcome, error_class, error
from {schema}.tries where job_id = %s::bigint order by place

-- name: retry
select done, why from {schema}.retry(%s::bigint, %s::timestamptz)

-- name: retry_failed
select * from {schema}.retry_failed(%s::bigint[], %s::timestamptz)

-- name: cancel
select done, why from {schema}.cancel(%s::bigint, %s, %s::timestamptz)

-- name: remove
select done, why from {schema}.remove(%s::bigint)

-- Jobs are locked in id order, so that two calls at once do not deadlock. Failed jobs, usually all, are retried by one
-- update: one by one, 2,000 of them take half a second.
-- name: retry_jobs
with given as materialized (select %s::bigint[] as ids, %s::timestamptz as at
), failed as materialized (select f.id from given, {schema}.retry_failed(given.ids, given.at) as f(id)
)
select g.id, a.done, a.why from given cross join unnest(given.ids) with ordinality as g(id, n)
  left join failed f on f.id = g.id
  cross join lateral (
    select 'done' as done, '' as why where f.id is not null
    union all
    select r.done, r.why from {schema}.retry(g.id, given.at) r where f.id is null) a
  order by g.n

-- name: cancel_jobs
select g.id, a.done, a.why from unnest(%s::bigint[]) with ordinality as g(id, n)
  cross join lateral {schema}.cancel(g.id, %s, %s::timestamptz) a order by g.n

-- name: remove_jobs
select g.id, a.done, a.why from unnest(%s::bigint[]) with ordinality as g(id, n)
  cross join lateral {schema}.remove(g.id) a order by g.n

-- name: remove_key
select id, done, why from {schema}.remove_key(%s)

-- name: complete_jobs
select {live_job}
from {schema}.complete_all(%s::bigint[], %s, %s::timestamptz)

-- name: permanently_fail_jobs
select {live_job}
from {schema}.fail_all(%s::bigint[], %s, %s::timestamptz)

-- name: reschedule_jobs
select {live_job}
from {schema}.reschedule_all(%s::bigint[], %s::timestamptz, %s::int, %s::int, %s::int, %s::text, %s, %s::timestamptz)

-- name: force_unlock_workers
select {live_job}
from {schema}.unlock_all(%s::text[], %s, %s::timestamptz)

-- name: cron_now
select pg_catalog.clock_timestamp()

-- name: cron_register
select identifier, known_since, last_tick, spec, spec_since, scheduled_by, scheduled_at
from {schema}.cron_register(%s::text[], %s::text[], %s::timestamptz)

-- name: cron_enter
select mine, job_id, spec from {schema}.cron_enter(%s::text[], %s::timestamptz[], %s::text[], %s::bool[],
  %s::timestamptz)

-- name: cron_note
select {schema}.cron_note(%s::text[], %s::timestamptz[], %s::bigint[])

-- name: cron_known
select identifier, known_since, last_tick, spec, spec_since, scheduled_by, scheduled_at from {schema}.cron_known()

-- name: cron_report
select {schema}.cron_report(%s::text[], %s, %s::interval, %s::timestamptz)

-- name: cron_forget
select {schema}.cron_forget(%s, %s::interval, %s::timestamptz)

-- name: lock_schema
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({channel}, 0))

-- name: has_schema
select pg_catalog.to_regnamespace({schema_name}) is not null

-- Whether our ledger exists; the kind of the relation `migrations` ('r': that of graphile-worker, 'v': ours); whether our
-- table of jobs exists; whether arrays may contain NULL.
-- name: standing
select pg_catalog.to_regclass({schema_name} || '.applied_migrations') is not null,
  (select c.relkind::text from pg_catalog.pg_class c
   where c.oid = pg_catalog.to_regclass({schema_name} || '.migrations')),
  pg_catalog.to_regclass({schema_name} || '.live') is not null, pg_catalog.current_setting('array_nulls')::bool

-- name: applied
-- Read as JSON, as a schema from before the first release has no fingerprints.
select m.id, m.breaking, pg_catalog.to_jsonb(m)->>'fingerprint' from {schema}.applied_migrations m order by m.id

-- name: newest_breaking
select coalesce(max(id), 0) from {schema}.applied_migrations where breaking

-- name: set_max_attempts
update {schema}.settings set max_attempts = %s::int

-- Every later session waits behind a waiting lock on a table, so wait only for a short time.
-- name: be_patient
select pg_catalog.set_config('lock_timeout', '5s', true)

-- name: function_digests
select p.proname::text, pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(p.prosrc, 'UTF8')), 'hex')
from pg_catalog.pg_proc p where p.pronamespace = pg_catalog.to_regnamespace({schema_name})

-- Every object in the schema of the search path, as (name, definition), without the days of the history, which change.
-- name: shape
with relations as (
  select c.oid, c.relname, c.relkind from pg_catalog.pg_class c
  where c.relnamespace = pg_catalog.to_regnamespace(pg_catalog.quote_ident(pg_catalog.current_schema()))
    and c.relkind in ('r', 'p', 'v', 'c') and c.relname !~ '^history_[0-9]{8}$'
)
select case r.relkind when 'c' then 'type ' else 'column ' end || r.relname || '.' || a.attname,
  pg_catalog.format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end
from relations r join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
union all
select 'view ' || r.relname, pg_catalog.pg_get_viewdef(r.oid) from relations r where r.relkind = 'v'
union all
select 'constraint ' || r.relname || '.' || n.conname, pg_catalog.pg_get_constraintdef(n.oid)
from relations r join pg_catalog.pg_constraint n on n.conrelid = r.oid and n.contype <> 'n'
union all
select 'index ' || k.relname,
  x.indisunique::text || pg_catalog.substring(pg_catalog.pg_get_indexdef(x.indexrelid), ' USING .*$')
from relations r join pg_catalog.pg_index x on x.indrelid = r.oid join pg_catalog.pg_class k on k.oid = x.indexrelid
order by 1

-- name: settings
select max_attempts from {schema}.settings

-- name: create_schema
create schema {schema}

-- name: owner_to_be
-- The owner of the tables, if it is another role than the caller's that the caller may act as.
select r.rolname from pg_catalog.pg_class c join pg_catalog.pg_roles r on r.oid = c.relowner
where c.oid = pg_catalog.to_regclass({schema_name} || '.live') and r.rolname <> current_user
  and pg_catalog.pg_has_role(current_user, r.oid, 'member')

-- name: let_roles_in
grant usage on schema {schema} to {enqueuer}, {worker}, {reader}, {admin}

-- name: drop_schema
drop schema if exists {schema} cascade

-- name: flow_create
select {schema}.flow_create(%s, %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::json[], %s::text[],
  %s::timestamptz[], %s::float8[], %s::int[], %s::text[], %s::int[], %s::json[], %s::text[], %s::int[], %s::timestamptz)

-- name: flow_hold_key
select {schema}.flow_hold_key(%s, %s, %s)

-- name: flow_keep
select {schema}.flow_keep(%s::text[], %s::text[], %s::text[])

-- name: flow_kept
select * from {schema}.flow_kept(%s)

-- name: flow_ids
select * from {schema}.flow_ids(%s, %s, %s)

-- name: flow_exists
select * from {schema}.flow_exists(%s::text[])

-- name: flow_latest
select {any_job}
from {schema}.flow_latest(%s::text[])

-- name: flow_delete
select {schema}.flow_delete(%s, %s, %s::text[])

-- name: flow_wake
select {schema}.flow_wake(%s, %s::timestamptz)

-- name: flow_spend
select {schema}.flow_spend(%s, %s, %s, %s::bigint, %s::float8, %s::timestamptz)

-- name: pause_serial
select {schema}.pause_serial(%s, %s::timestamptz)

-- name: resume_serial
select {schema}.resume_serial(%s, %s::timestamptz)

-- name: pause_task
select {schema}.pause_task(%s, %s::timestamptz)

-- name: resume_task
select {schema}.resume_task(%s, %s::timestamptz)

-- name: pause_queue
select {schema}.pause_queue(%s, %s::timestamptz)

-- name: resume_queue
select {schema}.resume_queue(%s, %s::timestamptz)

-- name: declared_limit
select declared from {schema}.limits where name = %s

-- name: set_limit
select {schema}.set_limit(%s, %s::int, %s::int, make_interval(secs => %s::float8), %s::int,
  %s::int, %s::int, make_interval(secs => %s::float8), %s::int)

-- name: reset_limit
select {schema}.reset_limit(%s)

-- name: worker_seen
select {schema}.worker_seen(%(name)s, %(host)s, %(pid)s::bigint, %(version)s, %(tasks)s::text[], %(concurrency)s::int,
  %(stopping)s, %(now)s::timestamptz, %(forbidden_flags)s::text[], %(app_version)s, %(abandoned_threads)s::int,
  %(blocked)s, %(queues)s::text[], %(excluded_queues)s::text[]),
  (select coalesce(max(id), 0) from {schema}.applied_migrations where breaking)

-- name: declare_tasks
select {schema}.declare_tasks(%(declarations)s::json)

-- name: worker_gone
select {schema}.worker_gone(%(name)s)

-- name: write_throughput
select minute, task from {schema}.write_throughput(%(writer)s, %(rows)s::jsonb, %(now)s::timestamptz)

-- name: purge_history
select completed, canceled, _next
from {schema}.purge_history(%s::float8, %s::float8, %s::bigint, %s::int, %s::timestamptz)

-- name: purge_failed
select {schema}.purge_failed(%s::float8, %s::int, %s::timestamptz)

-- Each state is counted up to a limit, as an exact count of many millions takes longer than a person waits.
-- name: purgeable
select (
    select count(*) from (
      select from {schema}.history h
      where h.state = 'completed'
        and h.finished_at < coalesce(%(now)s::timestamptz, now()) - %(completed)s::float8 * interval '1 second'
      limit %(limit)s::int) c), (
    select count(*) from (
      select from {schema}.history h
      where h.state = 'canceled'
        and h.finished_at < coalesce(%(now)s::timestamptz, now()) - %(canceled)s::float8 * interval '1 second'
      limit %(limit)s::int) c), (
    select count(*) from (
      select from {schema}.live l
      where l.state = 'failed'
        and l.finished_at < coalesce(%(now)s::timestamptz, now()) - %(failed)s::float8 * interval '1 second'
      limit %(limit)s::int) c)
