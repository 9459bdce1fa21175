-- Claims. Every function here has its own planner settings. Right after a burst the table has no statistics, and
-- without them the planner sorts or hashes all of it for each claim (measured: 9k instead of 60k jobs/s).
--
-- The settings do not choose the order of a join. If statistics say that `live` is empty, because they were taken when
-- a burst had just been worked off, the planner would scan all of it for each batch: 1k jobs/s. So `live` is never
-- joined, here and in the files that follow. Rows are found by `id = any(…)`, or one by one in a lateral subquery with
-- `offset 0`, which the planner cannot reorder.
--
-- Rows that a claim must skip. A claim must cost the same, whatever waits before the jobs that it may claim. So it goes
-- priority by priority: the first entry of a priority shows whether any of its jobs is due. (PostgreSQL has such skip
-- scans only from version 18.) A worker that does not have all tasks must not read the jobs of other tasks. A worker
-- with one task uses an index for it. A worker with several tasks reads a stretch of the common order, and beyond it
-- merges the orders of its tasks.
--
-- `resets + 0` keeps the planner from using a partial index where a row is found by its id.
--
-- Queues. `live.queue` is NULL for the queue `default`. Its jobs are in the index live_by_task, and those of all other
-- queues in live_by_queue. So a claim of some queues reads no jobs of others, and jobs of `default` cost nothing more.
-- A claim of all queues (`_queues` and `_excluded` are NULL) reads the common order. `in_default` and `in_other_queue`
-- are the predicates of these indexes (function_texts.py). Both express the state in other words than live_ready, so
-- that the planner cannot use live_ready for them.

-- Return whether a claim with these queues and exclusions takes jobs of this queue.
create or replace function {schema}.takes(_queues text[], _excluded text[], _queue text) returns boolean
language sql immutable as $$
  select (_queues is null or coalesce(_queue, 'default') = any(_queues))
    and (_excluded is null or coalesce(_queue, 'default') <> all(_excluded))
$$;

-- Return the queues that a claim reads: those that it names, or `default` and every other queue in which a job without
-- a serial key waits, by one step in an index for each. It is called once per claim.
create or replace function {schema}.queues_of_claim(_queues text[], _excluded text[]) returns text[]
language plpgsql stable as $$
begin
  if _queues is null then
    with recursive waiting as (
      (select j.queue from {schema}.live j where {in_other_queue}
       order by j.queue, j.task, j.priority, j.run_at, j.id limit 1)
      union all
      select n.queue from waiting w cross join lateral (
        select j.queue from {schema}.live j where {in_other_queue} and j.queue > w.queue
        order by j.queue, j.task, j.priority, j.run_at, j.id limit 1) n
    )
    select array_agg(w.queue) || 'default'::text into _queues from waiting w;
  end if;
  return array(select distinct q.queue from unnest(_queues) as q(queue) where _excluded is null or q.queue <> all(_excluded));
end $$;

-- Lock and return due jobs of one priority without a serial key, from `_from_*`: the first ones of each of these tasks
-- and queues, merged.
create or replace function {schema}.pick_merged(
  _limit int, _tasks text[], _forbidden text[], _queues text[], _at timestamptz,
  _priority int, _from_run_at timestamptz, _from_id bigint
) returns bigint[]
language plpgsql as $$
declare
  _ids bigint[];
  _run_ats timestamptz[];
  _picked bigint[] := '{}';
  _wanted int := _limit;
begin
  _tasks := array(select distinct u.task from unnest(_tasks) as u(task));
  while _wanted > 0 loop
    select array_agg(f.id), array_agg(f.run_at) into _ids, _run_ats from (
      select c.id, c.run_at from unnest(_queues) as q(queue) cross join unnest(_tasks) as t(task) cross join lateral (
        (select j.id, j.run_at from {schema}.live j
          where q.queue = 'default' and {in_default}
            and j.task = t.task and j.priority = _priority and j.run_at <= _at
            and (j.run_at, j.id) >= (_from_run_at, _from_id)
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.task, j.priority, j.run_at, j.id limit _wanted)
        union all
        (select j.id, j.run_at from {schema}.live j
          where q.queue <> 'default' and {in_other_queue} and j.queue = q.queue
            and j.task = t.task and j.priority = _priority and j.run_at <= _at
            and (j.run_at, j.id) >= (_from_run_at, _from_id)
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.queue, j.task, j.priority, j.run_at, j.id limit _wanted)
      ) c order by c.run_at, c.id limit _wanted) f;
    _picked := _picked || array(
      select j.id from unnest(_ids) as f(id) cross join lateral (
        select l.id from {schema}.live l
          where l.id = f.id and l.state in ('queued', 'errored') and l.serial is null and l.resets + 0 < 2
            and l.priority = _priority and l.run_at <= _at and l.task = any(_tasks)
            and coalesce(l.queue, 'default') = any(_queues)
            and (_forbidden is null or l.flags is null or not l.flags && _forbidden)
          offset 0 for update skip locked) j);
    exit when _ids is null or cardinality(_ids) < _wanted;
    _from_run_at := _run_ats[_wanted];
    _from_id := _ids[_wanted] + 1;
    _wanted := _limit - cardinality(_picked);
  end loop;
  return _picked;
end $$;

-- Lock and return due jobs of these queues without a serial key, in the order (priority, run_at, id), after `_after_*`.
create or replace function {schema}.pick_of_queues(
  _limit int, _tasks text[], _forbidden text[], _queues text[], _at timestamptz,
  _after_priority int, _after_run_at timestamptz, _after_id bigint
) returns bigint[]
language plpgsql as $$
declare
  _first {schema}.place;
  _picked bigint[] := '{}';
begin
  _tasks := coalesce(_tasks, {schema}.waiting_tasks());
  while cardinality(_picked) < _limit loop
    select f.priority, f.run_at, f.id into _first
      from unnest(_queues) as q(queue) cross join unnest(_tasks) as t(task) cross join lateral (
        (select j.priority, j.run_at, j.id from {schema}.live j
          where q.queue = 'default' and {in_default} and j.task = t.task
            and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
          order by j.task, j.priority, j.run_at, j.id limit 1)
        union all
        (select j.priority, j.run_at, j.id from {schema}.live j
          where q.queue <> 'default' and {in_other_queue} and j.queue = q.queue and j.task = t.task
            and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
          order by j.queue, j.task, j.priority, j.run_at, j.id limit 1)
      ) f order by f.priority, f.run_at, f.id limit 1;
    exit when not found;
    if _first.run_at <= _at then
      _picked := _picked || {schema}.pick_merged(
        _limit - cardinality(_picked), _tasks, _forbidden, _queues, _at, _first.priority, _first.run_at, _first.id);
    end if;
    _after_priority := _first.priority; _after_run_at := 'infinity'; _after_id := 9223372036854775807;
  end loop;
  return _picked;
end $$;

-- Lock and return due jobs without a serial key, in the order (priority, run_at, id), after `_after_*` unless it is
-- NULL.
create or replace function {schema}.pick_free(
  _limit int, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz,
  _after_priority int, _after_run_at timestamptz, _after_id bigint
) returns bigint[]
language plpgsql as $$
declare
  _task text := case when cardinality(_tasks) = 1 then _tasks[1] end;
  _first {schema}.place;
  _last {schema}.place;
  _wanted int := _limit;
  _picked bigint[] := '{}';
begin
  if _after_id is null then
    _after_priority := -2147483648; _after_run_at := '-infinity'; _after_id := 0;
  end if;
  if cardinality(_tasks) = 2 then
    -- The second task is a built-in one that every worker has, and that hardly ever has a job.
    perform from {schema}.live j
      where {in_default} and j.task = _tasks[2]
      order by j.task, j.priority, j.run_at, j.id limit 1;
    if not found then _task := _tasks[1]; end if;
  end if;
  -- While no job of another queue waits, this query is the only cost of queues.
  if _queues is not null or _excluded is not null or _task is not null and exists (
    select from {schema}.live j
      where {in_other_queue})
  then
    return {schema}.pick_of_queues(
      _limit, _tasks, _forbidden, {schema}.queues_of_claim(_queues, _excluded), _at, _after_priority, _after_run_at, _after_id);
  end if;
  while _wanted > 0 loop
    if _task is not null then
      -- The state is expressed as in the index live_by_task, not as in live_ready: see the baseline.
      select j.priority, j.run_at, j.id into _first from {schema}.live j
        where {in_default} and j.task = _task
          and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
        order by j.task, j.priority, j.run_at, j.id limit 1;
    else
      select j.priority, j.run_at, j.id into _first from {schema}.live j
        where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
          and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
        order by j.priority, j.run_at, j.id limit 1;
    end if;
    exit when not found;
    if _first.run_at > _at then
      null;
    elsif _task is not null then
      _picked := _picked || array(
        select j.id from {schema}.live j
        where {in_default} and j.task = _task
          and j.priority = _first.priority and j.run_at <= _at and (j.run_at, j.id) >= (_first.run_at, _first.id)
          and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
        order by j.task, j.priority, j.run_at, j.id limit _wanted for update skip locked);
    else
      _last := null;
      if _tasks is not null then
        select j.priority, j.run_at, j.id into _last from {schema}.live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
            and j.priority = _first.priority and j.run_at <= _at and (j.run_at, j.id) >= (_first.run_at, _first.id)
          order by j.priority, j.run_at, j.id offset 50 + 2 * _wanted limit 1;
      end if;
      if _last.run_at = _first.run_at then
        -- An index scan does not end at a position within the same run_at unless the condition compares run_at by
        -- equality.
        _picked := _picked || array(
          select j.id from {schema}.live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
            and j.priority = _first.priority and j.run_at = _first.run_at and j.id >= _first.id and j.id < _last.id
            and j.task = any(_tasks) and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.priority, j.run_at, j.id limit _wanted for update skip locked);
      else
        _last.id := 0;
        _picked := _picked || array(
          select j.id from {schema}.live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
            and j.priority = _first.priority and j.run_at <= _at and (j.run_at, j.id) >= (_first.run_at, _first.id)
            and j.run_at < coalesce(_last.run_at, 'infinity')
            and (_tasks is null or j.task = any(_tasks))
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.priority, j.run_at, j.id limit _wanted for update skip locked);
      end if;
      if _last.run_at is not null and cardinality(_picked) < _limit then
        _queues := coalesce(_queues, {schema}.queues_of_claim(null, null));
        _picked := _picked || {schema}.pick_merged(
          _limit - cardinality(_picked), _tasks, _forbidden, _queues, _at, _first.priority, _last.run_at, _last.id);
      end if;
    end if;
    _wanted := _limit - cardinality(_picked);
    _after_priority := _first.priority; _after_run_at := 'infinity'; _after_id := 9223372036854775807;
  end loop;
  return _picked;
end $$;

-- Lock and return due suspects: jobs with two or more resets. They are few, so they are checked one by one.
create or replace function {schema}.pick_suspects(
  _limit int, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz,
  out heads bigint[], out names text[]
)
language plpgsql as $$
declare
  _job record;
begin
  heads := '{}'; names := '{}';
  for _job in
    select j.id, j.serial from {schema}.live j
    where j.state in ('queued', 'errored') and j.resets >= 2 and j.run_at <= _at
      and (_tasks is null or j.task = any(_tasks)) and {schema}.takes(_queues, _excluded, j.queue)
      and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
    order by j.priority, j.run_at, j.id
  loop
    continue when _job.serial is not null
      and (_job.serial = any(names) or {schema}.open_serial(_job.serial, _at) <> 'free');
    perform from {schema}.live j where j.id = _job.id and j.state in ('queued', 'errored') for update skip locked;
    continue when not found;
    heads := heads || _job.id;
    if _job.serial is not null then names := names || _job.serial; end if;
    exit when cardinality(heads) >= _limit;
  end loop;
end $$;

-- Return every task of which a job waits, by one step in an index for each task, each task of a queue and each task of
-- a serial key.
create or replace function {schema}.waiting_tasks() returns text[]
language sql stable as $$
  with recursive free as (
    (select j.task from {schema}.live j where {in_default}
     order by j.task, j.priority, j.run_at, j.id limit 1)
    union all
    select n.task from free f cross join lateral (
      select j.task from {schema}.live j where {in_default} and j.task > f.task
      order by j.task, j.priority, j.run_at, j.id limit 1) n
  ), queued as (
    (select j.queue, j.task from {schema}.live j where {in_other_queue}
     order by j.queue, j.task, j.priority, j.run_at, j.id limit 1)
    union all
    select n.queue, n.task from queued q cross join lateral (
      select j.queue, j.task from {schema}.live j where {in_other_queue} and (j.queue, j.task) > (q.queue, q.task)
      order by j.queue, j.task, j.priority, j.run_at, j.id limit 1) n
  ), serial as (
    (select j.serial, j.task from {schema}.live j
     where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
     order by j.serial, j.task, j.priority, j.run_at, j.id limit 1)
    union all
    select n.serial, n.task from serial s cross join lateral (
      select j.serial, j.task from {schema}.live j
      where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
        and (j.serial, j.task) > (s.serial, s.task)
      order by j.serial, j.task, j.priority, j.run_at, j.id limit 1) n
  )
  select coalesce(array_agg(distinct w.task), '{}') from (
    select f.task from free f
    union all
    select q.task from queued q
    union all
    select s.task from serial s
    union all
    select j.task from {schema}.live j where j.state in ('queued', 'errored') and j.resets >= 2) w
$$;

-- Return those of these tasks (NULL: of all tasks with waiting jobs) that are not paused. It is called only while
-- something is paused.
create or replace function {schema}.unpaused(_tasks text[]) returns text[]
language plpgsql stable as $$
begin
  if not exists (select from {schema}.pauses p where p.kind = 'task') then return _tasks; end if;
  _tasks := coalesce(_tasks, {schema}.waiting_tasks());
  -- Keep the order of the tasks, since pick_free depends on the second one.
  return array(select t.task from unnest(_tasks) with ordinality as t(task, place)
               where not exists (select from {schema}.pauses p where p.kind = 'task' and p.name = t.task)
               order by t.place);
end $$;

-- Return these queues and the paused ones; NULL if there are none.
create or replace function {schema}.with_paused(_excluded text[]) returns text[]
language sql stable as $$
  select nullif(coalesce(_excluded, '{}') || array(select p.name from {schema}.pauses p where p.kind = 'queue'), '{}')
$$;

-- Return the reason why a trigger of the application forbids the claim of this job; NULL if it allows it. The change is
-- that of a claim, and is undone.
create or replace function {schema}.claim_refusal(
  _id bigint, _worker text, _token uuid, _lease_until timestamptz, _at timestamptz
) returns text
language plpgsql as $$
begin
  update {schema}.live j
    set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
        token = _token, settled_token = null, worker = _worker,
        lease_until = _lease_until, started_at = _at, absorbed = false
    where j.id = _id;
  if not found then return 'a trigger keeps it unchanged'; end if;
  raise exception using errcode = 'GWDRY';
exception
  when sqlstate 'GWDRY' then return null;
  when others then return sqlerrm;
end $$;

-- Claim due jobs under `_token` and return them in the order (priority, run_at, id). A row with id 0 means that the
-- walk was cut short without a job: call again. `_after_*`: start after this position (only for jobs without a serial
-- key). `_free` and `_rooms`: see `admit`. `_passed`: jobs that are not claimed. `_apart`: after an error, try each job by itself. A row with the negative
-- id of a job means that the database refuses to change it, and `last_error` has the reason.
create or replace function {schema}.claim(
  _worker text, _token uuid, _limit int, _lease double precision, _tasks text[], _forbidden text[],
  _suspects boolean, _now timestamptz default null,
  _after_priority int default null, _after_run_at timestamptz default null, _after_id bigint default null,
  _passed bigint[] default null, _apart boolean default false, _queues text[] default null, _excluded text[] default null,
  _free int default null, _rooms jsonb default null
) returns table (
  {claimed_types}, epoch bigint
)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _until timestamptz := _at + _lease * interval '1 second';
  _most int := _limit;
  _picked bigint[] := '{}';
  _refused bigint[] := '{}';
  _changed bigint;
  _in_serials {schema}.serial_heads;
  _last record;
  _expires boolean := false;
  -- While no task has a limit, this query is the only cost of limits.
  _limited_tasks text[] := array(select t.task from {schema}.task_limits t);
  _is_limited boolean := cardinality(_limited_tasks) > 0 or _rooms is not null;
  _fair text[];
  _is_any_fair boolean := false;
  _free_tasks text[];
  _without text[];
  _is_parking boolean := false;
  _task_names text[];
  _admitted record;
  _keyed record;
  _held text[];
  _key_slots int[];
begin
  -- This lock is shared by claims and exclusive for `abandon` of this token. So either `abandon` sees these jobs, or
  -- this claim sees the dead token.
  perform pg_advisory_xact_lock_shared(uuid_hash_extended(_token, 0));
  if exists (select from {schema}.dead_tokens d where d.token = _token) then return; end if;
  -- While nothing is paused and nothing has expired, this query is the only cost of pauses and expiry.
  if exists (select from {schema}.pauses) or exists (select from {schema}.expiring e where e.expires_at <= _at) then
    if {schema}.expire(_at) then
      id := 0;
      return next;
      return;
    end if;
    _expires := exists (select from {schema}.expiring e where e.expires_at <= _at);
    _tasks := {schema}.unpaused(_tasks);
    _excluded := {schema}.with_paused(_excluded);
    if cardinality(_tasks) = 0 then return; end if;
  end if;
  if _is_limited then
    _tasks := {schema}.open_tasks(_tasks, _at);
    if cardinality(_tasks) = 0 then return; end if;
    select array_agg(t.task) filter (where _tasks is null or t.task = any(_tasks)), count(*) > 0
      into _fair, _is_any_fair from {schema}.task_limits t where t.is_fair;
  end if;
  _free_tasks := _tasks;
  if _fair is not null and not _suspects then
    _is_parking := {schema}.park_due(_fair, _queues, _excluded, _at);
    _free_tasks := array(
      select t.task from unnest(coalesce(_tasks, {schema}.waiting_tasks())) with ordinality as t(task, place)
      where t.task <> all(_fair) order by t.place);
    -- Some keys may have no parked job yet, so no job of these tasks starts: their turns would be missed.
    if _is_parking then
      _tasks := _free_tasks;
      _fair := null;
    end if;
  end if;
  if _is_limited and _tasks is not null then
    -- Many keys may wait for tasks that this claim leaves out, for example for a full limit of all keys.
    _without := (select array_agg(n.name) from (
      select t.key_limit as name from {schema}.task_limits t where t.key_limit is not null
      group by t.key_limit having not bool_or(t.task = any(_tasks))) n);
  end if;
  if _passed is not null then _limit := _limit + cardinality(_passed); end if;
  if _suspects then
    select p.heads, p.names, false into _in_serials
      from {schema}.pick_suspects(_limit, _tasks, _forbidden, _queues, _excluded, _at) p;
    _picked := _in_serials.heads;
  else
    if _free_tasks is null or cardinality(_free_tasks) > 0 then
      _picked := {schema}.pick_free(
        _limit, _free_tasks, _forbidden, _queues, _excluded, _at, _after_priority, _after_run_at, _after_id);
    end if;
    -- While no job has a serial key, this query is the only cost of serial keys.
    if exists (select from {schema}.live j where {scout})
       or exists (select from {schema}.limit_keys q where q.hint_run_at is not null) then
      select null::int as priority, null::timestamptz as run_at, null::bigint as id into _last;
      if cardinality(_picked) >= _limit then
        select j.priority, j.run_at, j.id into _last from {schema}.live j where j.id = _picked[_limit];
      end if;
      select p.heads, p.names, p.unfinished into _in_serials from {schema}.pick_heads(
        _limit, _tasks, _forbidden, _queues, _excluded, _at, _last.priority, _last.run_at, _last.id, _fair, _without) p;
      if cardinality(_in_serials.heads) > 0 then
        _picked := array(
          select j.id from {schema}.live j where j.id = any(_picked || _in_serials.heads)
          order by case when _fair is null or j.serial is null then row(j.priority, j.run_at, j.id)::{schema}.place
            else {schema}.key_place(j.serial, row(j.priority, j.run_at, j.id)::{schema}.place, _at) end
          limit _limit);
      elsif _in_serials.unfinished and cardinality(_picked) = 0 then
        id := 0;
        return next;
        return;
      end if;
    end if;
  end if;
  if _expires then  -- an expired job whose row another transaction had locked
    _picked := array(
      select p.id from unnest(_picked) with ordinality as p(id, place) where not exists (
        select from {schema}.live j where j.id = p.id and j.expires_at <= _at) order by p.place);
  end if;
  if _passed is not null then
    _picked := array(
      select p.id from unnest(_picked) with ordinality as p(id, place)
      where p.id <> all(_passed) order by p.place limit _most);
  end if;
  if _apart then
    foreach id in array _picked loop
      last_error := {schema}.claim_refusal(id, _worker, _token, _until, _at);
      continue when last_error is null;
      _refused := _refused || id;
      id := -id;
      return next;
    end loop;
    _picked := array(
      select p.id from unnest(_picked) with ordinality as p(id, place) where p.id <> all(_refused) order by p.place);
  end if;
  select null::bigint[] as limited, null::int[] as slots into _admitted;
  select null::bigint[] as keyed, null::text[] as names into _keyed;
  if cardinality(_in_serials.heads) > 0 then
    _held := array(select j.serial from {schema}.live j
                   where j.id = any(_in_serials.heads) and j.id = any(_picked) and position(E'\t' in j.serial) > 0);
  end if;
  if _is_limited and cardinality(_picked) > 0 then
    _task_names := array(
      select j.task from unnest(_picked) with ordinality as p(id, place)
        cross join lateral (select l.task from {schema}.live l where l.id = p.id offset 0) j
      order by p.place);
    _is_limited := _rooms is not null or _limited_tasks && _task_names;
  end if;
  if _is_limited and cardinality(_picked) > 0 then
    _keyed := {schema}.admit_keys(_picked, _task_names, _held, _at);
    if cardinality(_keyed.ids) < cardinality(_picked) then
      _task_names := array(select _task_names[array_position(_picked, p.id)]
                           from unnest(_keyed.ids) with ordinality as p(id, place) order by p.place);
    end if;
    _admitted := {schema}.admit(_keyed.ids, _task_names, coalesce(_free, _most), _rooms, _at);
    _picked := _admitted.ids;
    if cardinality(_picked) = 0 and (_admitted.is_locked or _keyed.is_changed) then
      perform set_config('synchronous_commit', 'off', true);  -- a job whose parking is lost in a crash is parked again
      id := 0;
      return next;
    end if;
  end if;
  if _keyed.keyed is not null or cardinality(_held) > 0 then
    if _keyed.keyed = _picked then
      _key_slots := {schema}.slots_of_keys(_keyed.names);
    else
      _key_slots := {schema}.slots_of_keys(array(
        select coalesce(_keyed.names[array_position(_keyed.keyed, p.id)], j.serial)
        from unnest(_picked) with ordinality as p(id, place)
          cross join lateral (select l.serial from {schema}.live l where l.id = p.id offset 0) j
        order by p.place));
    end if;
  end if;
  if cardinality(_picked) = 0 then
    if _is_parking or _fair is not null and {schema}.show_hidden_keys(_at) then
      perform set_config('synchronous_commit', 'off', true);  -- as above
      id := 0;
      return next;
    end if;
    return;
  end if;

  return query
  update {schema}.live j
    set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
        token = _token, settled_token = null, worker = _worker,
        lease_until = _until, started_at = _at, absorbed = false,
        serial = case when j.serial is null and _keyed.keyed is not null
          then _keyed.names[array_position(_keyed.keyed, j.id)] else j.serial end,
        key_slot = case when _key_slots is not null then _key_slots[array_position(_picked, j.id)]
                        when j.serial is not null then 1 end,
        limit_name = case when _admitted.limited is not null then (
          select t.concurrency from {schema}.task_limits t where t.task = j.task) end,
        limit_slot = _admitted.slots[array_position(_admitted.limited, j.id)]
    where j.id = any(_picked)
    returning {claimed}, j.epoch;
  get diagnostics _changed = row_count;
  if _changed < cardinality(_picked) then perform {schema}.check_written(_changed, cardinality(_picked)); end if;

  if _is_limited then perform {schema}.note_starts(_picked, _task_names, _at); end if;
  if _is_any_fair then
    -- Keys of one claim have had their turns in its order.
    update {schema}.limit_keys q set served_at = _at, turn = s.turn from (
      select k.serial, nextval({turns_text}) as turn from (
        select j.serial from unnest(_picked) with ordinality as p(id, place) cross join lateral (
            select l.task, l.serial from {schema}.live l where l.id = p.id offset 0) j
          join {schema}.task_limits t on t.task = j.task and t.is_fair
        order by p.place) k) s
    where q.name = s.serial;
  end if;
  if cardinality(_in_serials.names) > 0 or _keyed.keyed is not null then
    perform {schema}.clear_hints(_in_serials.heads, _picked, _at);
  end if;
  if _admitted.limited is null and _keyed.keyed is null and not exists (
    select from {schema}.live j where j.id = any(_in_serials.heads) and j.serial is not null and j.token = _token)
  then
    -- A claim that is lost in a crash of the server leaves its jobs queued, which is safe. A serial key or a slot that is
    -- held twice is not.
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- Return the time at which the earliest waiting job without a serial key is due, for these tasks and queues. Any time
-- up to `_at` is as good as another.
create or replace function {schema}.free_due(
  _tasks text[], _queues text[], _excluded text[], _at timestamptz
) returns timestamptz
language plpgsql stable as $$
declare
  _any boolean := _tasks is null and _queues is null and _excluded is null;
  _earliest timestamptz;
  _next record;
  _after int;
  _from record;
begin
  if not _any then
    _tasks := coalesce(_tasks, {schema}.waiting_tasks());
    _queues := {schema}.queues_of_claim(_queues, _excluded);
  end if;
  for _from in
    select null::text as queue, null::text as task where _any
    union all
    select q.queue, t.task from unnest(_queues) as q(queue) cross join unnest(_tasks) as t(task)
  loop
    _after := -2147483648;
    loop
      if _any then
        select j.priority, j.run_at into _next from {schema}.live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2 and j.priority >= _after
          order by j.priority, j.run_at, j.id limit 1;
      elsif _from.queue = 'default' then
        select j.priority, j.run_at into _next from {schema}.live j
          where {in_default} and j.task = _from.task and j.priority >= _after
          order by j.task, j.priority, j.run_at, j.id limit 1;
      else
        select j.priority, j.run_at into _next from {schema}.live j
          where {in_other_queue} and j.queue = _from.queue and j.task = _from.task and j.priority >= _after
          order by j.queue, j.task, j.priority, j.run_at, j.id limit 1;
      end if;
      exit when not found;
      _earliest := least(_earliest, _next.run_at);
      if _earliest <= _at then return _earliest; end if;
      exit when _next.priority = 2147483647;
      _after := _next.priority + 1;
    end loop;
  end loop;
  return _earliest;
end $$;

-- Return the same for jobs with serial keys, free or held. Paused ones among the first hundred keys are skipped.
create or replace function {schema}.serial_due(
  _tasks text[], _queues text[], _excluded text[], _at timestamptz
) returns timestamptz
language plpgsql stable as $$
declare
  _name text;
  _head {schema}.place;
  _opens_at timestamptz;
  _earliest timestamptz;
  _next record;
  _after int := -2147483648;
begin
  for _ in 0..100 loop
    _name := {schema}.next_name(_name);
    if _name is null then return _earliest; end if;
    continue when exists (select from {schema}.limit_keys q where q.name = _name and q.paused_at is not null);
    _opens_at := case when position(E'\t' in _name) > 0 then {schema}.key_opens_at(_name, _at) end;
    continue when _opens_at = 'infinity';
    _head := {schema}.serial_head(_name, _tasks, null, _queues, _excluded, _at);
    if _head.id is not null then _earliest := least(_earliest, greatest(_head.run_at, _opens_at)); end if;
    if _earliest <= _at then return _earliest; end if;
  end loop;
  -- There are many keys, so use scouts and hints (serials.sql).
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where {scout} and j.priority >= _after
        and (_tasks is null or j.task = any(_tasks)) and {schema}.takes(_queues, _excluded, j.queue)
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found or _earliest <= _at;
    _earliest := least(_earliest, _next.run_at);
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  return least(_earliest,
    (select min(q.hint_run_at) from {schema}.limit_keys q where q.hint_run_at is not null),
    (select _at from {schema}.limit_keys q where q.absorbed and q.hint_run_at is null and q.paused_at is null
        and position(E'\t' in q.name) = 0 and exists (
      select from {schema}.live j where j.serial = q.name and j.serial is not null and j.resets < 2
        and j.state in ('queued', 'errored') and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))
        and {schema}.takes(_queues, _excluded, j.queue)) limit 1));
end $$;

-- Return the time at which the next job of any task expires, because an idle worker cancels it then. Up to a hundred
-- obsolete entries are skipped. After those, the time of the last one is returned.
create or replace function {schema}.next_expiry() returns timestamptz
language sql stable as $$
  with first as materialized (
    select e.expires_at, e.id from {schema}.expiring e order by e.expires_at, e.id limit 100
  )
  select coalesce(
    (select f.expires_at from first f
      where exists (select from {schema}.live l where l.id = f.id and l.state = 'queued' and l.expires_at = f.expires_at)
      order by f.expires_at limit 1),
    case when (select count(*) from first) = 100 then (select max(f.expires_at) from first f) end)
$$;

-- Return the time at which the earliest waiting job of these tasks and queues is due. Any time up to `_at` is as good as
-- another.
create or replace function {schema}.earliest_due(
  _tasks text[], _queues text[], _excluded text[], _at timestamptz
) returns timestamptz
language plpgsql stable as $$
declare
  _earliest timestamptz := {schema}.free_due(_tasks, _queues, _excluded, _at);
begin
  if _earliest <= _at then return _earliest; end if;
  return least(_earliest, {schema}.serial_due(_tasks, _queues, _excluded, _at),
    (select min(j.run_at) from {schema}.live j
      where j.state in ('queued', 'errored') and j.resets >= 2 and (_tasks is null or j.task = any(_tasks))
        and {schema}.takes(_queues, _excluded, j.queue)));
end $$;

-- Return the seconds until the earliest waiting job of these tasks and queues is due, or until any job expires. Paused
-- jobs are not due, since a resume notifies. Jobs of a full limit are not due, since the end of one of its jobs notifies.
create or replace function {schema}.next_due(
  _tasks text[], _now timestamptz default null, _queues text[] default null, _excluded text[] default null
) returns double precision
language plpgsql stable {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
  _earliest timestamptz;
  _closed record;
begin
  if exists (select from {schema}.pauses) then
    _tasks := {schema}.unpaused(_tasks);
    _excluded := {schema}.with_paused(_excluded);
  end if;
  if exists (select from {schema}.task_limits) then
    for _closed in
      select c.opens_at, array_agg(c.task) as tasks from {schema}.closed_tasks(_at) c
      where c.opens_at < 'infinity' and (_tasks is null or c.task = any(_tasks)) group by c.opens_at
    loop
      _earliest := least(_earliest, (
        select greatest(d.due, _closed.opens_at)
        from {schema}.earliest_due(_closed.tasks, _queues, _excluded, _at) as d(due) where d.due is not null));
    end loop;
    _tasks := {schema}.open_tasks(_tasks, _at);
  end if;
  if cardinality(_tasks) > 0 or _tasks is null then
    _earliest := least(_earliest, {schema}.earliest_due(_tasks, _queues, _excluded, _at));
  end if;
  if (_earliest is null or _earliest > _at) and exists (select from {schema}.expiring) then
    _earliest := least(_earliest, {schema}.next_expiry());
  end if;
  return case when _earliest is not null then greatest(extract(epoch from _earliest - _at), 0)::double precision end;
end $$;
