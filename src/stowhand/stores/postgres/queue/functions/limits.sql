-- Limits of tasks: how many jobs run at the same time, and how many start in a period, over all workers.
--
-- Each limit has a row in `limits`, with the values that all workers obey. `task_limits` has the limits of each task: a
-- `concurrency` and a `rate`, each the name of a row; tasks may share one.
--
-- A running job of a concurrency limit has a slot: a number in its own row (`limit_name`, `limit_slot`), unique while the
-- job is processing (index live_limit_slots). So whatever ends `processing` frees the slot in the same write.
--
-- A rate is kept by one time in its row, `next_start`: the start of the next job if all starts were evenly spaced (GCRA).
-- A claim moves it by one interval for each job. Jobs may start while it is at most `burst - 1` intervals ahead.
--
-- A claim leaves out tasks whose limits have no room (`closed_tasks`), as if they were paused. Then it chooses jobs, and
-- `admit` keeps those for which there is room. It locks the rows of their limits, never waiting, and reads the slots in
-- use in a later statement, which sees all claims that have held these locks. Such a claim commits durably.
--
-- A limit with keys limits the jobs of each key (`task_limits.key_limit`, `key_path`). The machinery is that of serial keys
-- (serials.sql): a serial key is a key with one slot. A job gets its key when a claim first chooses it: it starts, or, if the
-- key has no room, it is parked: it leaves the order of claims by one write, and waits in the order of its key.
--
-- The keys of a fair task take turns: a key's place in the order of claims is not before its last claim (`served_at`). For
-- that, all its due jobs are parked before one starts (`park_due`), so each claim starts at most one job of a key.
--
-- The arithmetic of rates is in jobs/task_limits.py too. The client has checked all values.

-- Return the start of the next job of a rate if all starts were evenly spaced. It is at most `burst` intervals ahead,
-- unless the clock was set back or the limit was changed: then it is ignored. The five seconds are for a slow claim,
-- whose `_at` is older than what a later claim has stored: to ignore that would exceed the rate.
create or replace function {schema}.next_start(
  _stored timestamptz, _rate int, _seconds double precision, _burst int, _at timestamptz
) returns timestamptz
language sql immutable as $$
  select case
    when _rate is null then null
    when _stored > _at + (coalesce(_burst, 1) * _seconds / _rate + 5) * interval '1 second' then _at
    else greatest(_stored, _at) end
$$;

-- Return how many jobs of a rate may start now; NULL if the limit has no rate.
create or replace function {schema}.starts_allowed(
  _stored timestamptz, _rate int, _seconds double precision, _burst int, _at timestamptz
) returns int
language sql immutable as $$
  select case when _rate is not null then greatest(floor(coalesce(_burst, 1) + 1e-6
    - extract(epoch from {schema}.next_start(_stored, _rate, _seconds, _burst, _at) - _at) * _rate / _seconds), 0)::int end
$$;

-- Return the time from which a job of a rate may start; NULL if the limit has no rate.
create or replace function {schema}.rate_opens_at(
  _stored timestamptz, _rate int, _seconds double precision, _burst int, _at timestamptz
) returns timestamptz
language sql immutable as $$
  select {schema}.next_start(_stored, _rate, _seconds, _burst, _at)
    - (coalesce(_burst, 1) - 1) * _seconds / _rate * interval '1 second'
$$;

-- Return the slots in use of a concurrency limit. PostgreSQL expands such a function in a FROM clause.
create or replace function {schema}.used_slots(_name text) returns table (slot int)
language sql stable as $$
  select j.limit_slot from {schema}.live j
  where j.limit_name = _name and j.limit_slot is not null and j.worker is not null
$$;

-- Return the tasks of which no job may start now, and the time from which one may; infinity: when a job ends.
create or replace function {schema}.closed_tasks(_at timestamptz) returns table (task text, opens_at timestamptz)
language sql stable as $$
  with state as materialized (
    select l.name, l.held_until,
      case when l.concurrency <= (select count(*) from {schema}.used_slots(l.name))
        then 'infinity'::timestamptz end as slot_at,
      {schema}.rate_opens_at(l.next_start, l.rate, l.rate_seconds, l.burst, _at) as rate_at
    from {schema}.limits l
  )
  select t.task, o.opens_at
  from {schema}.task_limits t
    left join state c on c.name = t.concurrency
    left join state r on r.name = t.rate
    cross join lateral (select greatest(c.held_until, c.slot_at, r.held_until, r.rate_at) as opens_at) o
  where o.opens_at > _at
$$;

-- Return those of these tasks (NULL: of all tasks with waiting jobs) of which a job may start now, in their order.
create or replace function {schema}.open_tasks(_tasks text[], _at timestamptz) returns text[]
language plpgsql stable as $$
declare
  _closed text[] := array(select c.task from {schema}.closed_tasks(_at) c);
begin
  if cardinality(_closed) = 0 then return _tasks; end if;
  return array(select t.task from unnest(coalesce(_tasks, {schema}.waiting_tasks())) with ordinality as t(task, place)
               where t.task <> all(_closed) order by t.place);
end $$;

-- Return those of these tasks (NULL: of all tasks with waiting jobs) that have no limit, in their order.
create or replace function {schema}.unlimited_tasks(_tasks text[]) returns text[]
language sql stable as $$
  select array(select t.task from unnest(coalesce(_tasks, {schema}.waiting_tasks())) with ordinality as t(task, place)
               where not exists (select from {schema}.task_limits l where l.task = t.task) order by t.place)
$$;

-- Return this many free slots of a limit, the lowest numbers first.
create or replace function {schema}.free_slots(_name text, _count int) returns int[]
language sql stable as $$
  with used as materialized (select u.slot from {schema}.used_slots(_name) u)
  select array(
    select g.slot from generate_series(1, (select count(*)::int from used) + _count) as g(slot)
    except select u.slot from used u
    order by 1 limit _count)
$$;

-- Keep those of the picked jobs that may start, in their order. `limited` and `slots` belong together: the jobs with a
-- concurrency limit, and their slots. `_free`: the number of jobs that the worker starts at once. The others are
-- claimed ahead, which jobs with a rate never are, and jobs of a concurrency limit only while less than half of it is in
-- use. `_rooms`: how many jobs of a task the worker itself allows; NULL: any number. `is_locked`: another claim has
-- locked a limit, so the caller claims again if no job is left. `_tasks`: the tasks of the picked jobs, in their order.
create or replace function {schema}.admit(
  _picked bigint[], _tasks text[], _free int, _rooms jsonb, _at timestamptz,
  out ids bigint[], out limited bigint[], out slots int[], out is_locked boolean
)
language plpgsql as $$
declare
  _names text[];
  _locked text[];
  _room int[];
  _ahead int[];
  _starts int[];
  _one {schema}.task_limits;
  _is_rated boolean;
  _count int;
begin
  _names := array(
    select distinct n.name
    from (select distinct u.task from unnest(_tasks) as u(task)) as u
      join {schema}.task_limits t on t.task = u.task
      cross join lateral (values (t.concurrency), (t.rate)) as n(name)
    where n.name is not null);
  _locked := array(select l.name from {schema}.limits l where l.name = any(_names) order by l.name for update skip locked);
  is_locked := cardinality(_locked) < cardinality(_names);
  -- A new statement, now that the rows are locked: it sees the slots and starts of all claims before this one.
  select array_agg(case when l.held_until > _at then 0 else greatest(l.concurrency - u.used, 0) end order by n.place),
      array_agg(greatest(l.concurrency / 2 - u.used, 0) order by n.place),
      array_agg(case when l.held_until > _at then 0 else {schema}.starts_allowed(
        l.next_start, l.rate, l.rate_seconds, l.burst, _at) end order by n.place)
    into _room, _ahead, _starts
    from unnest(_locked) with ordinality as n(name, place)
      join {schema}.limits l on l.name = n.name
      cross join lateral (select count(*)::int as used from {schema}.used_slots(n.name)) u;
  if array_position(_tasks, _tasks[1]) = 1 and cardinality(array_remove(_tasks, _tasks[1])) = 0 then
    -- All jobs are of one task, which is usual in a large batch.
    select t.* into _one from {schema}.task_limits t where t.task = _tasks[1];
    _is_rated := _one.rate is not null or exists (
      select from {schema}.limits l where l.name = _one.key_limit and l.key_rate is not null);
    _count := least(cardinality(_picked), (_rooms->>_tasks[1])::int);
    if _one.concurrency is not null then
      _count := least(_count, case when _one.concurrency = any(_locked) then _room[array_position(_locked, _one.concurrency)] else 0 end);
    end if;
    if _one.rate is not null then
      _count := least(_count, case when _one.rate = any(_locked) then _starts[array_position(_locked, _one.rate)] else 0 end);
    end if;
    if _is_rated then
      _count := least(_count, _free);
    elsif _one.concurrency is not null then
      _count := least(_count, greatest(_free, _ahead[array_position(_locked, _one.concurrency)]));
    end if;
    ids := _picked[:_count];
    if _one.concurrency is not null then
      limited := ids;
      slots := {schema}.free_slots(_one.concurrency, _count);
    end if;
    return;
  end if;
  with picked as (
    select p.id, p.place, t.concurrency, t.rate,
      t.rate is not null or exists (
        select from {schema}.limits l where l.name = t.key_limit and l.key_rate is not null) as is_rated,
      array_position(_locked, t.concurrency) as c, array_position(_locked, t.rate) as r,
      row_number() over (partition by t.concurrency order by p.place) as c_number,
      row_number() over (partition by t.rate order by p.place) as r_number,
      row_number() over (partition by p.task order by p.place) as task_number, (_rooms->>p.task)::int as task_room
    from unnest(_picked, _tasks) with ordinality as p(id, task, place)
      left join {schema}.task_limits t on t.task = p.task
  ), fitting as (
    select f.*, row_number() over (order by f.place) as number from picked f
    where (f.concurrency is null or f.c is not null and coalesce(f.c_number <= _room[f.c], true))
      and (f.rate is null or f.r is not null and coalesce(f.r_number <= _starts[f.r], true))
      and coalesce(f.task_number <= f.task_room, true)
  ), admitted as (
    select a.*, row_number() over (partition by a.c order by a.place) as slot_number from fitting a
    where a.number <= _free or not a.is_rated and coalesce(a.c_number <= _ahead[a.c], true)
  ), free as materialized (
    select a.c, {schema}.free_slots(_locked[a.c], count(*)::int) as slots from admitted a where a.c is not null group by a.c
  )
  select array_agg(a.id order by a.place), array_agg(a.id) filter (where a.c is not null),
      array_agg(f.slots[a.slot_number]) filter (where a.c is not null)
    into ids, limited, slots
    from admitted a left join free f on f.c = a.c;
  ids := coalesce(ids, '{}');
end $$;

-- Move the rates of jobs that have just been claimed by one interval for each.
create or replace function {schema}.note_starts(_ids bigint[], _tasks text[], _at timestamptz) returns void
language plpgsql as $$
declare
  _rates text[];
  _keys text[];
begin
  if not exists (
    select from {schema}.task_limits t left join {schema}.limits l on l.name = t.key_limit
    where t.task = any(_tasks) and (t.rate is not null or l.key_rate is not null))
  then
    return;
  end if;
  select array_agg(t.rate) filter (where t.rate is not null), array_agg(j.serial) filter (where t.key_limit is not null)
    into _rates, _keys
    from unnest(_ids) as f(id)
      cross join lateral (select l.task, l.serial from {schema}.live l where l.id = f.id offset 0) j
      join {schema}.task_limits t on t.task = j.task;
  update {schema}.limits l
    set next_start = {schema}.next_start(l.next_start, l.rate, l.rate_seconds, l.burst, _at)
      + (select count(*) from unnest(_rates) as s(rate) where s.rate = l.name) * l.rate_seconds / l.rate * interval '1 second'
    where l.name = any(_rates) and l.rate is not null;
  update {schema}.limit_keys q
    set next_start = {schema}.next_start(q.next_start, k.key_rate, k.key_rate_seconds, k.key_burst, _at)
      + k.starts * k.key_rate_seconds / k.key_rate * interval '1 second'
    from (
      select u.name, count(*) as starts, l.key_rate, l.key_rate_seconds, l.key_burst
      from unnest(_keys) as u(name) join {schema}.limits l on l.name = split_part(u.name, E'\t', 1)
      where l.key_rate is not null
      group by u.name, l.key_rate, l.key_rate_seconds, l.key_burst) k
    where q.name = k.name;
end $$;

-- Return the name under which a key of a limit is stored. Long keys are shortened by their hash.
create or replace function {schema}.key_name(_limit text, _key text) returns text
language sql immutable as $$
  select _limit || E'\t' || case when length(_key) > 128 then left(_key, 96) || md5(_key) else coalesce(_key, '') end
$$;

-- Return the time from which a job of this key may start: NULL: now; infinity: when a job ends, or after a resume.
create or replace function {schema}.key_opens_at(_name text, _at timestamptz) returns timestamptz
language plpgsql stable as $$
declare
  _limit {schema}.limits;
  _key {schema}.limit_keys;
  _opens_at timestamptz;
begin
  if position(E'\t' in _name) = 0 then return case when {schema}.is_held(_name) then 'infinity'::timestamptz end; end if;
  select q.* into _key from {schema}.limit_keys q where q.name = _name;
  select l.* into _limit from {schema}.limits l where l.name = split_part(_name, E'\t', 1);
  if _key.paused_at is not null or _limit.key_concurrency <= {schema}.key_slots_used(_name) then return 'infinity'; end if;
  _opens_at := greatest(_key.held_until,
    {schema}.rate_opens_at(_key.next_start, _limit.key_rate, _limit.key_rate_seconds, _limit.key_burst, _at));
  return case when _opens_at > _at then _opens_at end;
end $$;

create or replace function {schema}.key_slots_used(_name text) returns bigint
language sql stable as $$
  select count(*) from {schema}.live j where j.serial = _name and j.key_slot is not null and j.worker is not null
$$;

-- Return of these keys of limits, in their order, how many slots are free (0 for a paused key), how many jobs may start now,
-- and the time from which a job may start by the rate or after a hold; NULL: now. The keys have rows.
create or replace function {schema}.key_states(_names text[], _at timestamptz)
returns table (name text, slots int, room int, opens_at timestamptz)
language sql stable as $$
  select q.name, s.free, case when o.at > _at then 0 else least(s.free, {schema}.starts_allowed(
      q.next_start, l.key_rate, l.key_rate_seconds, l.key_burst, _at)) end,
    case when o.at > _at then o.at end
  from unnest(_names) with ordinality as n(name, place)
    cross join lateral (select k.* from {schema}.limit_keys k where k.name = n.name offset 0) q
    left join lateral (select k.* from {schema}.limits k where k.name = split_part(n.name, E'\t', 1) offset 0) l on true
    cross join lateral (select greatest(q.held_until, {schema}.rate_opens_at(
      q.next_start, l.key_rate, l.key_rate_seconds, l.key_burst, _at)) as at) o
    cross join lateral (select case
      when q.paused_at is not null then 0
      when l.key_concurrency is null then 2147483647
      else (
        select greatest(l.key_concurrency - count(*), 0)::int from {schema}.live j
        where j.serial = q.name and j.key_slot is not null and j.worker is not null) end as free) s
  order by n.place
$$;

-- Lock the rows of those of these keys that no other transaction has locked; missing rows are made. Return their names.
create or replace function {schema}.lock_keys(_names text[]) returns text[]
language plpgsql as $$
begin
  -- An insert would wait for another claim that has inserted the same row. Two claims could wait for each other, in a
  -- deadlock. With the try-lock, no claim waits.
  insert into {schema}.limit_keys (name)
    select n.name from unnest(_names) as n(name)
    where not exists (select from {schema}.limit_keys q where q.name = n.name)
      and pg_try_advisory_xact_lock(hashtextextended({channel} || n.name, 1))
    on conflict do nothing;
  return array(
    select q.name from {schema}.limit_keys q where q.name = any(_names) order by q.name for update skip locked);
end $$;

-- Leave hints for keys whose jobs have just been parked. `_firsts`: the first parked job of each key.
create or replace function {schema}.hint_parked(_names text[], _firsts {schema}.place[], _at timestamptz) returns void
language plpgsql as $$
begin
  update {schema}.limit_keys q set absorbed = true where q.name = any(_names) and not q.absorbed;
  -- As `refresh_hint`, for all keys at once: these jobs may be the first of their keys.
  update {schema}.limit_keys q set hint_priority = p.priority, hint_run_at = p.run_at, hint_id = p.id
    from (
      select s.name, (h.place).* from unnest(_names, _firsts) as f(name, priority, run_at, id)
        cross join lateral {schema}.key_states(array[f.name], _at) s
        cross join lateral (select {schema}.key_place(
          s.name, row(f.priority, greatest(f.run_at, s.opens_at), f.id)::{schema}.place, _at) as place offset 0) h
      where s.slots > 0) p
    where q.name = p.name and (q.hint_id is null
      or (p.priority, p.run_at, p.id) < (q.hint_priority, q.hint_run_at, q.hint_id));
end $$;

-- For picked jobs of limits with keys that have no key yet: keep as many of each key as may start now, and park the
-- others. `keyed` and `names`: the kept ones and their keys. `is_changed`: jobs were parked, or a key was locked, so the
-- caller claims again if no job is left. `_tasks`: the tasks of the picked jobs, in their order. `_held`: the keys of picked
-- jobs that have one already.
create or replace function {schema}.admit_keys(
  _picked bigint[], _tasks text[], _held text[], _at timestamptz, out ids bigint[], out keyed bigint[], out names text[], out is_changed boolean
)
language plpgsql as $$
declare
  _ids bigint[];
  _names text[];
  _locked text[];
  _rooms int[];
  _parked bigint[];
  _parked_names text[];
  _firsts {schema}.place[];
begin
  ids := _picked; is_changed := false;
  if not exists (select from {schema}.task_limits t where t.key_limit is not null and t.task = any(_tasks)) then return; end if;
  select array_agg(k.id order by k.place), array_agg(k.name order by k.place) into _ids, _names from (
    select p.id, p.place, {schema}.key_name(t.key_limit, j.payload #>> t.key_path) as name
    from unnest(_picked, _tasks) with ordinality as p(id, task, place)
      join {schema}.task_limits t on t.task = p.task and t.key_limit is not null
      cross join lateral (
        select l.payload from {schema}.live l where l.id = p.id and l.serial is null offset 0) j) k;
  if _ids is null then return; end if;
  _locked := {schema}.lock_keys(array(select distinct n.name from unnest(_names) as n(name)));
  -- A new statement under the locks. A picked job that has its key already takes a place of it.
  _rooms := array(
    select s.room - coalesce(cardinality(array_positions(_held, s.name)), 0) from {schema}.key_states(_locked, _at) s);
  with numbered as (
    select u.id, u.name, u.place, array_position(_locked, u.name) as k,
      row_number() over (partition by u.name order by u.place) as number
    from unnest(_ids, _names) with ordinality as u(id, name, place)
  )
  select array_agg(n.id order by n.place) filter (where n.number <= _rooms[n.k]),
      array_agg(n.name order by n.place) filter (where n.number <= _rooms[n.k]),
      array_agg(n.id) filter (where n.number > _rooms[n.k])
    into keyed, names, _parked from numbered n;
  if _parked is not null then
    with parked as (
      update {schema}.live l set serial = _names[array_position(_ids, l.id)], absorbed = true where l.id = any(_parked)
        returning l.id, l.serial, l.priority, l.run_at
    ), first as (
      select distinct on (p.serial) p.serial, row(p.priority, p.run_at, p.id)::{schema}.place as place
      from parked p order by p.serial, p.priority, p.run_at, p.id
    )
    select array_agg(f.serial), array_agg(f.place) into _parked_names, _firsts from first f;
    -- An open key needs a hint because `admit` may refuse its kept jobs, and then no claim of them computes the hint.
    perform {schema}.hint_parked(_parked_names, _firsts, _at);
  end if;
  is_changed := cardinality(_ids) > coalesce(cardinality(keyed), 0);
  if is_changed then
    ids := array(
      select p.id from unnest(_picked) with ordinality as p(id, place)
      where p.id <> all(_ids) or p.id = any(keyed) order by p.place);
  end if;
end $$;

-- Give these waiting jobs of fair tasks their keys, and park them. Return those that stay in the order of claims, because
-- another transaction has locked them or their keys. The next claim parks them.
create or replace function {schema}.park(_ids bigint[], _at timestamptz) returns bigint[]
language plpgsql as $$
declare
  _names text[];
  _locked text[];
  _parked bigint[];
  _firsts {schema}.place[];
  _all bigint[] := _ids;
begin
  select array_agg(k.id), array_agg(k.name) into _ids, _names from (
    select j.id, coalesce(j.serial, {schema}.key_name(t.key_limit, j.payload #>> t.key_path)) as name
    from unnest(_ids) as f(id)
      cross join lateral (
        select l.id, l.task, l.serial, l.payload from {schema}.live l where l.id = f.id and l.state in ('queued', 'errored')
          and not l.absorbed and l.resets + 0 < 2 offset 0 for update skip locked) j
      join {schema}.task_limits t on t.task = j.task and t.key_limit is not null) k;
  if _ids is null then return _all; end if;
  _locked := {schema}.lock_keys(array(select distinct n.name from unnest(_names) as n(name)));
  with parked as (
    update {schema}.live l
      set serial = _names[array_position(_ids, l.id)], absorbed = _names[array_position(_ids, l.id)] = any(_locked)
      where l.id = any(_ids)
      returning l.id, l.serial, l.absorbed, l.priority, l.run_at
  ), first as (
    select distinct on (p.serial) p.serial, row(p.priority, p.run_at, p.id)::{schema}.place as place
    from parked p where p.absorbed order by p.serial, p.priority, p.run_at, p.id
  )
  select (select array_agg(p.id) from parked p where p.absorbed), array_agg(f.serial), array_agg(f.place)
    into _parked, _names, _firsts from first f;
  perform {schema}.hint_parked(_names, _firsts, _at);
  return array(select a.id from unnest(_all) as a(id) where a.id = any(_parked) is not true);
end $$;

-- Park a limited number of due jobs of these fair tasks that have no key yet. Return whether there may be more.
create or replace function {schema}.park_due(_tasks text[], _queues text[], _excluded text[], _at timestamptz) returns boolean
language plpgsql as $$
declare
  _most constant int := 400;
  _ids bigint[] := {schema}.pick_free(_most, _tasks, null, _queues, _excluded, _at, null, null, null);
begin
  if cardinality(_ids) > 0 then perform {schema}.park(_ids, _at); end if;
  return cardinality(_ids) = _most;
end $$;

-- Update the hints of fair keys that a clock, which was set back, hides. Return whether one of them is due.
create or replace function {schema}.show_hidden_keys(_at timestamptz) returns boolean
language plpgsql as $$
declare
  _names text[] := array(
    select q.name from {schema}.limit_keys q
    where q.hint_run_at is not null and q.hint_run_at > _at and q.served_at > _at limit 100 for update skip locked);
begin
  perform {schema}.refresh_hint(n.name, _at) from unnest(_names) as n(name);
  return exists (select from {schema}.limit_keys q where q.name = any(_names) and q.hint_run_at <= _at);
end $$;

-- Return the slots for these jobs, in their order, each the lowest free one of its key. `_names`: their keys. Without hash
-- joins, a join by name would compare all jobs with all keys.
create or replace function {schema}.slots_of_keys(_names text[]) returns int[]
language sql stable as $$
  select array_agg(s.slot order by s.place)
  from (
    select n.name, array_agg(n.place order by n.place) as places from unnest(_names) with ordinality as n(name, place)
    group by n.name) k
    cross join lateral (
      select array_agg(j.key_slot) as slots from {schema}.live j
      where j.serial = k.name and j.key_slot is not null and j.worker is not null) used
    cross join lateral unnest(k.places, case when k.name is not null then array(
      select g.slot from generate_series(1, cardinality(k.places) + coalesce(cardinality(used.slots), 0)) as g(slot)
      where used.slots is null or g.slot <> all(used.slots) limit cardinality(k.places)) end) as s(place, slot)
$$;

-- Lock the limits that `hold_limits` changes for these jobs.
create or replace function {schema}.lock_limits(_ids bigint[]) returns void
language sql as $$
  select from {schema}.limits l where l.name = any(array(
    select n.name from unnest(_ids) as f(id)
      cross join lateral (select j.task from {schema}.live j where j.id = f.id offset 0) j
      join {schema}.task_limits t on t.task = j.task and t.key_limit is null
      cross join lateral (values (t.concurrency), (t.rate)) as n(name)
    where n.name is not null))
  order by l.name for update
$$;

-- Start no job of the limits of these tasks for these seconds (RateLimited); of a task with keys, no job of the same key.
-- A longer hold stays.
create or replace function {schema}.hold_limits(
  _tasks text[], _names text[], _seconds double precision[], _at timestamptz
) returns void
language plpgsql as $$
begin
  update {schema}.limit_keys q
    set held_until = greatest(q.held_until, h.until)
    from (
      select s.name, max(_at + s.seconds * interval '1 second') as until from unnest(_names, _seconds) as s(name, seconds)
      where position(E'\t' in s.name) > 0 group by s.name) h
    where q.name = h.name;
  update {schema}.limits l
    set held_until = greatest(l.held_until, h.until)
    from (
      select n.name, max(_at + s.seconds * interval '1 second') as until
      from unnest(_tasks, _names, _seconds) as s(task, name, seconds)
        join {schema}.task_limits t on t.task = s.task and t.key_limit is null
        cross join lateral (values (t.concurrency), (t.rate)) as n(name)
      where n.name is not null
      group by n.name) h
    where l.name = h.name;
  perform {schema}.refresh_hint(q.name, _at) from {schema}.limit_keys q
    where q.name = any(_names) and position(E'\t' in q.name) > 0 and q.absorbed;
end $$;

-- Wake sleeping workers if a full limit among these has a waiting job: jobs of them have just freed slots. The names have
-- one element for each freed slot.
create or replace function {schema}.wake_for_limits(_names text[], _at timestamptz) returns void
language plpgsql as $$
begin
  if exists (
    select from (select n.name, count(*) as freed from unnest(_names) as n(name) group by n.name) f
      join {schema}.limits l on l.name = f.name
      cross join lateral (select count(*) as used from {schema}.used_slots(f.name)) u
      join {schema}.task_limits t on t.concurrency = f.name
    where u.used + f.freed >= l.concurrency and {schema}.earliest_due(array[t.task], null, null, _at) <= _at)
  then
    perform {schema}.wake();
  end if;
end $$;

-- Return the names of the limits in which these jobs have slots, one for each slot.
create or replace function {schema}.slots_held(_ids bigint[]) returns text[]
language sql stable as $$
  select array_agg(j.limit_name) from unnest(_ids) as f(id) cross join lateral (
    select l.limit_name from {schema}.live l
    where l.id = f.id and l.limit_slot is not null and l.worker is not null offset 0) j
$$;

-- Update the hints of the keys of a limit after a change of its values, and wake sleeping workers.
create or replace function {schema}.refresh_keys(_limit text) returns void
language plpgsql as $$
begin
  perform from {schema}.limit_keys q
    where starts_with(q.name, _limit || E'\t') and q.absorbed order by q.name for update;
  perform {schema}.refresh_hint(q.name, clock_timestamp()) from {schema}.limit_keys q
    where starts_with(q.name, _limit || E'\t') and q.absorbed;
  perform {schema}.wake();
end $$;

-- Forget the turns of the keys of a limit, whose tasks are no longer fair.
create or replace function {schema}.end_turns(_limit text) returns void
language plpgsql as $$
begin
  update {schema}.limit_keys q set served_at = null where q.name = any(array(
    select k.name from {schema}.limit_keys k
    where starts_with(k.name, _limit || E'\t') and k.served_at is not null order by k.name for update));
  perform {schema}.refresh_keys(_limit);
end $$;

-- Take the keys of waiting jobs of these tasks, which declare another key now: the next claim gives them the new one.
create or replace function {schema}.take_keys(_tasks text[]) returns void
language sql as $$
  update {schema}.live j set serial = null where j.id = any(array(
    select l.id from {schema}.live l
    where l.task = any(_tasks) and l.state in ('queued', 'errored') and position(E'\t' in l.serial) > 0
    for update skip locked))
$$;

-- Store the limits that the tasks of a starting worker declare: `_tasks` has the names of the limits of each task,
-- `_limits` the values, and `_all` all tasks of the worker. Overrides stay. Rows of limits are locked before rows of
-- keys, here, in set_limit and in settle_attempts.
create or replace function {schema}.declare_limits(_tasks json, _limits json, _all text[]) returns void
language plpgsql as $$
declare
  _changed text[];
  _moved text[];
  _fair text[];
begin
  if not exists (select from json_each(_limits)) and not exists (select from {schema}.limits) then return; end if;
  perform pg_advisory_xact_lock(hashtextextended({channel}, 6));
  _changed := array(
    select d.key from json_each(_limits) d
    where not exists (select from {schema}.limits l where l.name = d.key and l.declared = d.value::jsonb) order by d.key);
  insert into {schema}.limits as known (name, declared)
    select d.key, d.value::jsonb from json_each(_limits) d where d.key = any(_changed) order by d.key
    on conflict (name) do update set declared = excluded.declared;
  select array_agg(t.task) into _moved from {schema}.task_limits t
    where t.task = any(_all) and t.key_limit is not null and not exists (
      select from json_each(_tasks) d where d.key = t.task and d.value->>'key_limit' = t.key_limit
        and string_to_array(d.value->>'key', '.') = t.key_path);
  select array_agg(t.key_limit) into _fair from {schema}.task_limits t where t.is_fair;
  insert into {schema}.task_limits as known (task, concurrency, rate, key_limit, key_path, is_fair)
    select d.key, d.value->>'concurrency', d.value->>'rate', d.value->>'key_limit',
      string_to_array(d.value->>'key', '.'), coalesce((d.value->>'fair')::boolean, false)
    from json_each(_tasks) d
    on conflict (task) do update
      set concurrency = excluded.concurrency, rate = excluded.rate, key_limit = excluded.key_limit,
        key_path = excluded.key_path, is_fair = excluded.is_fair
      where (known.concurrency, known.rate, known.key_limit, known.key_path, known.is_fair) is distinct from
        (excluded.concurrency, excluded.rate, excluded.key_limit, excluded.key_path, excluded.is_fair);
  delete from {schema}.task_limits t
    where t.task = any(_all) and not exists (select from json_each(_tasks) d where d.key = t.task);
  -- A row that a settlement has locked stays until the next declaration.
  delete from {schema}.limits l where l.name = any(array(
    select o.name from {schema}.limits o
    where o.override = '{}' and not exists (
      select from {schema}.task_limits t where o.name in (t.concurrency, t.rate, t.key_limit))
    for update skip locked));
  if _moved is not null then
    perform {schema}.take_keys(_moved);
    perform {schema}.wake();
  end if;
  perform {schema}.end_turns(f.name) from unnest(_fair) as f(name)
    where not exists (select from {schema}.task_limits t where t.key_limit = f.name and t.is_fair);
  perform {schema}.refresh_keys(c.name) from unnest(_changed) as c(name);
end $$;

-- Override values of a limit, which declarations leave unchanged. NULL: as it is. Jobs that run continue; a lower
-- concurrency starts nothing until fewer run. A concurrency of 0 starts nothing. Return false if it changes nothing.
create or replace function {schema}.set_limit(
  limit_name text, concurrency int default null, rate int default null, per interval default null, burst int default null,
  key_concurrency int default null, key_rate int default null, key_per interval default null, key_burst int default null
) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _new constant jsonb := jsonb_strip_nulls(jsonb_build_object(
    'concurrency', concurrency, 'rate', rate, 'rate_seconds', extract(epoch from per), 'burst', burst,
    'key_concurrency', key_concurrency, 'key_rate', key_rate, 'key_rate_seconds', extract(epoch from key_per),
    'key_burst', key_burst));
  _declared jsonb;
begin
  select l.declared into _declared from {schema}.limits l where l.name = limit_name for update;
  if not found then
    raise exception 'There is no limit %: a worker declares limits when it starts.', to_json(limit_name) using errcode = '22023';
  elsif concurrency is not null and not _declared ? 'concurrency' then
    raise exception 'Limit % has no concurrency: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif (rate is not null or per is not null or burst is not null) and not _declared ? 'rate' then
    raise exception 'Limit % has no rate: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif key_concurrency is not null and not _declared ? 'key_concurrency' then
    raise exception 'Limit % has no concurrency per key: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif (key_rate is not null or key_per is not null or key_burst is not null) and not _declared ? 'key_rate' then
    raise exception 'Limit % has no rate per key: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif exists (select from unnest(array[concurrency, key_concurrency]) as v(n) where v.n not between 0 and 1000000)
    or exists (select from unnest(array[rate, burst, key_rate, key_burst]) as v(n) where v.n not between 1 and 1000000)
    or exists (select from unnest(array[per, key_per]) as v(n) where v.n not between '1 ms' and '366 days') then
    raise exception 'Limit %: use a concurrency of 0 to 1000000, a rate and a burst of 1 to 1000000, and a period of 1 ms '
      'to 366 days.', to_json(limit_name) using errcode = '22023';
  end if;
  update {schema}.limits l set override = l.override || _new
    where l.name = limit_name and l.override <> l.override || _new;
  if not found then return false; end if;
  perform {schema}.refresh_keys(limit_name);
  return true;
end $$;

-- Remove the override of a limit, and end its hold and those of its keys. Return true if there was one. A limit without tasks is removed.
create or replace function {schema}.reset_limit(limit_name text) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
  _changed boolean;
  _held text[];
begin
  -- A worker that starts may declare the limit at this moment.
  perform pg_advisory_xact_lock(hashtextextended({channel}, 6));
  if not exists (select from {schema}.limits l where l.name = limit_name) then
    raise exception 'There is no limit %: a worker declares limits when it starts.', to_json(limit_name) using errcode = '22023';
  end if;
  update {schema}.limits l set override = '{}', held_until = null
    where l.name = limit_name and (l.override <> '{}' or l.held_until is not null);
  _changed := found;
  _held := array(
    select q.name from {schema}.limit_keys q
    where starts_with(q.name, limit_name || E'\t') and q.held_until is not null order by q.name for update);
  update {schema}.limit_keys q set held_until = null where q.name = any(_held);
  _changed := _changed or cardinality(_held) > 0;
  delete from {schema}.limits l
    where l.name = limit_name and not exists (
      select from {schema}.task_limits t where l.name in (t.concurrency, t.rate, t.key_limit));
  if _changed then perform {schema}.refresh_keys(limit_name); end if;
  return _changed;
end $$;
