-- The data of flows (flow_tables.py). Steps are jobs, which are enqueued, claimed and settled like any other.

-- Create jobs, lookups and first steps, all or none. Return false for a repeat: the caller has chosen the ids, so they
-- exist.
create or replace function {schema}.flow_create(
  _flow text, _ids text[], _found_ids text[], _attributes text[], _values text[],
  _tasks text[], _payloads json[], _serials text[], _run_ats timestamptz[], _delays double precision[],
  _max_attempts int[], _keys text[], _priorities int[], _flags json[], _modes text[], _max_resets int[],
  _now timestamptz default null
) returns boolean
language plpgsql {definer} as $$
declare
  _at timestamptz := {schema}.at(_now);
  _new int;
begin
  insert into {schema}.flow_jobs (id, flow, created_at, looked_at)
    select u.id, _flow, _at, _at from unnest(_ids) as u(id) order by u.id collate "C" on conflict do nothing;
  get diagnostics _new = row_count;
  if _new = 0 then
    return false;
  elsif _new < cardinality(_ids) then
    raise exception 'Some of these flow jobs exist already.' using errcode = '23505';
  end if;
  insert into {schema}.flow_lookups (flow, attribute, value, id)
    select distinct _flow, u.attribute, u.value, u.id from unnest(_found_ids, _attributes, _values)
      as u(id, attribute, value);
  -- In the order of enqueue_jobs.
  perform {schema}.enqueue(
    j.task, j.payload, j.serial, j.run_at, j.delay, j.max_attempts, j.key, j.priority,
    case when j.flags is not null then array(select json_array_elements_text(j.flags)) end, j.mode, j.max_resets, _now => _now)
    from (
      select * from unnest(_tasks, _payloads, _serials, _run_ats, _delays, _max_attempts, _keys, _priorities, _flags,
                           _modes, _max_resets) with ordinality
        as u(task, payload, serial, run_at, delay, max_attempts, key, priority, flags, mode, max_resets, place)
      order by u.key collate "C" nulls first, u.place offset 0) j;
  return true;
end $$;

-- Return the unended job of the flow with this key. If there is none, return the passed id, and let no other
-- transaction create a job with the key until this one ends.
create or replace function {schema}.flow_hold_key(_flow text, _key text, _id text) returns text
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
begin
  perform pg_advisory_xact_lock(hashtextextended({channel} || _flow || ':' || _key, 3));
  return coalesce((
    select f.id from {schema}.flow_lookups f
      where f.flow = _flow and f.attribute = '' and f.value = _key
        and exists (select from {schema}.live j where j.key = 'flow:' || _flow || ':' || f.id and j.state <> 'failed')
      limit 1), _id);
end $$;

-- Store long attributes of jobs. A deleted job keeps none. A repeat does nothing, as the caller has chosen the ids.
create or replace function {schema}.flow_keep(_ids text[], _jobs text[], _contents text[]) returns void
language sql {definer} as $$
  insert into {schema}.flow_lists (id, job, content)
    select u.id, f.id, u.content from unnest(_ids, _jobs, _contents) as u(id, job, content)
      join {schema}.flow_jobs f on f.id = u.job for key share of f
    on conflict do nothing
$$;

create or replace function {schema}.flow_kept(_id text) returns setof text
language sql stable {definer} as $$
  select l.content from {schema}.flow_lists l where l.id = _id
$$;

create or replace function {schema}.flow_ids(_flow text, _attribute text, _value text) returns setof text
language sql stable {definer} as $$
  select f.id from {schema}.flow_lookups f
    where f.flow = _flow and f.attribute = _attribute and f.value = _value order by f.id collate "C"
$$;

create or replace function {schema}.flow_exists(_ids text[]) returns setof text
language sql stable {definer} {index_plans} as $$
  select f.id from {schema}.flow_jobs f where f.id = any(_ids)
$$;

-- Return the newest step of each key.
create or replace function {schema}.flow_latest(_keys text[]) returns setof {schema}.everything
language sql stable {definer} {index_plans} as $$
  select s.* from (select distinct u.key from unnest(_keys) as u(key)) k cross join lateral (
    select e.* from {schema}.everything e where e.key = k.key and e.key like 'flow:%'
      order by e.key, e.id desc limit 1) s
$$;

-- Delete the job. Its waiting steps are deleted, and a running step loses its key.
create or replace function {schema}.flow_delete(_flow text, _id text, _keys text[]) returns boolean
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _found boolean;
  _key text;
begin
  delete from {schema}.flow_jobs f where f.id = _id and f.flow = _flow;
  _found := found;
  for _key in select distinct u.key from unnest(_keys) as u(key) order by u.key loop
    perform {schema}.drop_key(_key);
    delete from {schema}.history h where h.key = _key and h.key like 'flow:%';
  end loop;
  return _found;
end $$;

-- Make a parent due that waits for children, if none of them is unended.
create or replace function {schema}.flow_wake(_key text, _now timestamptz default null) returns text
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _waits_for json;
  _state text;
begin
  select j.payload->'waits_for' into _waits_for from {schema}.live j where j.key = _key;
  if json_typeof(_waits_for) is distinct from 'array' then return 'gone'; end if;
  -- Each name is the beginning of the ids of many children; hexadecimal digits follow. Check the last child first:
  -- children end in their order, and ended ones are in the index until it is vacuumed.
  if exists (
    select from json_array_elements_text(_waits_for) as c(name) cross join lateral (
      select from {schema}.live j
        where j.key >= 'flow:' || c.name and j.key <= 'flow:' || c.name || 'ffffff' and j.state <> 'failed'
        order by j.key desc limit 1) o)
  then
    return 'open';
  end if;
  update {schema}.live j set run_at = least(j.run_at, _at), absorbed = false
    where j.key = _key and j.state in ('queued', 'errored') returning j.state into _state;
  if found then
    perform {schema}.wake();
    return 'woken';
  end if;
  select j.state into _state from {schema}.live j where j.key = _key;
  return case when _state = 'processing' then 'running' else 'gone' end;
end $$;

-- Return 0 if the holder may go on, otherwise the seconds until it may ask again (flow_tables.py: spend). `waiting`
-- holds the next ticket for a later window. Each window has as many tickets as the reservoir, numbered from the epoch.
create or replace function {schema}.flow_spend(
  _limiter text, _part text, _holder text, _reservoir bigint, _interval double precision,
  _now timestamptz default null
) returns double precision
language plpgsql {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
  _epoch double precision := extract(epoch from _at);
  _limit {schema}.flow_limits;
  _came_back boolean;
  _later bigint;
  _ready double precision;
begin
  -- Write this row first, so that the next caller waits for it.
  insert into {schema}.flow_limits as l (limiter, part, slot, calls, waiting, used_at)
    values (_limiter, _part, floor(_epoch / _interval)::bigint, 0, 0, _at)
    on conflict (limiter, part) do update
      set calls = case when l.slot >= excluded.slot then l.calls else 0 end,
          slot = greatest(l.slot, excluded.slot), used_at = _at
    returning l.* into _limit;
  with gone as (
    delete from {schema}.flow_waits w where w.limiter = _limiter and w.part = _part
      and (w.holder = _holder or w.ready_at < _at - (_interval + 60) * interval '1 second')
    returning w.holder)
  select coalesce(bool_or(g.holder = _holder), false) into _came_back from gone g;
  _later := (_limit.slot + 1) * _reservoir;
  if _limit.calls < _reservoir and (_came_back or _limit.waiting <= _later) then
    update {schema}.flow_limits l set calls = _limit.calls + 1 where l.limiter = _limiter and l.part = _part;
    return 0;
  end if;
  _later := greatest(_limit.waiting, _later);
  _ready := _later / _reservoir * _interval;
  insert into {schema}.flow_waits (limiter, part, holder, ready_at)
    values (_limiter, _part, _holder, to_timestamp(_ready));
  update {schema}.flow_limits l set waiting = _later + 1 where l.limiter = _limiter and l.part = _part;
  return greatest(_ready - _epoch, 0.001);
end $$;

-- Delete jobs without a live step or a step in the history. Each job is checked once per retention period, so jobs that
-- stay for long (failed ones) do not delay the others.
create or replace function {schema}.prune_flows(_before timestamptz, _at timestamptz, _limit int) returns void
language plpgsql as $$
declare
  _page text[];
begin
  _page := array(select f.id from {schema}.flow_jobs f where f.looked_at < _before
                 order by f.looked_at limit _limit for update skip locked);
  delete from {schema}.flow_jobs f where f.id = any(_page)
    and not exists (select from {schema}.live l where l.key = 'flow:' || f.flow || ':' || f.id)
    and not exists (select from {schema}.history h
                    where h.key = 'flow:' || f.flow || ':' || f.id and h.key like 'flow:%');
  update {schema}.flow_jobs f set looked_at = _at where f.id = any(_page);
  delete from {schema}.flow_waits w where w.ready_at < _at - interval '1 day';
  delete from {schema}.flow_limits l where l.used_at < _at - interval '1 day';
end $$;
