-- What keeps leases true: beat, release, abandon, reset. Rows are locked as in settle.sql: pairs, by id, SKIP LOCKED.

-- Renew. Answers only about leases that were not renewed, or that were and are asked to cancel.
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

-- Which of these were asked to cancel. Nothing is written: a worker asks after each wake-up while it runs jobs.
create or replace function {schema}.find_canceled(_ids bigint[], _tokens uuid[]) returns table (id bigint, token uuid)
language plpgsql stable {definer} {index_plans} as $$
#variable_conflict use_column
begin
  return query select f.id, f.token from unnest(_ids, _tokens) as f(id, token) cross join lateral (
    select from {schema}.live l where l.id = f.id and l.token = f.token and l.cancel_requested offset 0) j;
end $$;

-- How far running jobs are. For people: what another transaction has locked is left out, and a commit that is lost is no harm.
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

-- Hand back unspent. Gives the ids that were handed back.
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

-- This token claims nothing from now on, and what it holds goes back. The lock waits for a claim that is under way.
-- False: another transaction has locked some of it, so the call must be repeated.
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

-- Processing jobs whose lease ended more than `_slack` seconds ago; or all that `_worker` holds; or that one pair.
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

-- Of leases that are not `_ours`: is one over for more than `_slack` seconds, and in how many seconds will the first of the
-- others be? All that run are read, three milliseconds for ten thousand: no index on lease_until, so that a beat stays HOT.
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
    -- A subquery is hashed, which an array given as a parameter is not.
    where j.state = 'processing' and j.id not in (select u.id from unnest(_ours) as u(id));
end $$;

-- Take back, as decided; unless the lease was renewed, or the job was settled, in between. What was asked to cancel, or
-- was removed by its key, is canceled whatever was decided.
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
