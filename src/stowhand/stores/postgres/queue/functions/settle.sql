-- Settlements. Every write is guarded by the pair (id, token): a join on pairs, never two lists. Rows are locked in the
-- order of the arguments (the caller sorts by id) and with SKIP LOCKED. So an open transaction of the application on
-- one row does not delay the others, and two settlers do not deadlock. Rows of serial keys are locked after rows of
-- jobs, by name. Claims wait for no lock, so they cannot be part of a deadlock.

-- For serial keys of which a job has left `processing`: leave hints if they are absorbed, and wake sleepers if one of
-- them is free and has a due job.
create or replace function {schema}.free_serials(_names text[], _at timestamptz) returns void
language plpgsql as $$
declare
  _freed text[];
  _absorbed text[];
  _name text;
begin
  perform from {schema}.limit_keys q where q.name = any(_names) order by q.name for update;
  -- Use new statements now that the rows are locked, so that every running job and every scout that a claim has absorbed
  -- is visible. A single statement that waited for a lock would see the jobs as they were before.
  select array_agg(q.name), array_agg(q.name) filter (where q.absorbed) into _freed, _absorbed from {schema}.limit_keys q
    where q.name = any(_names) and q.paused_at is null
      -- This is `is_held` inline: a call for each serial key was a fifth of the cost of a settlement.
      and (position(E'\t' in q.name) > 0 or not exists (
        select from {schema}.live j where j.serial = q.name and j.key_slot is not null and j.worker is not null));
  if _absorbed is not null then
    foreach _name in array _absorbed loop
      perform {schema}.refresh_hint(_name, _at);
    end loop;
  end if;
  if exists (
    select from (
      -- Most keys of a limit have no waiting job, which one step in an index tells.
      select n.name, position(E'\t' in n.name) > 0 as of_limit from unnest(_freed) as n(name)
      where position(E'\t' in n.name) = 0 or exists (
        select from {schema}.live j where j.serial = n.name and j.state in ('queued', 'errored') and j.serial is not null
          and j.resets < 2)
      offset 0) f cross join lateral {schema}.serial_head(f.name, null, null, null, null, _at) h
    where case when h.run_at <= _at then not f.of_limit or {schema}.key_opens_at(f.name, _at) is null end)
  then
    perform {schema}.wake();
  end if;
end $$;

-- Free those of the serial keys whose rows no other transaction has locked.
create or replace function {schema}.free_if_unlocked(_names text[], _at timestamptz) returns void
language plpgsql as $$
declare
  _locked text[] := array(
    select q.name from {schema}.limit_keys q where q.name = any(_names) order by q.name for update skip locked);
begin
  if cardinality(_locked) > 0 then perform {schema}.free_serials(_locked, _at); end if;
end $$;

-- Lock rows of serial keys before anything is written. Return the keys that an open transaction holds for longer than a
-- moment (a pause that is not committed). Jobs of those keys count as locked rows, and are retried later, alone.
create or replace function {schema}.closed_serials(_names text[]) returns text[]
language plpgsql as $$
declare
  _patience text := current_setting('lock_timeout');
  _open text[] := array(
    select q.name from {schema}.limit_keys q where q.name = any(_names) order by q.name for update skip locked);
  _closed text[] := '{}';
begin
  if cardinality(_open) < cardinality(_names) then
    _closed := array(select q.name from {schema}.limit_keys q where q.name = any(_names) and not q.name = any(_open));
    begin
      perform set_config('lock_timeout', '50ms', true);
      perform from {schema}.limit_keys q where q.name = any(_closed) order by q.name for update;
      perform set_config('lock_timeout', _patience, true);
      _closed := '{}';
    exception when lock_not_available then
      _open := array(
        select q.name from {schema}.limit_keys q where q.name = any(_closed) order by q.name for update skip locked);
      _closed := array(select c.name from unnest(_closed) as c(name) where not c.name = any(_open));
    end;
  end if;
  return _closed;
end $$;

-- Return the verdicts that can be carried out now.
create or replace function {schema}.possible(_verdicts {schema}.verdict[]) returns {schema}.verdict[]
language plpgsql as $$
declare
  _names text[] := array(select v.serial from unnest(_verdicts) as v where v.serial is not null);
  _closed text[];
begin
  if cardinality(_names) = 0 then return _verdicts; end if;
  _closed := {schema}.closed_serials(_names);
  if cardinality(_closed) = 0 then return _verdicts; end if;
  return array(select v from unnest(_verdicts) as v where (v.serial = any(_closed)) is not true);
end $$;

-- Raise an error if rows were not written. A trigger of the application can keep a row unchanged without an error
-- (BEFORE … RETURN NULL). A row that was not written must not be reported as written. By the error, the caller finds
-- the row and settles it otherwise.
create or replace function {schema}.check_written(_written bigint, _wanted bigint) returns void
language plpgsql as $$
begin
  if _written < _wanted then
    raise exception 'A trigger leaves % of % jobs unchanged.', _wanted - _written, _wanted using errcode = 'GWTRG';
  end if;
end $$;

-- Record the most common settlement: completed, without further values. Return the ids of the settled jobs and the
-- names of their serial keys, whose rows are locked now (NULL: none has a serial key), and of the limits in which they had
-- slots. A locked row keeps its place, so it is deleted there, without a second search in the index.
create or replace function {schema}.complete(
  _ids bigint[], _tokens uuid[], _keep boolean, _at timestamptz,
  out mine bigint[], out names text[], out limits text[]
)
language plpgsql as $$
declare
  _closed text[];
  _places tid[];
  _gone bigint;
begin
  select array_agg(j.id), array_agg(j.ctid), array_agg(j.serial) filter (where j.serial is not null),
      array_agg(j.limit_name) filter (where j.limit_slot is not null)
    into mine, _places, names, limits
    from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.ctid, l.id, l.serial, l.limit_name, l.limit_slot from {schema}.live l
      where l.id = f.id and l.token = f.token offset 0
      for update skip locked) j;
  if names is not null then
    _closed := {schema}.closed_serials(names);
    if cardinality(_closed) > 0 then
      select array_agg(l.id), array_agg(l.ctid), array_agg(l.serial) filter (where l.serial is not null)
        into mine, _places, names
        from {schema}.live l where l.ctid = any(_places) and (l.serial = any(_closed)) is not true;
    end if;
  end if;
  if exists (select from {schema}.live j where j.parent_id is not null) and mine is not null then
    perform {schema}.end_children(mine, array_fill('null'::json, array[cardinality(mine)]), null, _at);
  end if;
  if _keep then
    with gone as (
      delete from {schema}.live j where j.ctid = any(_places) returning j.*
    )
    insert into {schema}.history ({kept}, payload, state, attempts, resets, last_error, settled_token, epoch, worker,
        finished_at, replaced)
      select {gone_kept}, g.payload, 'completed', g.attempts, 0, g.last_error, g.token, g.epoch, g.worker, _at, g.replaced
      from gone g;
  else
    delete from {schema}.live j where j.ctid = any(_places);
  end if;
  get diagnostics _gone = row_count;
  if _gone < cardinality(mine) then perform {schema}.check_written(_gone, cardinality(mine)); end if;
end $$;

create or replace function {schema}.settle_completed(_ids bigint[], _tokens uuid[], _keep boolean, _now timestamptz default null)
returns setof bigint
language plpgsql {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
  _done record;
begin
  _done := {schema}.complete(_ids, _tokens, _keep, _at);
  if _done.names is not null then perform {schema}.free_serials(_done.names, _at); end if;
  if _done.limits is not null then perform {schema}.wake_for_limits(_done.limits, _at); end if;
  return query select unnest(_done.mine);
end $$;

-- Return whether any job of a higher priority is due, by one step for each priority, whatever waits that is not due. It
-- also counts other tasks and held serial keys: if it is wrong, a claim decides.
create or replace function {schema}.is_overtaken(_priority int, _at timestamptz) returns boolean
language plpgsql stable as $$
declare
  _next record;
  _after int := -2147483648;
begin
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
        and j.priority >= _after and j.priority < _priority
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found;
    if _next.run_at <= _at then return true; end if;
    _after := _next.priority + 1;
  end loop;
  _after := -2147483648;
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where {scout}
        and j.priority >= _after and j.priority < _priority
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found;
    if _next.run_at <= _at then return true; end if;
    _after := _next.priority + 1;
  end loop;
  return exists (
    select from {schema}.limit_keys q
    where q.hint_run_at is not null and q.hint_priority < _priority and q.hint_run_at <= _at);
end $$;

-- Lock and return the next job of each of these serial keys that no job holds any more and that is not paused, at most
-- `_limit`. The rows of the serial keys are locked.
create or replace function {schema}.successors(
  _names text[], _limit int, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz
) returns bigint[]
language plpgsql as $$
declare
  _heads bigint[] := '{}';
  _head bigint;
  _name text;
begin
  if exists (select from {schema}.pauses) or exists (select from {schema}.expiring e where e.expires_at <= _at) then
    _tasks := {schema}.unpaused(_tasks);
    _excluded := {schema}.with_paused(_excluded);
    -- The next claim cancels expired jobs.
    if cardinality(_tasks) = 0 or exists (select from {schema}.expiring e where e.expires_at <= _at) then
      return _heads;
    end if;
  end if;
  -- Jobs of a task with limits are left to the next claim.
  if exists (select from {schema}.task_limits) then
    _tasks := {schema}.unlimited_tasks(_tasks);
    if cardinality(_tasks) = 0 then return _heads; end if;
  end if;
  for _name in
    select q.name from {schema}.limit_keys q
    where q.name = any(_names) and q.paused_at is null
      and not exists (select from {schema}.live j where j.serial = q.name and j.key_slot is not null and j.worker is not null)
  loop
    exit when cardinality(_heads) >= _limit;
    _head := {schema}.take_head(_name, _tasks, _forbidden, _queues, _excluded, _at);
    continue when _head is null
      or {schema}.is_overtaken((select j.priority from {schema}.live j where j.id = _head), _at);
    _heads := _heads || _head;
  end loop;
  return _heads;
end $$;

-- Record the same settlement, and in its transaction claim the next jobs of the serial keys that it frees, at most
-- `_limit`, under `_token`. The first row has the ids of the settled jobs, and each other row a claimed job. It commits
-- durably, since a serial key is held. A job that cannot be claimed must not undo the settlement, and a savepoint would
-- create MultiXacts. So an error undoes both, and the caller settles without a claim.
create or replace function {schema}.settle_and_claim(
  _ids bigint[], _tokens uuid[], _keep boolean, _worker text, _token uuid, _limit int, _lease double precision,
  _tasks text[], _forbidden text[], _now timestamptz default null, _queues text[] default null,
  _excluded text[] default null
) returns table (
  settled bigint[], {claimed_types}, epoch bigint
)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _done record;
  _heads bigint[];
  _taken text[];
begin
  -- As in `claim`, and before any row is locked, as `abandon` of this token takes its lock first and rows afterwards.
  perform pg_advisory_xact_lock_shared(uuid_hash_extended(_token, 0));
  _done := {schema}.complete(_ids, _tokens, _keep, _at);
  settled := _done.mine;
  return next;
  if _done.limits is not null then perform {schema}.wake_for_limits(_done.limits, _at); end if;
  if _done.names is null then return; end if;
  if not exists (select from {schema}.dead_tokens d where d.token = _token) then
    _heads := {schema}.successors(_done.names, _limit, _tasks, _forbidden, _queues, _excluded, _at);
  end if;
  if cardinality(_heads) > 0 then
    return query
    update {schema}.live j
      set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
          token = _token, settled_token = null, worker = _worker,
          lease_until = _at + _lease * interval '1 second', started_at = _at, absorbed = false, key_slot = 1
      where j.id = any(_heads)
      returning null::bigint[], {claimed}, j.epoch;
    _taken := array(select j.serial from {schema}.live j where j.id = any(_heads) and j.token = _token);
    update {schema}.limit_keys q set hint_priority = null, hint_run_at = null, hint_id = null
      where q.name = any(_taken) and q.hint_run_at is not null;
  end if;
  -- This leaves keys with a new holder unchanged, and wakes no worker for them.
  if (_taken @> _done.names) is not true then
    perform {schema}.free_serials(_done.names, _at);
  end if;
end $$;

-- Move rows from the table of live jobs to the history, as `completed` or `canceled`.
create or replace function {schema}.bury(_verdicts {schema}.verdict[], _keep boolean, _at timestamptz) returns void
language sql set enable_hashjoin = on as $$
  select {schema}.end_children(array_agg(v.id),
    array_agg(case when v.state = 'completed' then coalesce(v.result, 'null')::json end), array_agg(v.error), _at)
  from unnest(_verdicts) as v where v.state in ('completed', 'canceled') and exists (
    select from {schema}.live j where j.parent_id is not null)
  having count(*) > 0;
  -- Join verdicts and rows by hashing, whatever the settings of the caller: two lists of 250 are 62,500 comparisons.
  with gone as (
    delete from {schema}.live j
      where j.id = any(array(select v.id from unnest(_verdicts) as v where v.state in ('completed', 'canceled')))
      returning j.*
  )
  insert into {schema}.history ({kept}, payload, state, attempts, resets, last_error, settled_token, epoch, worker,
    finished_at, result, replaced, on_failure)
  select {gone_kept}, coalesce(v.payload::json, g.payload), v.state, v.attempts, v.resets, coalesce(v.error, g.last_error),
    v.settled_token, v.epoch, coalesce(g.worker, g.last_worker), _at, v.result::json, g.replaced, g.on_failure
  from unnest(_verdicts) as v join gone g on g.id = v.id
  where _keep
$$;

-- Carry out verdicts: rows wait again, fail, or leave the table. Then free their serial keys. `_tells`: enqueue the
-- jobs that report failures; false if the caller does this, because it may undo the failure.
create or replace function {schema}.carry_out(
  _verdicts {schema}.verdict[], _keep boolean, _at timestamptz, _tells boolean default true
) returns void
language plpgsql as $$
declare
  _one {schema}.verdict;
  _limits text[];
begin
  if exists (select from {schema}.task_limits) then
    _limits := {schema}.slots_held(array(select v.id from unnest(_verdicts) as v));
  end if;
  if exists (select from unnest(_verdicts) as v where v.outcome is not null) then
    perform {schema}.keep_tries(_verdicts, _at);
  end if;
  foreach _one in array _verdicts loop
    if _one.state = 'canceled' then perform {schema}.forget_periods(array[_one.id]); end if;
    continue when _one.state in ('completed', 'canceled');
    update {schema}.live j
      set state = _one.state,
          attempts = case when _one.state = 'failed' and j.loses_retries is not null then j.max_attempts
                          else _one.attempts end,
          resets = _one.resets, epoch = _one.epoch,
          settled_token = _one.settled_token,
          token = null, worker = null, last_worker = coalesce(j.worker, j.last_worker), lease_until = null,
          last_error = coalesce(_one.error, j.last_error),
          payload = coalesce(_one.payload::json, j.payload),
          run_at = coalesce(_at + _one.delay * interval '1 second', j.run_at),
          finished_at = case when _one.state = 'failed' then _at end,
          waits_for = null,
          progress = case when _one.state <> 'failed' then j.progress end,
          progress_text = case when _one.state <> 'failed' then j.progress_text end,
          -- A released job was not begun, so it keeps its expiry. A settlement or a reset ends it.
          expires_at = case when _one.settled_token is null and _one.epoch = j.epoch then j.expires_at end
      where j.id = _one.id;
    if not found then perform {schema}.check_written(0, 1); end if;
  end loop;
  if _tells and exists (select from unnest(_verdicts) as v where v.state = 'failed') then
    perform {schema}.tell_of_failures(array_agg(v.id), array_agg(v.error_class), _at)
      from unnest(_verdicts) as v where v.state = 'failed';
  end if;
  if exists (select from unnest(_verdicts) as v where v.state = 'failed') then
    perform {schema}.end_failed(array(select v.id from unnest(_verdicts) as v where v.state = 'failed'), _at);
  end if;
  if exists (select from unnest(_verdicts) as v where v.state = 'canceled') then
    perform {schema}.cancel_children(
      array(select v.id from unnest(_verdicts) as v where v.state = 'canceled'), _keep, _at, true);
  end if;
  if exists (select from unnest(_verdicts) as v where v.state in ('completed', 'canceled')) then
    perform {schema}.bury(_verdicts, _keep, _at);
    perform {schema}.check_written(0, count(*)) from unnest(_verdicts) as v join {schema}.live j on j.id = v.id
      where v.state in ('completed', 'canceled') having count(*) > 0;
  end if;
  perform {schema}.free_serials(array_agg(v.serial), _at)
    from unnest(_verdicts) as v where v.serial is not null and v.token is not null having count(*) > 0;
  if _limits is not null then perform {schema}.wake_for_limits(_limits, _at); end if;
end $$;

-- Return the state of a job that was to wait again. Only the row knows whether its cancellation was requested, or
-- whether it lost its key: to remove_key (it does not wait again) or to a newer job (it is not retried). 'continued': a
-- step of a flow has completed, and the flow's job continues.
create or replace function {schema}.way_back(_state text, _cancel_requested boolean, _loses_retries text) returns text
language sql immutable as $$
  select case
    when _state = 'continued' then case when _cancel_requested then 'canceled' else 'completed' end
    when _state not in ('queued', 'errored') then _state
    when _cancel_requested or _loses_retries = 'removed' then 'canceled'
    when _loses_retries = 'replaced' and _state = 'errored' then 'failed'
    else _state end
$$;

-- Record any settlements. Return the written states, which may differ from the requested ones: `way_back`. `_holds`:
-- whether the limits of the job's task start nothing for the delay (limits.sql). `_waits`: what jobs wait for
-- (workflows.sql).
create or replace function {schema}.settle_attempts(
  _ids bigint[], _tokens uuid[], _states text[], _delays double precision[], _refunds boolean[], _errors text[],
  _error_classes text[], _results text[], _payloads text[], _keep boolean, _now timestamptz default null,
  _holds boolean[] default null, _waits json[] default null
) returns table (id bigint, token uuid, state text)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _verdicts {schema}.verdict[];
begin
  -- A declaration locks rows of limits before rows of keys.
  if true = any(_holds) then
    perform {schema}.lock_limits(array(select h.id from unnest(_ids, _holds) as h(id, holds) where h.holds));
  end if;
  if _waits is not null then perform {schema}.lock_waits(_ids, _waits); end if;
  _verdicts := array(
    select row(j.id, j.token, j.serial, {schema}.way_back(f.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - f.refund::int, 0), 0, j.epoch, j.token,
      case when {schema}.way_back(f.state, j.cancel_requested, j.loses_retries) in ('queued', 'errored')
        then f.delay end,
      f.error, f.result, case when f.state in ('errored', 'failed') then f.payload end,
      {schema}.end_of_try(f.state, f.error_class), f.error_class)::{schema}.verdict
    from unnest(_ids, _tokens, _states, _delays, _refunds, _errors, _error_classes, _results, _payloads)
        as f(id, token, state, delay, refund, error, error_class, result, payload)
      cross join lateral (
        select l.id, l.token, l.serial, l.attempts, l.epoch, l.cancel_requested, l.loses_retries from {schema}.live l
        where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  _verdicts := {schema}.possible(_verdicts);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  if true = any(_holds) then
    perform {schema}.hold_limits(array_agg(j.task), array_agg(j.serial), array_agg(h.delay), _at)
      from unnest(_ids, _holds, _delays) as h(id, holds, delay) cross join lateral (
        select l.task, l.serial from {schema}.live l where l.id = h.id offset 0) j
      where h.holds and exists (select from unnest(_verdicts) as v where v.id = h.id) having count(*) > 0;
  end if;
  if _waits is not null then
    perform {schema}.start_wait(v.id, w.wait, _at)
      from unnest(_ids, _waits) as w(id, wait) join unnest(_verdicts) as v on v.id = w.id
      where w.wait is not null and v.state = 'queued';
  end if;
  return query select v.id, v.token, v.state from unnest(_verdicts) as v;
end $$;

-- Return the status of leases that were not settled: 'busy' (still held, but locked by another transaction), 'settled'
-- (by this lease, before; with the current state of the job), 'lost' or 'gone' (no trace).
create or replace function {schema}.look(_ids bigint[], _tokens uuid[])
returns table (id bigint, token uuid, found text, state text)
language sql stable {definer} {index_plans} as $$
  select f.id, f.token,
    case
      when j.token = f.token then 'busy'
      when j.settled_token = f.token or h.settled_token = f.token then 'settled'
      when j.id is not null or h.id is not null then 'lost'
      else 'gone' end,
    coalesce(j.state, h.state)
  from unnest(_ids, _tokens) as f(id, token)
    left join lateral (
      select l.id, l.token, l.settled_token, l.state from {schema}.live l where l.id = f.id offset 0) j on true
    left join lateral (
      select p.id, p.settled_token, p.state from {schema}.history p where p.id = f.id
      order by p.settled_token = f.token desc nulls last limit 1) h on j.id is null
$$;
