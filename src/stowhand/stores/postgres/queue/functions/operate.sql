-- Operations: pause serial keys, tasks and queues, and purge ended jobs. The list of workers for people is here, too.

-- Pause a serial key: none of its jobs is claimed, and a running one continues. Return true if it was not paused
-- before. Claims skip paused keys like busy ones, at the same cost.
create or replace function {schema}.pause_serial(serial_key text, _now timestamptz default null) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
begin
  perform {schema}.check_serial(coalesce(serial_key, ''));
  -- As for the first use of a key (open_serial): a claim must not wait for a row that this transaction has inserted.
  perform pg_advisory_xact_lock(hashtextextended({channel} || serial_key, 1));
  loop
    perform from {schema}.limit_keys q where q.name = serial_key for update;
    exit when found;
    insert into {schema}.limit_keys (name) values (serial_key) on conflict do nothing;
  end loop;
  update {schema}.limit_keys q
    set paused_at = _at, hint_priority = null, hint_run_at = null, hint_id = null
    where q.name = serial_key and q.paused_at is null;
  return found;
end $$;

-- Resume a serial key. Return true if it was paused before.
create or replace function {schema}.resume_serial(serial_key text, _now timestamptz default null) returns boolean
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
begin
  perform {schema}.check_serial(coalesce(serial_key, ''));
  update {schema}.limit_keys q set paused_at = null where q.name = serial_key and q.paused_at is not null;
  if not found then return false; end if;
  -- This frees the key unless a job of it is running. Then the settlement of that job does.
  perform {schema}.free_serials(array[serial_key], _at);
  perform {schema}.wake();  -- the only waiting job of the key may be a suspect
  return true;
end $$;

-- Pause or resume a task or a queue. Return true if this changed it.
create or replace function {schema}.write_pause(_kind text, _name text, _is_on boolean, _now timestamptz) returns boolean
language plpgsql as $$
begin
  if _is_on then
    insert into {schema}.pauses (kind, name, since) values (_kind, _name, {schema}.at(_now)) on conflict do nothing;
    return found;
  end if;
  delete from {schema}.pauses p where p.kind = _kind and p.name = _name;
  if not found then return false; end if;
  perform {schema}.wake();
  return true;
end $$;

-- Pause a task: none of its jobs is claimed, whatever its serial key, and a running one continues. Return true if it
-- was not paused before.
create or replace function {schema}.pause_task(task_identifier text, _now timestamptz default null) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
  perform {schema}.check_name('A task identifier', coalesce(task_identifier, ''), 128, 'GWBID');
  return {schema}.write_pause('task', task_identifier, true, _now);
end $$;

-- Resume a task. Return true if it was paused before.
create or replace function {schema}.resume_task(task_identifier text, _now timestamptz default null) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
  perform {schema}.check_name('A task identifier', coalesce(task_identifier, ''), 128, 'GWBID');
  return {schema}.write_pause('task', task_identifier, false, _now);
end $$;

-- Pause and resume a queue, as a task.
create or replace function {schema}.pause_queue(queue text, _now timestamptz default null) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
  perform {schema}.check_queue(coalesce(queue, ''));
  return {schema}.write_pause('queue', queue, true, _now);
end $$;

create or replace function {schema}.resume_queue(queue text, _now timestamptz default null) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
  perform {schema}.check_queue(coalesce(queue, ''));
  return {schema}.write_pause('queue', queue, false, _now);
end $$;

create or replace function {schema}.worker_seen(
  _name text, _host text, _pid bigint, _version text, _tasks text[], _concurrency int, _stopping boolean,
  _now timestamptz default null, _forbidden text[] default array[]::text[], _app_version text default null,
  _abandoned_threads int default 0, _blocked boolean default false, _queues text[] default null,
  _excluded_queues text[] default array[]::text[]
) returns void
language plpgsql {definer} as $$
declare
  _at timestamptz := {schema}.at(_now);
begin
  perform set_config('synchronous_commit', 'off', true);
  insert into {schema}.workers
      (name, host, pid, version, tasks, concurrency, stopping, forbidden_flags, started_at, seen_at, app_version,
        abandoned_threads, blocked, queues, excluded_queues)
    values (_name, _host, _pid, _version, _tasks, _concurrency, _stopping, _forbidden, _at, _at, _app_version,
        _abandoned_threads, _blocked, _queues, _excluded_queues)
    on conflict (name) do update
      set tasks = _tasks, stopping = _stopping, forbidden_flags = _forbidden, seen_at = _at,
        abandoned_threads = _abandoned_threads, blocked = _blocked;
  if _app_version is not null then perform {schema}.note_app_version(_app_version, _at); end if;
end $$;

-- Store the queues of the tasks of a worker, for producers that do not know them, and their limits. `_declarations` is
-- jobs/task_limits.py: TaskDeclarations in JSON. Unchanged rows are not written, and rows are locked in one order, because
-- many workers start at once.
create or replace function {schema}.declare_tasks(_declarations json) returns void
language plpgsql {definer} as $$
declare
  _queues json := _declarations->'queues';
begin
  delete from {schema}.task_queues t where t.task = any(array(
    select o.task from {schema}.task_queues o
    where o.task in (select d.key from json_each_text(_queues) d where d.value = 'default')
    order by o.task for update));
  insert into {schema}.task_queues as known (task, queue)
    select d.key, d.value from json_each_text(_queues) d
    where d.value <> 'default' and not exists (
      select from {schema}.task_queues o where o.task = d.key and o.queue = d.value)
    order by d.key
    on conflict (task) do update set queue = excluded.queue;
  perform {schema}.declare_limits(
    _declarations->'tasks', _declarations->'limits', array(select d.key from json_each(_queues) d));
end $$;

-- Record that a worker of this version is alive. Workers write to one row, so they do not write at every call, and none
-- waits for another. The lock is for the moment at which several workers of a new version start.
create or replace function {schema}.note_app_version(_version text, _at timestamptz) returns void
language plpgsql as $$
declare
  _gone constant timestamptz := _at - interval '15 minutes';
begin
  if not exists (select from {schema}.app_versions v where v.version = _version and v.seen_at >= _gone) then
    perform pg_advisory_xact_lock(hashtextextended({channel}, 5));
    insert into {schema}.app_versions (version, since, seen_at)
      select _version, _at, _at where not exists (
        select from {schema}.app_versions v where v.version = _version and v.seen_at >= _gone)
      on conflict do nothing;
    return;
  end if;
  update {schema}.app_versions v set seen_at = _at where v.ctid = any(array(
    select o.ctid from {schema}.app_versions o
    where o.version = _version and o.seen_at >= _gone and o.seen_at < _at - interval '5 minutes' for update skip locked));
end $$;

create or replace function {schema}.worker_gone(_name text) returns void
language plpgsql {definer} as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  delete from {schema}.workers w where w.name = _name;
end $$;

-- Purge a page of the history, by id, after `_after`: jobs that ended more than these seconds ago. NULL: that state is
-- kept. `_next`: where the next page begins; NULL: this was the last. Days that are too young are not read.
create or replace function {schema}.purge_history(
  _completed double precision, _canceled double precision, _after bigint, _limit int, _now timestamptz default null,
  out completed bigint, out canceled bigint, out _next bigint
)
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _completed_before timestamptz := _at - _completed * interval '1 second';
  _canceled_before timestamptz := _at - _canceled * interval '1 second';
  _latest timestamptz := greatest(_completed_before, _canceled_before);
  _ids bigint[];
begin
  _ids := array(
    select h.id from {schema}.history h where h.id > _after and h.finished_at < _latest order by h.id limit _limit);
  if cardinality(_ids) = _limit then _next := _ids[_limit]; end if;
  with gone as (
    delete from {schema}.history h
      where h.finished_at < _latest and h.id = any(array(
        select o.id from {schema}.history o
        where o.id = any(_ids) and o.finished_at < _latest
          and o.finished_at < case o.state when 'completed' then _completed_before else _canceled_before end
        for update skip locked))
      returning h.id, h.state
  )
  select count(*) filter (where g.state = 'completed'), count(*) filter (where g.state = 'canceled'), array_agg(g.id)
    into completed, canceled, _ids from gone g;
  delete from {schema}.tries t where t.job_id = any(_ids);
end $$;

-- Purge failed jobs that ended more than `_age` seconds ago, at most `_limit`. Return their number.
create or replace function {schema}.purge_failed(_age double precision, _limit int, _now timestamptz default null)
returns bigint
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _before timestamptz := {schema}.at(_now) - _age * interval '1 second';
  _old bigint[];
  _gone bigint;
begin
  _old := array(
    select l.id from {schema}.live l where l.state = 'failed' and l.finished_at < _before
    order by l.finished_at limit _limit for update skip locked);
  -- Their ends were recorded when they failed.
  delete from {schema}.live j where j.id = any(_old);
  get diagnostics _gone = row_count;
  perform {schema}.forget_periods(_old);
  delete from {schema}.tries t where t.job_id = any(_old);
  return _gone;
end $$;
