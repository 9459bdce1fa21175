-- Leases: beat, release, abandon, reset. Rows are locked as in settle.sql: by pairs, by id, with SKIP LOCKED.

-- Renew leases. Return only those that were not renewed, and renewed ones whose cancellation is requested.
create or replace function {schema}.beat(
  _ids bigint[], _tokens uuid[], _lease double precision, _now timestamptz default null
) returns table (id bigint, token uuid, found text)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _mine bigint[];
  _beaten bigint;
begin
  _mine := array(
    select j.id from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id from {schema}.live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  update {schema}.live j set lease_until = _at + _lease * interval '1 second' where j.id = any(_mine);
  get diagnostics _beaten = row_count;
  if _beaten < cardinality(_mine) then perform {schema}.check_written(_beaten, cardinality(_mine)); end if;
  return query
    select f.id, f.token,
      case when j.token is distinct from f.token then 'lost' when j.id = any(_mine) then 'canceled' else 'busy' end
    from unnest(_ids, _tokens) as f(id, token) left join lateral (
      select l.id, l.token, l.cancel_requested from {schema}.live l where l.id = f.id offset 0) j on true
    where j.token is distinct from f.token or not j.id = any(_mine) or j.cancel_requested;
end $$;

-- Return the leases whose cancellation is requested. Nothing is written, as a worker calls this after each wake-up
-- while it runs jobs.
create or replace function {schema}.find_canceled(_ids bigint[], _tokens uuid[]) returns table (id bigint, token uuid)
language plpgsql stable {definer} {index_plans} as $$
#variable_conflict use_column
begin
  return query select f.id, f.token from unnest(_ids, _tokens) as f(id, token) cross join lateral (
    select from {schema}.live l where l.id = f.id and l.token = f.token and l.cancel_requested offset 0) j;
end $$;

-- Store the progress of running jobs. It is for people, so rows that another transaction has locked are skipped, and a
-- lost commit does no harm.
create or replace function {schema}.keep_progress(
  _ids bigint[], _tokens uuid[], _progress double precision[], _texts text[]
) returns void
language plpgsql {definer} {index_plans} as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  for _n in 1..cardinality(_ids) loop
    perform from {schema}.live l where l.id = _ids[_n] and l.token = _tokens[_n] for update skip locked;
    if found then
      update {schema}.live l set progress = _progress[_n], progress_text = _texts[_n] where l.id = _ids[_n];
    end if;
  end loop;
end $$;

-- Return jobs to the queue without using an attempt. Return their ids.
create or replace function {schema}.release(
  _ids bigint[], _tokens uuid[], _keep boolean, _now timestamptz default null
) returns setof bigint
language plpgsql {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, {schema}.way_back('queued', j.cancel_requested, j.loses_retries),
      greatest(j.attempts - 1, 0), j.resets, j.epoch, null, null, null, null, null, null, null)::{schema}.verdict
    from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id, l.token, l.serial, l.attempts, l.resets, l.epoch, l.cancel_requested, l.loses_retries
      from {schema}.live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  _verdicts := {schema}.possible(_verdicts);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  if cardinality(_verdicts) > 0 then perform {schema}.wake(); end if;
  return query select v.id from unnest(_verdicts) as v;
end $$;

-- Forbid claims by this token and return its jobs to the queue. The lock waits for a claim in progress. Return false if
-- another transaction has locked some of the jobs, so that the call must be repeated.
create or replace function {schema}.abandon(_token uuid, _keep boolean, _now timestamptz default null) returns boolean
language plpgsql {definer} {index_plans} as $$
begin
  perform pg_advisory_xact_lock(uuid_hash_extended(_token, 0));
  insert into {schema}.dead_tokens (token, at) values (_token, {schema}.at(_now))
    on conflict do nothing;
  perform {schema}.release(array_agg(j.id), array_agg(j.token), _keep, _now)
    from (select j.id, j.token from {schema}.live j where j.state = 'processing' and j.token = _token order by j.id) j
    having count(*) > 0;
  return not exists (select from {schema}.live j where j.state = 'processing' and j.token = _token);
end $$;

-- Return processing jobs whose lease expired more than `_slack` seconds ago, or all jobs that `_worker` holds, or the
-- job of one lease.
create or replace function {schema}.find_stalled(
  _slack double precision, _worker text, _id bigint, _token uuid, _limit int, _now timestamptz default null
) returns table (id bigint, token text, task text, worker text, resets int, max_resets int, max_attempts int)
language plpgsql stable {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
begin
  return query
    select j.id, j.token::text, j.task, j.worker, j.resets, j.max_resets, j.max_attempts from {schema}.live j
    where j.state = 'processing'
      and (_slack is null or j.lease_until + _slack * interval '1 second' < _at)
      and (_worker is null or j.worker = _worker)
      and (_id is null or (j.id = _id and j.token = _token))
    order by j.id limit _limit;
end $$;

-- For leases that are not in `_ours`: return whether one expired more than `_slack` seconds ago, and the seconds until
-- the first of the others expires. This reads all running jobs, in three milliseconds for ten thousand. An index on
-- lease_until would keep heartbeats from staying HOT.
create or replace function {schema}.foreign_leases(
  _ours bigint[], _slack double precision, _now timestamptz default null, out late boolean, out ends_in double precision
)
language plpgsql stable {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
begin
  select coalesce(bool_or(j.lease_until + _slack * interval '1 second' < _at), false),
      extract(epoch from min(j.lease_until) filter (where j.lease_until + _slack * interval '1 second' >= _at) - _at)
        + _slack
    into late, ends_in
    from {schema}.live j
    -- Use a subquery, which is hashed. An array parameter is not.
    where j.state = 'processing' and j.id not in (select u.id from unnest(_ours) as u(id));
end $$;

-- Reset jobs as decided by the caller, unless the lease was renewed or the job was settled meanwhile. A job whose
-- cancellation is requested, or whose key was removed, is canceled in any case.
create or replace function {schema}.reset(
  _ids bigint[], _tokens uuid[], _states text[], _errors text[], _slack double precision, _keep boolean,
  _now timestamptz default null
) returns table (id bigint, state text)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, {schema}.way_back(f.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - (f.state = 'queued')::int, 0), j.resets + 1, j.epoch + 1, null,
      null, f.error, null, null, 'reset', 'WorkerDied')::{schema}.verdict
    from unnest(_ids, _tokens, _states, _errors) as f(id, token, state, error) cross join lateral (
      select l.id, l.token, l.serial, l.attempts, l.resets, l.epoch, l.cancel_requested, l.loses_retries
      from {schema}.live l
      where l.id = f.id and l.token = f.token
        and (_slack is null or l.lease_until + _slack * interval '1 second' < _at)
      offset 0 for update skip locked) j);
  _verdicts := {schema}.possible(_verdicts);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  if cardinality(_verdicts) > 0 then perform {schema}.wake(); end if;
  return query select v.id, v.state from unnest(_verdicts) as v;
end $$;
