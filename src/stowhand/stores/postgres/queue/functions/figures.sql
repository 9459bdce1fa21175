-- How many jobs there are, counted by indexes: exact up to a limit, and beyond it only that there are more.

-- Jobs by state; one of which there are more than `_most` is given as `_most` + 1. What is errored and what is canceled have
-- an index; what is queued or completed is all the rest, so those are counted up to a million, and passed over beyond that.
create or replace function {schema}.count_states(_most int) returns table (state text, jobs bigint)
language plpgsql {definer} set enable_seqscan = off as $$
#variable_conflict use_column
declare
  _far constant bigint := greatest(_most, 1000000) + 1;
  _errored bigint := (select count(*) from (
    select from {schema}.live l where l.state in ('errored', 'failed') and l.state = 'errored' limit _far) c);
  _canceled bigint := (select count(*) from (select from {schema}.history h where h.state = 'canceled' limit _far) c);
  _rest bigint;
begin
  return query values
    ('processing', (select count(*) from (select from {schema}.live l where l.state = 'processing' limit _most + 1) c)),
    ('failed', (select count(*) from (select from {schema}.live l where l.state = 'failed' limit _most + 1) c)),
    ('errored', least(_errored, _most + 1)),
    ('canceled', least(_canceled, _most + 1));
  if _errored < _far then
    _rest := _most + 1 + _errored;
    return query select 'queued', least(sum(w.jobs) - _errored, _most + 1)::bigint from (
      select count(*) as jobs from (
        select from {schema}.live l
        where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2 limit _rest) c
      union all
      select count(*) from (
        select from {schema}.live l
        where l.state in ('queued', 'errored') and l.queue is not null and l.resets < 2 limit _rest) c
      union all
      select count(*) from (
        select from {schema}.live l where l.state in ('queued', 'errored') and l.resets >= 2 limit _rest) c) w;
  else
    return query select 'queued', count(*) from (
      select from {schema}.live l where l.state = 'queued' limit _most + 1) c;
  end if;
  if _canceled < _far then
    _rest := _most + 1 + _canceled;
    return query select 'completed', count(*) - _canceled from (select from {schema}.history h limit _rest) c;
  else
    return query select 'completed', count(*) from (
      select from {schema}.history h where h.state = 'completed' limit _most + 1) c;
  end if;
end $$;

-- Live jobs by task, queue (of the jobs that have one) and worker (what runs there). `part`: waiting, of these due and
-- errored, processing, failed. `more`: there are more than so many.
--
-- Tasks are visited one by one, each up to `_most`. What waits in queues, of which there may be as many as jobs, is read up to
-- a million. What runs, what is suspect and, by queue, what has failed is read up to `_most` in all.
create or replace function {schema}.standing(_most int, _now timestamptz default null)
returns table (what text, name text, part text, jobs bigint, more boolean)
language plpgsql {definer} set enable_seqscan = off as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
begin
  return query
    with recursive levels as (
      (select l.task, l.priority from {schema}.live l
       where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2
       order by l.task, l.priority, l.run_at, l.id limit 1)
      union all
      select n.task, n.priority from levels v cross join lateral (
        select l.task, l.priority from {schema}.live l
        where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2
          and (l.task, l.priority) > (v.task, v.priority)
        order by l.task, l.priority, l.run_at, l.id limit 1) n
    ), counted as (
      select v.task, c.part, sum(c.jobs) as jobs from levels v cross join lateral (
        select 'waiting' as part, count(*) as jobs from (
          select from {schema}.live l
          where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2
            and l.task = v.task and l.priority = v.priority limit _most + 1) w
        union all
        select 'due', count(*) from (
          select from {schema}.live l
          where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2
            and l.task = v.task and l.priority = v.priority and l.run_at <= _at limit _most + 1) d) c
      group by v.task, c.part
    )
    select 'task', c.task, c.part, least(c.jobs, _most)::bigint, c.jobs > _most from counted c;
  return query
    with waiting as materialized (
      (select l.task, l.queue, l.run_at from {schema}.live l
       where l.state in ('queued', 'errored') and l.queue is not null and l.resets < 2 limit 1000001)
      union all
      (select l.task, l.queue, l.run_at from {schema}.live l
       where l.state in ('queued', 'errored') and l.resets >= 2 limit _most + 1)
    ), grouped as (
      select w.queue, w.task, grouping(w.queue) = 0 as is_queue, count(*) as waiting,
        count(*) filter (where w.run_at <= _at) as due
      from waiting w group by grouping sets ((w.queue), (w.task))
    )
    select case when g.is_queue then 'queue' else 'task' end, coalesce(g.queue, g.task), p.part, p.jobs,
      (select count(*) > 1000000 from waiting)
    from grouped g cross join lateral (values ('waiting', g.waiting), ('due', g.due)) as p(part, jobs)
    where coalesce(g.queue, g.task) is not null;
  return query
    with recursive groups as (
      (select l.state, l.task from {schema}.live l where l.state in ('errored', 'failed')
       order by l.state, l.task limit 1)
      union all
      select n.state, n.task from groups g cross join lateral (
        select l.state, l.task from {schema}.live l
        where l.state in ('errored', 'failed') and (l.state, l.task) > (g.state, g.task)
        order by l.state, l.task limit 1) n
    )
    select 'task', g.task, g.state, least(c.jobs, _most), c.jobs > _most from groups g cross join lateral (
      select count(*) as jobs from (
        select from {schema}.live l
        where l.state in ('errored', 'failed') and l.state = g.state and l.task = g.task limit _most + 1) f) c;
  return query
    with failed as materialized (
      select l.queue from {schema}.live l where l.state = 'failed'
      order by l.finished_at desc, l.id desc limit _most + 1
    )
    select 'queue', f.queue, 'failed', count(*), (select count(*) > _most from failed) from failed f
    where f.queue is not null group by f.queue;
  return query
    with held as materialized (
      select l.task, l.queue, l.worker from {schema}.live l where l.state = 'processing' limit _most + 1
    )
    select case when grouping(h.task) = 0 then 'task' when grouping(h.queue) = 0 then 'queue' else 'worker' end,
      coalesce(h.task, h.queue, h.worker), 'processing', count(*), (select count(*) > _most from held)
    from held h group by grouping sets ((h.task), (h.queue), (h.worker))
    having coalesce(h.task, h.queue, h.worker) is not null;
end $$;

-- Jobs that were due before `_before` and are not paused, the oldest first. The first job of each task and priority (of
-- each queue, too) is the oldest of it, so that many a backlog costs a few steps; beyond two thousand of them it is what those
-- say.
create or replace function {schema}.due_heads(_before timestamptz)
returns table (id bigint, queue text, task text, run_at timestamptz)
language sql stable {index_plans} as $$
  with recursive free as (
    -- The state is said as in the index live_by_task.
    (select l.task, l.priority, l.run_at, l.id from {schema}.live l
     where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2
     order by l.task, l.priority, l.run_at, l.id limit 1)
    union all
    select n.task, n.priority, n.run_at, n.id from free f cross join lateral (
      select l.task, l.priority, l.run_at, l.id from {schema}.live l
      where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2
        and (l.task, l.priority) > (f.task, f.priority)
      order by l.task, l.priority, l.run_at, l.id limit 1) n
  ), serial as (
    (select l.queue, l.task, l.priority, l.run_at, l.id from {schema}.live l
     where l.state in ('queued', 'errored') and l.queue is not null and l.resets < 2
     order by l.queue, l.task, l.priority, l.run_at, l.id limit 1)
    union all
    select n.queue, n.task, n.priority, n.run_at, n.id from serial s cross join lateral (
      select l.queue, l.task, l.priority, l.run_at, l.id from {schema}.live l
      where l.state in ('queued', 'errored') and l.queue is not null and l.resets < 2
        and (l.queue, l.task, l.priority) > (s.queue, s.task, s.priority)
      order by l.queue, l.task, l.priority, l.run_at, l.id limit 1) n
  ), suspects as (
    select l.queue, l.task, l.run_at, l.id from {schema}.live l
    where l.state in ('queued', 'errored') and l.resets >= 2 order by l.priority, l.run_at, l.id limit 2000
  )
  select o.id, o.queue, o.task, o.run_at from (
    select f.run_at, null::text as queue, f.task, f.id from (select * from free limit 2000) f
    union all
    select s.run_at, s.queue, s.task, s.id from (select * from serial limit 2000) s
    union all
    select s.run_at, s.queue, s.task, s.id from suspects s
  ) o where o.run_at < _before
    and not exists (select from {schema}.queues q where q.name = o.queue and q.paused_at is not null)
    and not exists (select from {schema}.pauses p where p.task = o.task)
  order by o.run_at, o.id
$$;

-- Seconds for which the job that is due longest could have run: what is paused waits for something else.
create or replace function {schema}.oldest_due(_now timestamptz default null) returns double precision
language plpgsql {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
begin
  return coalesce((select extract(epoch from _at - h.run_at) from {schema}.due_heads(_at) h limit 1), 0);
end $$;

-- Jobs of these tasks (NULL: any) that have been due for more than so many seconds, though no queue and no pause holds them
-- up, the oldest first.
create or replace function {schema}.overdue(
  _tasks text[], _seconds double precision, _limit int, _now timestamptz default null
) returns setof bigint
language plpgsql {definer} {index_plans} as $$
begin
  return query
    select h.id from {schema}.due_heads({schema}.at(_now) - _seconds * interval '1 second') h
    where (_tasks is null or h.task = any(_tasks)) and not exists (
      select from {schema}.queues q where q.name = h.queue and {schema}.holds(q.holder_id, q.holder_token))
    order by h.run_at, h.id limit _limit;
end $$;
