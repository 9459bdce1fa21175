-- Acting on single jobs, as the table in the documentation has it: what each call does in each state. They answer
-- (done, why) with `why` for people. They wait for a row's lock, but not for long: an open transaction may hold it.

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
          cancel_requested = false, scout = j.serial is not null, round = {schema}.next_round(_id)
      where j.id = _id;
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

-- Out of the history, with its id; its key returns only if it is free.
create or replace function {schema}.revive(_old {schema}.history, _at timestamptz) returns void
language plpgsql as $$
begin
  insert into {schema}.live (id, task, payload, key, {details}, run_at, last_error, revision, epoch, settled_token, scout,
                             created_at, updated_at, last_worker, round, replaced, on_failure)
    overriding system value
    values (_old.id, _old.task, _old.payload, _old.key, {old_details}, _at, _old.last_error, _old.revision, _old.epoch,
            _old.settled_token, _old.serial is not null, _old.created_at, _old.updated_at, _old.worker,
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
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it instead';
  elsif _state is not null then
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

-- Repeated until no job holds the key: while the row's lock was waited for, the key may have gone to a newer job.
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
