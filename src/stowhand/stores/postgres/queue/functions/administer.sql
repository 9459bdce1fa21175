-- Actions on single jobs. The table in the documentation lists what each call does in each state. Each returns (done, why),
-- with `why` for people. Each waits for a row lock for at most 5 seconds, because an open transaction may hold it.

create or replace function {schema}.retry(_id bigint, _now timestamptz default null, out done text, out why text)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _state text;
  _old {schema}.history;
begin
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it first, or wait until it has ended';
  elsif _state is not null then
    update {schema}.live j
      set state = 'queued', run_at = _at, expires_at = null, attempts = 0, resets = 0, finished_at = null, loses_retries = null,
          cancel_requested = false, round = {schema}.next_round(_id)
      where j.id = _id;
    perform {schema}.retry_children(array[_id]);
    perform {schema}.wake();
    done := 'done'; why := '';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; enqueue it again instead';
      return;
    end if;
    delete from {schema}.history h where h.id = _id and h.state = 'canceled' returning h.* into _old;
    if not found then done := 'missing'; why := ''; return; end if;
    perform {schema}.revive(_old, _at);
    done := 'done';
    why := case when _old.key is null or exists (
        select from {schema}.live j where j.id = _id and j.key = _old.key) then ''
      else 'its key belongs to another job now, so it has none' end;
  end if;
end $$;

-- Retry the failed ones of these jobs, as `retry` does, and return their ids. The others do not change.
create or replace function {schema}.retry_failed(_ids bigint[], _now timestamptz default null) returns setof bigint
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _failed bigint[];
begin
  _failed := array(
    select j.id from {schema}.live j where j.id = any(_ids) and j.state = 'failed' order by j.id for update);
  update {schema}.live j
    set state = 'queued', run_at = _at, expires_at = null, attempts = 0, resets = 0, finished_at = null, loses_retries = null,
        cancel_requested = false, round = {schema}.next_round(j.id)
    where j.id = any(_failed);
  perform {schema}.retry_children(_failed);
  if cardinality(_failed) > 0 then perform {schema}.wake(); end if;
  return query select unnest(_failed);
end $$;

-- Restore a canceled job from the history with its id, and with its key only if that is free.
create or replace function {schema}.revive(_old {schema}.history, _at timestamptz) returns void
language plpgsql as $$
begin
  insert into {schema}.live (id, task, payload, key, {details}, run_at, last_error, revision, epoch, settled_token,
                             created_at, updated_at, last_worker, round, replaced, on_failure)
    overriding system value
    values (_old.id, _old.task, _old.payload, _old.key, {old_details}, _at, _old.last_error, _old.revision, _old.epoch,
            _old.settled_token, _old.created_at, _old.updated_at, _old.worker,
            {schema}.next_round(_old.id), _old.replaced, _old.on_failure)
    on conflict (key) where key is not null do nothing;
  if not found then
    _old.key := null;
    perform {schema}.revive(_old, _at);
  end if;
  perform {schema}.wake();
end $$;

create or replace function {schema}.cancel(
  _id bigint, _keep boolean, _now timestamptz default null, out done text, out why text
)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _state text;
begin
  why := '';
  perform {schema}.cancel_children(array(
    select j.id from {schema}.live j where j.id = _id and j.state in ('queued', 'errored', 'processing')), _keep, _at);
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state in ('queued', 'errored') then
    perform {schema}.forget_periods(array[_id]);
    perform {schema}.bury(
      array[row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, null, null, null,
                null, null)::{schema}.verdict], _keep, _at)
      from {schema}.live j where j.id = _id;
    done := 'done';
  elsif _state = 'processing' then
    update {schema}.live j set cancel_requested = true where j.id = _id;
    perform {schema}.wake();
    done := 'asked'; why := 'it is running; its worker will stop it';
  elsif _state = 'failed' then
    done := 'refused'; why := 'it has failed already; remove it, or retry it';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'canceled' then
      done := 'unchanged'; why := 'it is canceled already';
    elsif _state = 'completed' then
      done := 'refused'; why := 'it has completed already';
    else
      done := 'missing';
    end if;
  end if;
end $$;

create or replace function {schema}.remove(_id bigint, out done text, out why text)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _state text;
begin
  why := '';
  perform {schema}.cancel_children(array(
    select j.id from {schema}.live j where j.id = _id and j.state <> 'processing'), true, {schema}.at(null));
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it instead';
  elsif _state is not null then
    perform {schema}.end_children(array[_id], null, array['it was removed'], {schema}.at(null));
    delete from {schema}.live j where j.id = _id;
    delete from {schema}.tries t where t.job_id = _id;
    perform {schema}.forget_periods(array[_id]);
    done := 'done';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; the history is pruned by its age';
    else
      delete from {schema}.history h where h.id = _id and h.state = 'canceled';
      done := case when found then 'done' else 'missing' end;
      if found then delete from {schema}.tries t where t.job_id = _id; end if;
    end if;
  end if;
end $$;

-- Delete the job that holds the key, or take the key from a running one. Repeat until no job holds the key: during the
-- wait for the lock of a row, a newer job may have taken the key.
create or replace function {schema}.drop_key(_key text) returns {schema}.live
language plpgsql as $$
declare
  _job {schema}.live;
begin
  loop
    select j.* into _job from {schema}.live j where j.key = _key for update;
    exit when found or not exists (select from {schema}.live j where j.key = _key);
  end loop;
  if _job.id is not null then perform {schema}.forget_periods(array[_job.id]); end if;
  if _job.state = 'processing' then
    update {schema}.live j set key = null, loses_retries = 'removed' where j.id = _job.id returning j.* into _job;
  else
    perform {schema}.cancel_children(array[_job.id], true, {schema}.at(null), true);
    perform {schema}.end_children(array[_job.id], null, array['it was removed'], {schema}.at(null));
    delete from {schema}.live j where j.id = _job.id;
    delete from {schema}.tries t where t.job_id = _job.id;
  end if;
  return _job;
end $$;

create or replace function {schema}.remove_key(_key text, out id bigint, out done text, out why text)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _job {schema}.live := {schema}.drop_key(_key);
begin
  id := _job.id;
  done := case when id is null then 'missing' else 'done' end;
  why := case when _job.state = 'processing' then 'it is running; it ends without its key and will not run again'
         else '' end;
end $$;

-- Actions on many jobs at once, as in the same table. Jobs under a valid lease are skipped. A job whose lease has
-- expired is reset first: its token is removed, its epoch grows and its serial key is free, so the settlement of a
-- zombie is lost. Rows are locked in id order, and no lock is waited for longer than the timeout. The functions `…_all`
-- are for this package. They return rows of `live` after the change, also of jobs that left it.

-- Lock and return those of the jobs that no valid lease holds, in id order.
create or replace function {schema}.lock_idle(_ids bigint[], _at timestamptz) returns {schema}.live[]
language plpgsql {index_plans} as $$
begin
  return array(
    select j from {schema}.live j
    where j.id = any(_ids) and (j.state <> 'processing' or j.lease_until < _at)
    order by j.id for update);
end $$;

-- This is lifecycle.reset for callers that are not Python: the state of a job whose worker is lost.
create or replace function {schema}.judge_reset(
  _resets int, _max_resets int, _max_attempts int, out state text, out error text
)
language sql immutable as $$
  select case when lives then 'queued' else 'failed' end,
    case when not lives then
      format('its worker died %s while running it', case _resets when 0 then '1 time' else (_resets + 1) || ' times' end)
    end
  from (values (_resets < coalesce(_max_resets, case _max_attempts when 1 then 0 else 5 end))) as judged(lives)
$$;

-- Return live rows in id order without their tokens: a token is the proof of a lease, for its worker alone.
create or replace function {schema}.without_tokens(_ids bigint[]) returns setof {schema}.live
language plpgsql {index_plans} as $$
declare
  _job {schema}.live;
begin
  for _job in select l.* from {schema}.live l where l.id = any(_ids) order by l.id loop
    _job.token := null; _job.settled_token := null;
    return next _job;
  end loop;
end $$;

-- Return jobs after a change. Those that left the table are built from their verdicts.
create or replace function {schema}.aftermath(_jobs {schema}.live[], _verdicts {schema}.verdict[], _at timestamptz)
returns setof {schema}.live
language plpgsql {index_plans} as $$
declare
  _job {schema}.live;
  _one {schema}.verdict;
  _stayed bigint[] := '{}';
begin
  for _n in 1..cardinality(_verdicts) loop
    _one := _verdicts[_n];
    if _one.state in ('completed', 'canceled') then
      _job := _jobs[_n];
      _job.state := _one.state;
      _job.attempts := _one.attempts;
      _job.resets := _one.resets;
      _job.last_error := coalesce(_one.error, _job.last_error);
      _job.finished_at := _at;
      _job.last_worker := coalesce(_job.worker, _job.last_worker);
      _job.progress := null; _job.progress_text := null;
      _job.token := null; _job.settled_token := null; _job.worker := null; _job.lease_until := null;
      return next _job;
    else
      _stayed := _stayed || _one.id;
    end if;
  end loop;
  return query select * from {schema}.without_tokens(_stayed);
end $$;

-- Reset locked jobs.
create or replace function {schema}.take_back(
  _jobs {schema}.live[], _keep boolean, _at timestamptz, _tells boolean default true
)
returns {schema}.verdict[]
language plpgsql as $$
declare
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, {schema}.way_back(r.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - (r.state = 'queued')::int, 0), j.resets + 1, j.epoch + 1, null,
      null, r.error, null, null, 'reset', 'WorkerDied')::{schema}.verdict
    from unnest(_jobs) as j cross join lateral {schema}.judge_reset(j.resets, j.max_resets, j.max_attempts) r
    order by j.id);
  perform {schema}.carry_out(_verdicts, _keep, _at, _tells);
  if cardinality(_verdicts) > 0 then perform {schema}.wake(); end if;
  return _verdicts;
end $$;

-- Complete jobs. Steps of flows are skipped, as completing one by hand would omit the queues after it.
create or replace function {schema}.complete_all(_ids bigint[], _keep boolean, _now timestamptz default null)
returns setof {schema}.live
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _jobs {schema}.live[] := array(
    select j from unnest({schema}.lock_idle(_ids, _at)) as j
    where (j.key like 'flow:%' and j.task like '%/%') is not true order by j.id);
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, 'completed', j.attempts, j.resets, j.epoch + (j.token is not null)::int,
      j.settled_token, null, null, null, null, null, null)::{schema}.verdict
    from unnest(_jobs) as j order by j.id);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  return query select * from {schema}.aftermath(_jobs, _verdicts, _at) order by id;
end $$;

-- Fail jobs permanently. A job that had failed before keeps its finished_at.
create or replace function {schema}.fail_all(_ids bigint[], _reason text, _now timestamptz default null)
returns setof {schema}.live
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _jobs {schema}.live[];
  _locked bigint[];
  _why text := left(coalesce(_reason, 'Manually marked as failed'), 16384);
begin
  perform {schema}.cancel_children(array(
    select j.id from {schema}.live j where j.id = any(_ids) and j.state in ('queued', 'errored')), true, _at);
  _jobs := {schema}.lock_idle(_ids, _at);
  _locked := array(select j.id from unnest(_jobs) as j);
  perform {schema}.keep_ends_by_hand(_locked, _why, _at);
  update {schema}.live j
    set state = 'failed', attempts = j.max_attempts, epoch = j.epoch + (j.token is not null)::int, token = null,
        worker = null, last_worker = coalesce(j.worker, j.last_worker), lease_until = null, last_error = _why,
        finished_at = coalesce(j.finished_at, _at), absorbed = false, updated_at = _at, progress = null,
        progress_text = null, waits_for = null, round = coalesce(j.round, 1)  -- a repeat of its key sees by the round that there are entries
    where j.id = any(_locked);
  perform {schema}.end_failed(_locked, _at);
  perform {schema}.tell_of_failures(array_agg(j.id), array_agg('by hand'::text), _at) from unnest(_jobs) as j
    where j.state <> 'failed' and j.on_failure is not null having count(*) > 0;
  perform {schema}.free_serials(array_agg(j.serial), _at)
    from unnest(_jobs) as j where j.serial is not null and j.token is not null having count(*) > 0;
  return query select * from {schema}.without_tokens(_locked);
end $$;

-- Return the state that follows from new numbers, for a job that waits or has failed.
create or replace function {schema}.rescheduled(_state text, _gives boolean, _attempts int, _max_attempts int)
returns text
language sql immutable as $$
  select case when _attempts >= _max_attempts then 'failed'
              when _state = 'failed' then case when _gives then 'queued' else 'failed' end
              else _state end
$$;

-- Set the passed values. If attempts are passed, the job regains its retries.
create or replace function {schema}.reschedule_all(
  _ids bigint[], _run_at timestamptz, _priority int, _attempts int, _max_attempts int, _queue text, _keep boolean,
  _now timestamptz default null
) returns setof {schema}.live
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _gives boolean := _attempts is not null or _max_attempts is not null;
  _jobs {schema}.live[];
  _held {schema}.live[];
  _verdicts {schema}.verdict[];
  _locked bigint[];
  _waiting bigint[];
  _by_hand bigint[];
begin
  if _max_attempts < 1 then
    raise exception 'max_attempts is at least 1 (here it is %).', _max_attempts using errcode = 'GWBMA';
  elsif _attempts < 0 then
    raise exception 'attempts is at least 0 (here it is %).', _attempts using errcode = '22023';
  end if;
  perform {schema}.check_queue(_queue);
  _jobs := {schema}.lock_idle(_ids, _at);
  _locked := array(select j.id from unnest(_jobs) as j);
  _held := array(select j from unnest(_jobs) as j where j.state = 'processing' order by j.id);
  _verdicts := {schema}.take_back(_held, _keep, _at, false);
  _by_hand := array(
    select j.id from {schema}.live j
    where j.id = any(_locked) and j.state <> 'failed'
      and coalesce(_attempts, j.attempts) >= coalesce(_max_attempts, j.max_attempts) order by j.id);
  perform {schema}.keep_ends_by_hand(_by_hand, null, _at);
  _waiting := array(
    select j.id from {schema}.live j
    where j.id = any(_locked) and j.on_failure is not null and j.state in ('queued', 'errored'));
  update {schema}.live j
    set run_at = coalesce(_run_at, j.run_at), priority = coalesce(_priority, j.priority), updated_at = _at,
        queue = case when _queue is null then j.queue else nullif(_queue, 'default') end,
        round = case when j.id = any(_by_hand) then coalesce(j.round, 1) else j.round end,
        expires_at = case when j.state <> 'failed' then
          j.expires_at + (coalesce(_run_at, j.run_at) - j.run_at) end,
        (attempts, max_attempts, state, finished_at, resets, cancel_requested, loses_retries, absorbed, progress,
         progress_text) = (
          select n.attempts, n.most, n.state, case when n.state = 'failed' then coalesce(j.finished_at, _at) end,
            case when j.state = 'failed' and n.state <> 'failed' then 0 else j.resets end,
            j.cancel_requested and n.state = 'failed', case when not _gives then j.loses_retries end,
            false, case when n.state <> 'failed' then j.progress end,
            case when n.state <> 'failed' then j.progress_text end
          from (select m.attempts, m.most, {schema}.rescheduled(j.state, _gives, m.attempts, m.most) as state
                from (select coalesce(_max_attempts, j.max_attempts) as most,
                        least(coalesce(_attempts, j.attempts), coalesce(_max_attempts, j.max_attempts)) as attempts
                     ) m) n)
    where j.id = any(_locked);
  perform {schema}.note_expiry(_locked);
  if _gives then perform {schema}.retry_children(_locked); end if;
  perform {schema}.end_failed(_locked, _at);
  perform {schema}.tell_of_failures(array_agg(j.id), array_agg('by hand'::text), _at) from {schema}.live j
    where j.id = any(_waiting) and j.state = 'failed' having count(*) > 0;
  -- Report the jobs that have failed by too many resets, unless they were given attempts just now.
  perform {schema}.tell_of_failures(array_agg(v.id), array_agg(v.error_class), _at) from unnest(_verdicts) as v
    where v.state = 'failed' and exists (select from {schema}.live j where j.id = v.id and j.state = 'failed')
    having count(*) > 0;
  return query select * from (
    select a.* from {schema}.aftermath(_held, _verdicts, _at) a where a.state = 'canceled'
    union all
    select l.* from {schema}.without_tokens(_locked) l) changed order by id;
  if cardinality(_locked) > 0 then perform {schema}.wake(); end if;
end $$;

create or replace function {schema}.unlock_all(_workers text[], _keep boolean, _now timestamptz default null)
returns setof {schema}.live
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _jobs {schema}.live[];
begin
  _jobs := array(
    select j from {schema}.live j where j.state = 'processing' and j.worker = any(_workers) order by j.id for update);
  return query select * from {schema}.aftermath(_jobs, {schema}.take_back(_jobs, _keep, _at), _at) order by id;
end $$;

-- The same actions for people. A job that is completed here is kept like one that a worker completed. If no history is
-- kept, it is pruned.

create or replace function {schema}.complete_jobs(job_ids bigint[]) returns setof {schema}.jobs
language sql {definer} as $$
  select s.* from {schema}.complete_all(job_ids, true) j cross join lateral {schema}.shown(j) s
$$;

create or replace function {schema}.permanently_fail_jobs(job_ids bigint[], error_message text default null)
returns setof {schema}.jobs
language sql {definer} as $$
  select s.* from {schema}.fail_all(job_ids, error_message) j cross join lateral {schema}.shown(j) s
$$;

create or replace function {schema}.reschedule_jobs(
  job_ids bigint[], run_at timestamptz default null, priority int default null, attempts int default null,
  max_attempts int default null, work_queue text default null
) returns setof {schema}.jobs
language sql {definer} as $$
  select s.* from {schema}.reschedule_all(
    reschedule_jobs.job_ids, reschedule_jobs.run_at, reschedule_jobs.priority, reschedule_jobs.attempts,
    reschedule_jobs.max_attempts, reschedule_jobs.work_queue, true) j cross join lateral {schema}.shown(j) s
$$;

create or replace function {schema}.force_unlock_workers(worker_ids text[]) returns setof {schema}.jobs
language sql {definer} as $$
  select s.* from {schema}.unlock_all(worker_ids, true) j cross join lateral {schema}.shown(j) s
$$;
