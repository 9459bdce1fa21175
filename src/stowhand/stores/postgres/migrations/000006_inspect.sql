-- breaking
-- Acting on single jobs, as the table in the documentation has it: what each call does in each state. They answer
-- (done, why) with `why` for people. They wait for a row's lock, but not for long: somebody's transaction may hold it.

create function {schema}.retry(_id bigint, _now timestamptz default null, out done text, out why text)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _state text;
  _old {schema}.history;
begin
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it first, or wait until it has ended';
  elsif _state is not null then
    update {schema}.live j
      set state = 'queued', run_at = _at, attempts = 0, resets = 0, finished_at = null, loses_retries = null,
          cancel_requested = false, scout = j.queue is not null
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
create function {schema}.revive(_old {schema}.history, _at timestamptz) returns void
language plpgsql as $$
begin
  insert into {schema}.live (id, task, payload, queue, priority, run_at, max_attempts, max_resets, key, flags,
                             last_error, revision, epoch, settled_token, scout, created_at, updated_at)
    overriding system value
    values (_old.id, _old.task, _old.payload, _old.queue, _old.priority, _at, _old.max_attempts, _old.max_resets,
            _old.key, _old.flags, _old.last_error, _old.revision, _old.epoch, _old.settled_token,
            _old.queue is not null, _old.created_at, _old.updated_at)
    on conflict (key) where key is not null do nothing;
  if not found then
    _old.key := null;
    perform {schema}.revive(_old, _at);
  end if;
  perform {schema}.wake();
end $$;

create function {schema}.cancel(
  _id bigint, _keep boolean, _now timestamptz default null, out done text, out why text
)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _state text;
begin
  why := '';
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state in ('queued', 'errored') then
    perform {schema}.bury(
      array[row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, null, null)
            ::{schema}.verdict], _keep, _at)
      from {schema}.live j where j.id = _id;
    done := 'done';
  elsif _state = 'processing' then
    update {schema}.live j set cancel_requested = true where j.id = _id;
    done := 'asked'; why := 'it is running; its worker hears of it at the next beat';
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

create function {schema}.remove(_id bigint, out done text, out why text)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
declare
  _state text;
begin
  why := '';
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it instead';
  elsif _state is not null then
    delete from {schema}.live j where j.id = _id;
    done := 'done';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; the history is pruned by its age';
    else
      delete from {schema}.history h where h.id = _id and h.state = 'canceled';
      done := case when found then 'done' else 'missing' end;
    end if;
  end if;
end $$;

create function {schema}.remove_key(_key text, out id bigint, out done text, out why text)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  _state text;
begin
  why := '';
  select j.id, j.state into id, _state from {schema}.live j where j.key = _key for update;
  if _state = 'processing' then
    update {schema}.live j set key = null, loses_retries = 'removed' where j.id = remove_key.id;
    done := 'done'; why := 'it is running; it ends without its key and will not run again';
  elsif _state is not null then
    delete from {schema}.live j where j.id = remove_key.id;
    done := 'done';
  else
    done := 'missing';
  end if;
end $$;

-- One shape for live jobs and for the history.
create view {schema}.everything as
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, null::json as result
from {schema}.live
union all
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null, cancel_requested, result
from {schema}.history;

-- Seconds until the earliest waiting job of these tasks is due. Priority by priority, over the claim's own indexes: what
-- is not due costs one step, however much of it there is. (Twice the same loop: a predicate that is a parameter would
-- use neither partial index.)
create function {schema}.next_due(_tasks text[], _now timestamptz default null) returns double precision
language plpgsql stable {pinned_path} {index_plans} as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _earliest timestamptz;
  _next record;
  _after int;
begin
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where j.state in ('queued', 'errored') and j.queue is null and j.resets < 2
        and j.priority >= coalesce(_after, -2147483648) and (_tasks is null or j.task = any(_tasks))
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found;
    _earliest := least(_earliest, _next.run_at);
    exit when _earliest <= _at;
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  _after := null;
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where j.scout and j.state in ('queued', 'errored') and j.resets < 2
        and j.priority >= coalesce(_after, -2147483648) and (_tasks is null or j.task = any(_tasks))
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found or _earliest <= _at;
    _earliest := least(_earliest, _next.run_at);
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  _earliest := least(_earliest,
    (select min(j.run_at) from {schema}.live j
      where j.state in ('queued', 'errored') and j.resets >= 2 and (_tasks is null or j.task = any(_tasks))),
    (select min(q.hint_run_at) from {schema}.queues q where q.hint_run_at is not null),
    (select _at from {schema}.queues q where q.absorbed and q.holder_id is not null and exists (
      select from {schema}.live j where j.queue = q.name and j.queue is not null and j.resets < 2
        and j.state in ('queued', 'errored') and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))) limit 1));
  return case when _earliest is not null then greatest(extract(epoch from _earliest - _at), 0)::double precision end;
end $$;
