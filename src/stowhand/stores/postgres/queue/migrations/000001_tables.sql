-- breaking
-- What may still run lives in `live`; what is over lives in `history`. The state machine is written here a second time,
-- as CHECK constraints, so that no program error can store what the law (lifecycle.py) does not know.

create table {schema}.live (
  id bigint generated always as identity,
  task text not null,
  payload json not null default '{}',
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
  last_error text,
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
  scout boolean not null default false,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint live_pkey primary key (id),
  constraint task_length check (length(task) between 1 and 128),
  constraint queue_length check (length(queue) <= 128),
  constraint key_length check (length(key) between 1 and 512),
  constraint known_state check (state in ('queued', 'processing', 'errored', 'failed')),
  constraint leased_iff_processing check (
    (state = 'processing') = (token is not null)
    and (token is null) = (lease_until is null) and (token is null) = (worker is null)),
  constraint finished_iff_failed check ((state = 'failed') = (finished_at is not null)),
  constraint settled_unless_processing check (settled_token is null or state <> 'processing'),
  constraint attempts_in_range check (attempts >= 0 and max_attempts >= 1 and attempts <= max_attempts),
  constraint resets_in_range check (resets >= 0 and max_resets >= 0),
  constraint asked_while_processing check (not cancel_requested or state in ('processing', 'failed')),
  constraint payload_size check (octet_length(payload::text) <= 1048576),
  constraint flags_count check (cardinality(flags) <= 64),
  constraint keyless_if_replaced check (loses_retries is null or (loses_retries in ('replaced', 'removed') and key is null)),
  constraint scouts_for_queues check (not scout or (queue is not null and state in ('queued', 'errored')))
) with (
  -- At full rate the table turns over many times a minute: vacuum by count, not by share, and without pauses.
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000
);

-- Partial, because most jobs have no key: those pay nothing here.
create unique index live_key on {schema}.live (key) where key is not null;

-- The claim's paths. The literal 2 is lifecycle.QUARANTINE_AFTER: suspects are out of the ordinary claim's sight.
create index live_ready on {schema}.live (priority, run_at, id)
  where state in ('queued', 'errored') and queue is null and resets < 2;
create index live_scouts on {schema}.live (priority, run_at, id)
  where scout and state in ('queued', 'errored') and resets < 2;
create index live_in_queue on {schema}.live (queue, priority, run_at, id)
  where state in ('queued', 'errored') and queue is not null and resets < 2;
create index live_suspects on {schema}.live (priority, run_at, id)
  where state in ('queued', 'errored') and resets >= 2;

-- By id and not by deadline: a beat then changes no indexed column and stays within its page (HOT).
create index live_processing on {schema}.live (id) where state = 'processing';

-- For people, who look for what failed among a million that wait.
create index live_failed on {schema}.live (id) where state = 'failed';

-- A named queue, once a job of it was claimed. Free if and only if holder_id is null.
-- `absorbed`: some of its waiting jobs are scouts no more (functions/queues.sql), so whoever frees it must leave a hint:
-- where in the order, and when, to look for its next job.
create table {schema}.queues (
  name text primary key,
  holder_id bigint,
  holder_token uuid,
  absorbed boolean not null default false,
  hint_priority int,
  hint_run_at timestamptz,
  hint_id bigint,
  constraint held_by_a_pair check ((holder_id is null) = (holder_token is null)),
  constraint hint_if_free_and_absorbed check (hint_run_at is null or (holder_id is null and absorbed)),
  constraint hint_whole check (
    (hint_run_at is null) = (hint_priority is null) and (hint_run_at is null) = (hint_id is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index queues_hinted on {schema}.queues (hint_priority, hint_run_at, hint_id) where hint_run_at is not null;

-- Claims whose reply was lost. A token in here claims nothing any more.
create table {schema}.dead_tokens (
  token uuid primary key,
  at timestamptz not null default now()
);

create table {schema}.history (
  id bigint not null,
  task text not null,
  payload json not null,
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
  constraint over check (state in ('completed', 'canceled'))
) partition by range (finished_at);

create index history_id on {schema}.history (id);

-- Catches what no day was made for: a missing partition never fails a settlement.
create table {schema}.history_default partition of {schema}.history default;
create index history_default_finished on {schema}.history_default (finished_at);

-- For people, and what add_job returns. The first sixteen columns are graphile-worker's.
create view {schema}.jobs as
select
  id, queue as queue_name, task as task_identifier, payload, priority, run_at,
  case when loses_retries is null then attempts else max_attempts end as attempts,
  max_attempts, last_error, created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags,
  state, resets, max_resets, started_at, finished_at, lease_until, cancel_requested
from {schema}.live;

create type {schema}.queue_heads as (heads bigint[], names text[], unfinished boolean);

-- What becomes of one row, decided while it was locked.
create type {schema}.verdict as (
  id bigint, token uuid, queue text, state text, attempts int, resets int, epoch bigint, settled_token uuid,
  delay double precision, error text, result text);

-- One shape for live jobs and for the history.
create view {schema}.everything as
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, null::json as result
from {schema}.live
union all
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null, cancel_requested, result
from {schema}.history;
