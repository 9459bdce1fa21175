-- breaking
-- The whole schema: tables, types, indexes and views. Functions are in functions/ and are replaced by every installation.
-- Until the first release this file is edited in place; a schema made from another text of it is refused.

-- The ledger of applied migrations. Its name is not `migrations`, which graphile-worker uses
-- (functions/shared_name.sql).
create table {schema}.applied_migrations (
  id int primary key,
  ts timestamptz not null default now(),
  breaking boolean not null default false,
  fingerprint text not null
);

-- Settings. The installation fills them into the texts of functions, so no call reads them. The table has one row.
create table {schema}.settings (
  only_row boolean primary key default true,
  max_attempts int not null default 25,
  constraint one_row check (only_row),
  constraint max_attempts_at_least_1 check (max_attempts >= 1)
);
insert into {schema}.settings default values;

-- Jobs that may still run are in `live`; jobs that have ended are in `history`. The state machine of jobs/lifecycle.py is
-- repeated here as the rules of `live`, so that no program error can store a state that it does not know.
--
-- All rules are one CHECK: PostgreSQL prepares every CHECK of a table anew for each statement, and for a statement of one row
-- fourteen of them were two thirds of an insert. The function takes columns and not the row: a composite of each of a thousand
-- rows costs more than the rules. Every name in it is qualified, and operators are called by their functions (texteq is `=`): a
-- search_path of its own would cost more than the rules, too. It is not in functions/, because replacing it would not check the
-- rows that are there: other rules are another function and another constraint.
create function {schema}.is_lawful(
  _task text, _payload json, _serial text, _state text, _attempts int, _max_attempts int, _resets int, _max_resets int,
  _queue text, _key text, _flags text[], _token uuid, _settled_token uuid, _worker text, _lease_until timestamptz,
  _finished_at timestamptz, _cancel_requested boolean, _loses_retries text, _absorbed boolean
) returns boolean
language plpgsql immutable as $$
declare
  _broken text;
begin
  -- The most common rows pass here; these conditions are stricter than the rules. Each transaction prepares those that it
  -- comes to, so the lengths of absent names are apart. A payload of less than 2000 stored bytes is within the limit: no
  -- compression reduces 500 bytes to one.
  if (pg_catalog.texteq(_state, 'queued') and _token is null and _lease_until is null and _worker is null
        and not _cancel_requested and (not _absorbed or _serial is not null)
      or pg_catalog.texteq(_state, 'processing') and _token is not null and _lease_until is not null
        and _worker is not null and _settled_token is null and not _absorbed)
    and _finished_at is null and _max_resets is null and _flags is null and _loses_retries is null
    and pg_catalog.int4ge(_attempts, 0) and pg_catalog.int4le(_attempts, _max_attempts)
    and pg_catalog.int4ge(_max_attempts, 1) and pg_catalog.int4ge(_resets, 0)
    and pg_catalog.textne(_task, '') and pg_catalog.int4le(pg_catalog.length(_task), 128)
    and pg_catalog.int4lt(pg_catalog.pg_column_size(_payload), 2000)
  then
    if _serial is null and _queue is null and _key is null then return true; end if;
    if (_serial is null or pg_catalog.int4le(pg_catalog.length(_serial), 128))
      and (_queue is null or pg_catalog.int4le(pg_catalog.length(_queue), 128) and pg_catalog.textne(_queue, '')
           and pg_catalog.textne(_queue, 'default') and pg_catalog.textregexne(_queue, '^ |,| $'))
      and (_key is null or pg_catalog.textne(_key, '') and pg_catalog.int4le(pg_catalog.length(_key), 512))
    then
      return true;
    end if;
  end if;
  _broken := case
    when _cancel_requested and not (pg_catalog.texteq(_state, 'processing') or pg_catalog.texteq(_state, 'failed'))
      then 'asked_while_processing'
    when not (pg_catalog.int4ge(_attempts, 0) and pg_catalog.int4ge(_max_attempts, 1)
              and pg_catalog.int4le(_attempts, _max_attempts))
      then 'attempts_in_range'
    when pg_catalog.boolne(pg_catalog.texteq(_state, 'failed'), _finished_at is not null) then 'finished_iff_failed'
    when pg_catalog.int4gt(pg_catalog.cardinality(_flags), 64) then 'flags_count'
    when pg_catalog.texteq(_key, '') or pg_catalog.int4gt(pg_catalog.length(_key), 512) then 'key_length'
    when _loses_retries is not null
        and not ((pg_catalog.texteq(_loses_retries, 'replaced') or pg_catalog.texteq(_loses_retries, 'removed'))
                 and _key is null)
      then 'keyless_if_replaced'
    when not (pg_catalog.texteq(_state, 'queued') or pg_catalog.texteq(_state, 'processing')
              or pg_catalog.texteq(_state, 'errored') or pg_catalog.texteq(_state, 'failed'))
      then 'known_state'
    when pg_catalog.boolne(pg_catalog.texteq(_state, 'processing'), _token is not null)
        or pg_catalog.boolne(_token is null, _lease_until is null) or pg_catalog.boolne(_token is null, _worker is null)
      then 'leased_iff_processing'
    when pg_catalog.int4gt(pg_catalog.octet_length(_payload::pg_catalog.text), 1048576) then 'payload_size'
    when pg_catalog.texteq(_queue, '') or pg_catalog.int4gt(pg_catalog.length(_queue), 128) then 'queue_length'
    when pg_catalog.texteq(_queue, 'default') then 'queue_is_null_for_default'
    when pg_catalog.textregexeq(_queue, '^ |,| $') then 'queue_without_comma_and_outer_blanks'
    when pg_catalog.int4gt(pg_catalog.length(_serial), 128) and pg_catalog.int4eq(pg_catalog.strpos(_serial, E'\t'), 0)
      then 'serial_length'
    when not (pg_catalog.int4ge(_resets, 0) and (_max_resets is null or pg_catalog.int4ge(_max_resets, 0)))
      then 'resets_in_range'
    when _absorbed and not (_serial is not null
                            and (pg_catalog.texteq(_state, 'queued') or pg_catalog.texteq(_state, 'errored')))
      then 'absorbed_while_waiting'
    when _settled_token is not null and pg_catalog.texteq(_state, 'processing') then 'settled_unless_processing'
    when pg_catalog.texteq(_task, '') or pg_catalog.int4gt(pg_catalog.length(_task), 128) then 'task_length'
  end;
  if _broken is not null then
    -- The same words as PostgreSQL's own error, with the name of the rule.
    raise exception 'new row for relation "live" violates check constraint "%"', _broken
      using errcode = '23514', schema = {schema_text}, table = 'live', constraint = _broken;
  end if;
  return true;
end $$;

-- The columns from `state` to `updated_at` are those that claims, heartbeats and settlements change. The log record of
-- an update omits what both rows have in common at their beginning and at their end. So long columns that seldom change
-- stand before or after those: `payload` before, `last_error` after. With `last_error` between them, a claim of a job
-- with a traceback of 700 bytes logged 1024 bytes instead of 376.
create table {schema}.live (
  id bigint generated always as identity,
  task text not null,
  payload json not null default '{}',
  -- The serial key; or, for a job of a limit with keys, the name of the limit, a tab, and the key (functions/serials.sql).
  serial text,
  -- The class of work. NULL: `default`.
  queue text,
  priority int not null default 0,
  run_at timestamptz not null default now(),
  state text not null default 'queued',
  attempts int not null default 0,
  max_attempts int not null default 25,
  resets int not null default 0,
  max_resets int,
  key text,
  flags text[],
  revision int not null default 0,
  token uuid,
  settled_token uuid,
  epoch bigint not null default 0,
  worker text,
  lease_until timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  cancel_requested boolean not null default false,
  loses_retries text,
  -- Whether claims find the job by the row of its serial key instead of the index live_scouts (functions/serials.sql).
  absorbed boolean not null default false,
  -- While the job is processing: its slot in its key (functions/serials.sql), and its slot in the concurrency limit of its
  -- task (functions/limits.sql). Otherwise the last ones.
  key_slot int,
  limit_name text,
  limit_slot int,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- The worker that held the job last.
  last_worker text,
  -- The round of the entries that its attempts will write to `tries`. NULL: the first round.
  round int,
  -- The revision at which another job last replaced this one under its key. NULL: it was not replaced.
  replaced int,
  -- The job that is enqueued when this one has failed permanently (functions/on_failure.sql). NULL: none.
  on_failure json,
  -- The progress that the handler of a running job reports. It is kept over retries and cleared at the end.
  progress double precision,
  progress_text text,
  -- The time at which the job is canceled unless a worker has claimed it. NULL: it does not expire, or an attempt has
  -- begun.
  expires_at timestamptz,
  -- What a workflow waits for, and the parent of a child: its id, step, and the place of the child in it
  -- (functions/workflows.sql).
  waits_for text,
  parent_id bigint,
  parent_step text,
  parent_place int,
  last_error text,
  constraint live_pkey primary key (id),
  constraint lawful check ({schema}.is_lawful(
    task, payload, serial, state, attempts, max_attempts, resets, max_resets, queue, key, flags, token, settled_token,
    worker, lease_until, finished_at, cancel_requested, loses_retries, absorbed))
) with (
  -- Leave room for the row that a claim writes. On the same page, its log record has one page instead of two and omits
  -- what both rows have in common.
  fillfactor = 60,
  -- At full rate the table turns over many times a minute. So vacuum by the number of rows, not by their share, and
  -- without pauses.
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000
);

-- The index is partial, so jobs without a key do not pay for it.
create unique index live_key on {schema}.live (key) where key is not null;

-- The indexes of a claim. The literal 2 is lifecycle.MIN_SUSPECT_RESETS: an ordinary claim does not see suspects.
create index live_ready on {schema}.live (priority, run_at, id)
  where state in ('queued', 'errored') and serial is null and resets < 2;
-- The jobs of one task, for workers that do not have all tasks. Its predicate has the meaning of that of live_ready in
-- other words (see is_lawful), so PostgreSQL cannot use live_ready for a statement that is written for this index,
-- whatever the statistics say. PostgreSQL also prepares every predicate for each statement that writes, and a test for
-- NULL is cheaper than a comparison of texts.
create index live_by_task on {schema}.live (task, priority, run_at, id)
  where queue is null and worker is null and finished_at is null and serial is null and resets < 2;
create index live_by_queue on {schema}.live (queue, task, priority, run_at, id)
  where queue is not null and worker is null and finished_at is null and serial is null and resets < 2;
-- Waiting jobs of serial keys that are not absorbed (functions/serials.sql).
create index live_scouts on {schema}.live (priority, run_at, id)
  where serial is not null and not absorbed and worker is null and finished_at is null and resets < 2;
-- The task precedes the priority, so one step skips all jobs of another task with the same key.
create index live_in_serial on {schema}.live (serial, task, priority, run_at, id) include (queue)
  where state in ('queued', 'errored') and serial is not null and resets < 2;
create index live_suspects on {schema}.live (priority, run_at, id)
  where state in ('queued', 'errored') and resets >= 2;

-- The index is ordered by id, not by deadline. So a heartbeat changes no indexed column and stays within its page
-- (HOT).
create index live_processing on {schema}.live (id) where state = 'processing';

-- A slot is held by one job, while that job is processing.
create unique index live_key_slots on {schema}.live (serial, key_slot) where key_slot is not null and worker is not null;
create unique index live_limit_slots on {schema}.live (limit_name, limit_slot)
  where limit_slot is not null and worker is not null;

-- Only workflows pay for these.
create index live_waiting on {schema}.live (waits_for) where waits_for is not null and state = 'queued';
create index live_children on {schema}.live (parent_id) where parent_id is not null;

-- For people: failed jobs in the order in which they failed, for lists, counts and the purge.
create index live_failed on {schema}.live (finished_at, id) where state = 'failed';
-- Only failing jobs pay for these two indexes.
create index live_troubled on {schema}.live (state, task) include (queue) where state in ('errored', 'failed');
create index live_errors on {schema}.live (id) where last_error is not null;

-- A position in the order in which jobs are claimed.
create type {schema}.place as (priority int, run_at timestamptz, id bigint);

create type {schema}.serial_heads as (heads bigint[], names text[], unfinished boolean);

-- The end of one attempt, decided while its row was locked. `payload`: the remaining elements of a batch, which replace
-- the payload. `outcome`: the outcome of the entry in `tries`; NULL: the attempt has no entry.
create type {schema}.verdict as (
  id bigint, token uuid, serial text, state text, attempts int, resets int, epoch bigint, settled_token uuid,
  delay double precision, error text, result text, payload text, outcome text, error_class text);

-- An argument of `add_jobs`: one job.
create type {schema}.job_spec as (
  identifier text, payload json, queue_name text, run_at timestamptz, max_attempts int, job_key text, priority int,
  flags text[], work_queue text);

-- An argument of `enqueue_jobs` and `enqueue_text`: one job, with the fields of NewJob (jobs/job.py).
create type {schema}.new_job as (
  task text, payload text, serial text, run_at timestamptz, delay double precision, max_attempts int, key text, priority int,
  flags text[], key_mode text, max_resets int, on_failure json, expires double precision, unique_period double precision,
  queue text);

-- A serial key, or a key of a limit (its name is as in live.serial), from the first claim of one of its jobs. `absorbed`:
-- some of its waiting jobs are no longer scouts (functions/serials.sql). So freeing the key must leave a hint: the position
-- and the time at which to look for its next job. `next_start` and `held_until` are as in `limits`, for a key of a limit.
-- `served_at` and `turn`: the last claim of the key, if the keys of its task take turns.
create table {schema}.limit_keys (
  name text primary key,
  next_start timestamptz,
  held_until timestamptz,
  served_at timestamptz,
  turn bigint,
  absorbed boolean not null default false,
  hint_priority int,
  hint_run_at timestamptz,
  hint_id bigint,
  paused_at timestamptz,
  constraint hint_if_open_and_absorbed check (hint_run_at is null or (paused_at is null and absorbed)),
  constraint hint_whole check (
    (hint_run_at is null) = (hint_priority is null) and (hint_run_at is null) = (hint_id is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Turns have the place of ids in the order of claims, behind all ids.
create sequence {schema}.turns minvalue 4611686018427387904;

create index limit_keys_hinted on {schema}.limit_keys (hint_priority, hint_run_at, hint_id) where hint_run_at is not null;

-- Paused tasks and queues.
create table {schema}.pauses (
  kind text not null,
  name text not null,
  since timestamptz not null,
  constraint pauses_pkey primary key (kind, name),
  constraint known_kind check (kind in ('task', 'queue')),
  constraint name_length check (length(name) between 1 and 128)
);

-- The queue that a task declares, as its latest worker reported it, for producers that do not know the task. A task in
-- `default` has no row.
create table {schema}.task_queues (
  task text primary key,
  queue text not null,
  constraint task_length check (length(task) between 1 and 128),
  constraint queue_length check (length(queue) between 1 and 128)
);

-- The limits of tasks, by name (functions/limits.sql). The columns from `concurrency` to `burst` are the values in effect:
-- those of `override` where it has one, otherwise those of `declared`, as jobs/task_limits.py: LimitValues in JSON.
create table {schema}.limits (
  name text primary key,
  declared jsonb not null,
  override jsonb not null default '{}',
  concurrency int generated always as (coalesce(override->>'concurrency', declared->>'concurrency')::int) stored,
  rate int generated always as (coalesce(override->>'rate', declared->>'rate')::int) stored,
  rate_seconds double precision
    generated always as (coalesce(override->>'rate_seconds', declared->>'rate_seconds')::double precision) stored,
  burst int generated always as (coalesce(override->>'burst', declared->>'burst')::int) stored,
  -- The same for each key.
  key_concurrency int
    generated always as (coalesce(override->>'key_concurrency', declared->>'key_concurrency')::int) stored,
  key_rate int generated always as (coalesce(override->>'key_rate', declared->>'key_rate')::int) stored,
  key_rate_seconds double precision
    generated always as (coalesce(override->>'key_rate_seconds', declared->>'key_rate_seconds')::double precision) stored,
  key_burst int generated always as (coalesce(override->>'key_burst', declared->>'key_burst')::int) stored,
  -- The start of the next job if all starts were evenly spaced. NULL: none has started.
  next_start timestamptz,
  -- No job starts before this time.
  held_until timestamptz,
  constraint name_length check (length(name) between 1 and 128),
  constraint values_in_range check (
    concurrency >= 0 and rate >= 1 and rate_seconds > 0 and burst >= 1
    and key_concurrency >= 0 and key_rate >= 1 and key_rate_seconds > 0 and key_burst >= 1)
) with (fillfactor = 70);

create table {schema}.task_limits (
  task text primary key,
  concurrency text references {schema}.limits (name),
  rate text references {schema}.limits (name),
  -- The limit with keys, and the argument that is the key: its name, and those of its members. NULL: the enqueuer computes
  -- the key.
  key_limit text references {schema}.limits (name),
  key_path text[],
  -- Whether the keys take turns.
  is_fair boolean not null default false,
  constraint has_a_limit check (concurrency is not null or rate is not null or key_limit is not null),
  constraint path_of_a_key check (key_limit is not null or key_path is null),
  constraint turns_of_keys check (key_limit is not null or not is_fair)
);

-- The tokens of claims whose reply was lost. A token in this table cannot claim any more.
create table {schema}.dead_tokens (
  token uuid primary key,
  at timestamptz not null default now()
);

-- The job that last took a key for a period. An enqueue within the period returns that job, even if it has completed
-- (functions/uniques.sql). Only enqueues with a period write to this table.
create table {schema}.uniques (
  key text not null,
  job_id bigint not null,
  enqueued_at timestamptz not null,
  until timestamptz not null,
  constraint uniques_pkey primary key (key)
);
create index uniques_job on {schema}.uniques (job_id);
create index uniques_until on {schema}.uniques (until);

-- Jobs that expire. They are in a separate table and not in an index of `live`, so other jobs do not pay for them. A
-- row is valid while the job has the same expiry. Any other row is obsolete and is deleted at its time
-- (functions/expire.sql).
create table {schema}.expiring (
  expires_at timestamptz not null,
  id bigint not null,
  constraint expiring_pkey primary key (expires_at, id)
);

-- Entries of attempts that did not complete. Claims, heartbeats and completions do not touch this table. In a column of
-- `live`, 0.9 KiB of entries would make the log record of a claim and of a heartbeat 1285 bytes instead of 350.
create table {schema}.tries (
  job_id bigint not null,
  place bigint not null,
  round int not null,
  number int not null,
  worker text,
  started_at timestamptz,
  ended_at timestamptz not null,
  outcome text not null,
  error_class text,
  error text,
  constraint tries_pkey primary key (job_id, place)
);

-- Jobs that have completed or were canceled. The primary key is needed by publications FOR ALL TABLES, which forbid
-- updates and deletions of rows without an identity. It also serves lookups by id.
create table {schema}.history (
  id bigint not null,
  task text not null,
  payload json not null,
  serial text,
  queue text,
  priority int not null,
  run_at timestamptz not null,
  state text not null,
  attempts int not null,
  max_attempts int not null,
  resets int not null,
  max_resets int,
  key text,
  flags text[],
  last_error text,
  revision int not null,
  settled_token uuid,
  epoch bigint not null,
  worker text,
  started_at timestamptz,
  finished_at timestamptz not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  cancel_requested boolean not null,
  result json,
  replaced int,
  -- Needed when a canceled job is retried.
  on_failure json,
  parent_id bigint,
  constraint history_pkey primary key (id, finished_at),
  constraint over check (state in ('completed', 'canceled'))
) partition by range (finished_at);

-- The index is partial, so other jobs do not pay for it.
create index history_flow on {schema}.history (key, id) where key like 'flow:%';
create index history_canceled on {schema}.history (id) where state = 'canceled';
create index history_children on {schema}.history (parent_id) where parent_id is not null;
create index history_errors on {schema}.history (id) where last_error is not null;
-- For the jobs of the last minutes. A day is written in the order of this time, so a few pages suffice, and a
-- settlement does not pay for it.
create index history_ended on {schema}.history using brin (finished_at) with (pages_per_range = 32, autosummarize);

-- For rows without a partition of their day, so that a missing partition never fails a settlement.
create table {schema}.history_default partition of {schema}.history default;
create index history_default_finished on {schema}.history_default (finished_at);

-- The recorded steps of workflows (functions/workflows.sql). `place`: 0; or the place of a child, and -1 for the row that
-- counts the remaining children. `seq`: the order of recording.
create table {schema}.steps (
  job_id bigint not null,
  place int not null,
  remaining int,
  seq bigint generated always as identity,
  epoch bigint,
  at timestamptz not null,
  until timestamptz,
  name text not null,
  value json,
  error text,
  constraint steps_pkey primary key (job_id, name, place)
) with (fillfactor = 90);

-- Events of workflows. `job_id`: the only job that it is for; 0: for all.
create table {schema}.events (
  name text not null,
  job_id bigint not null,
  payload json not null,
  at timestamptz not null,
  constraint events_pkey primary key (name, job_id)
);
create index events_at on {schema}.events (at);

-- Recurring jobs. `crontab` has every item that any worker ever had. It stores which scheduler last reported the item
-- and when, and since when the item has its spec.
create table {schema}.crontab (
  identifier text primary key,
  known_since timestamptz not null,
  last_tick timestamptz,
  spec text not null default '',
  scheduled_by text,
  scheduled_at timestamptz,
  spec_since timestamptz,
  constraint identifier_length check (length(identifier) between 1 and 256)
);

-- One row, and so one job, for each tick of an item, whichever scheduler enters it.
create table {schema}.ticks (
  identifier text not null,
  tick timestamptz not null,
  job_id bigint not null,
  backfilled boolean not null,
  spec text not null,
  scheduled_at timestamptz not null,
  constraint ticks_pkey primary key (identifier, tick)
);
create index ticks_by_time on {schema}.ticks (tick);

-- Jobs of flows. Their steps are jobs in `live`. `looked_at`: the last check whether one of its steps is live or in the
-- history.
create table {schema}.flow_jobs (
  id text primary key,
  flow text not null,
  created_at timestamptz not null,
  looked_at timestamptz not null,
  constraint flow_id_length check (length(id) between 1 and 128)
);
create index flow_jobs_looked_at on {schema}.flow_jobs (looked_at);

create table {schema}.flow_lookups (
  flow text not null,
  attribute text not null,
  value text not null,
  id text not null references {schema}.flow_jobs (id) on delete cascade,
  constraint flow_lookups_pkey primary key (flow, attribute, value, id)
);
create index flow_lookups_id on {schema}.flow_lookups (id);

-- Long attributes of a flow's job, such as the arguments of a parent's children. Its steps do not carry them.
create table {schema}.flow_lists (
  id text primary key,
  job text not null references {schema}.flow_jobs (id) on delete cascade,
  content text not null,
  constraint flow_list_id_length check (length(id) between 1 and 128),
  constraint flow_list_size check (octet_length(content) <= 33554432)
);
create index flow_lists_job on {schema}.flow_lists (job);

-- The number of calls that a rate limiter has allowed in its window, and the number that wait for a later window.
create table {schema}.flow_limits (
  limiter text not null,
  part text not null,
  slot bigint not null,
  calls bigint not null,
  waiting bigint not null,
  used_at timestamptz not null,
  constraint flow_limits_pkey primary key (limiter, part)
);

create table {schema}.flow_waits (
  limiter text not null,
  part text not null,
  holder text not null,
  ready_at timestamptz not null,
  constraint flow_waits_pkey primary key (limiter, part, holder)
);
create index flow_waits_ready_at on {schema}.flow_waits (limiter, part, ready_at);

-- Workers, for people only. Claims and leases do not read this table.
create table {schema}.workers (
  name text primary key,
  host text not null,
  pid bigint not null,
  version text not null,
  tasks text[],
  concurrency int not null,
  stopping boolean not null,
  started_at timestamptz not null,
  seen_at timestamptz not null,
  -- The flags whose jobs it does not claim. NULL: a function decides before each claim.
  forbidden_flags text[] default array[]::text[],
  -- The queues whose jobs it claims (NULL: all), and those that it excludes.
  queues text[],
  excluded_queues text[] not null default array[]::text[],
  -- The version of the application. NULL: not reported.
  app_version text,
  abandoned_threads int not null default 0,
  -- Whether its event loop is blocked.
  blocked boolean not null default false
);

-- The times at which the first worker of a version of the application started and at which a worker of it was last
-- seen. A version that returns after a pause has another row.
create table {schema}.app_versions (
  version text not null,
  since timestamptz not null,
  seen_at timestamptz not null,
  constraint app_versions_pkey primary key (version, since)
);

-- Numbers of ended attempts, by minute and task, and by hour once they are old. Each run of a worker has its own rows
-- until they are added up. `seconds`: the length of the period; negative: all tasks together. `writer`: empty in rows
-- that were added up. `tally`: numbers by outcome, and the buckets of two histograms by `w…` and `r…`. A worker updates
-- its rows repeatedly.
create table {schema}.throughput (
  seconds int not null,
  begins timestamptz not null,
  task text not null,
  writer text not null,
  tally jsonb not null,
  primary key (seconds, begins, task, writer)
) with (fillfactor = 50);
create index throughput_unfolded on {schema}.throughput (begins) where writer <> '';
