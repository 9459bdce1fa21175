-- breaking
-- Recurring jobs. `crontab` knows every item that any worker ever had; `ticks` is the ledger: one row, and so one job,
-- for each moment of an item, whoever schedules it.

create table {schema}.crontab (
  identifier text primary key,
  known_since timestamptz not null,
  last_tick timestamptz,
  spec text not null default '',
  constraint identifier_length check (length(identifier) between 1 and 256)
);

create table {schema}.ticks (
  identifier text not null,
  tick timestamptz not null,
  job_id bigint not null,
  backfilled boolean not null,
  spec text not null,
  scheduled_at timestamptz not null,
  constraint ticks_pkey primary key (identifier, tick)
);

-- For the ledger's pruning.
create index ticks_by_time on {schema}.ticks (tick);

-- One job of `add_jobs`.
create type {schema}.job_spec as (
  identifier text, payload json, queue_name text, run_at timestamptz, max_attempts int, job_key text, priority int,
  flags text[]);

-- What is left of a batch takes the payload's place.
alter type {schema}.verdict add attribute payload text;

-- The functions of numbers up to 7, made by migrations then. With other arguments one would stay beside its successor,
-- with another result it could not be replaced. Not `add_job`: what was granted on it stays.
do $$
declare
  _old regprocedure;
begin
  for _old in
    select p.oid from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where n.nspname = {schema_text} and p.proname = any(array[
      'abandon', 'absorb', 'append_json', 'beat', 'bury', 'cancel', 'carry_out', 'check_job', 'check_size', 'claim',
      'enqueue', 'enqueue_keyed', 'enqueue_many', 'find_stalled', 'free_queues', 'hold_queues', 'look', 'maintain',
      'make_days', 'next_due', 'open_queue', 'pick_heads', 'pick_suspects', 'prune_days', 'prune_queues',
      'refresh_hint', 'release', 'remove', 'remove_key', 'reset', 'retry', 'revive', 'settle', 'settle_completed',
      'wake', 'way_back'])
  loop
    execute format('drop function %s', _old);
  end loop;
end $$;
