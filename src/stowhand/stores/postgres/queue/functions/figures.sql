-- What can be said of the jobs without counting all of them: exact where that is cheap, an estimate from a sample of
-- pages where it is not. Independent of ANALYZE: right after a burst the planner's own figures know nothing.

-- The share of a table, in percent, that so many pages are; 100: all of it.
create or replace function {schema}.share_of(_size numeric, _pages int) returns double precision
language sql as $$
  select least(100, 100.0 * _pages * current_setting('block_size')::bigint / greatest(_size, 1))::double precision
$$;

-- What chooses the pages of a sample: the same for a minute. Pages at random would be read from outside the buffers each time,
-- which is most of what a sample costs; and numbers that nothing has changed would change at every look.
create or replace function {schema}.sample_of() returns double precision
language sql stable as $$
  select floor(extract(epoch from now()) / 60)::double precision
$$;

-- Live jobs. `what`: 'task', 'queue' (of the jobs that have one) or 'worker' (what runs there); `name` NULL: the others,
-- beyond the largest `_names`. Up to 10,000 running and 10,000 failed jobs are counted by their index, whatever the size
-- of the table; a task of which the sample brought nothing is looked for in the index by task.
create or replace function {schema}.standing(_names int, _pages int default 4000, _now timestamptz default null)
returns table (
  what text, name text, queued bigint, errored bigint, due bigint, processing bigint, failed bigint, exact boolean
)
language plpgsql {definer} set enable_seqscan = off as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _share double precision := {schema}.share_of(pg_relation_size({live_text}::regclass), _pages);
  _all boolean := _share = 100;
  _few_run boolean := not _all and (
    select count(*) from (select from {schema}.live l where l.state = 'processing' limit 10001) c) <= 10000;
  _few_failed boolean := not _all and (
    select count(*) from (select from {schema}.live l where l.state = 'failed' limit 10001) c) <= 10000;
begin
  return query
    with recursive sampled as materialized (
      select l.task, l.queue, l.worker, l.state, l.run_at, 100 / _share as weight, _all as exact
      from {schema}.live l tablesample system (_share) repeatable ({schema}.sample_of())
      where not (_few_run and l.state = 'processing') and not (_few_failed and l.state = 'failed')
    ), by_index as (
      select l.task, l.queue, l.worker, l.state, l.run_at, 1.0, true from {schema}.live l
      where _few_run and l.state = 'processing'
      union all
      select l.task, l.queue, l.worker, l.state, l.run_at, 1.0, true from {schema}.live l
      where _few_failed and l.state = 'failed'
    ), tasks as (
      (select l.task from {schema}.live l
       where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2 and not _all
       order by l.task limit 1)
      union all
      select (
        select l.task from {schema}.live l
        where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2 and l.task > t.task
        order by l.task limit 1)
      from tasks t where t.task is not null
    ), rare as (
      select r.task, r.queue, r.worker, r.state, r.run_at, 1.0, r.counted <= 1000
      from (select t.task from tasks t where t.task is not null limit 500) t cross join lateral (
        select l.task, l.queue, l.worker, l.state, l.run_at, count(*) over () as counted from (
          select * from {schema}.live l
          where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2 and l.task = t.task
          limit 1001) l) r
      where not exists (
        select from sampled s where s.task = t.task and s.state in ('queued', 'errored') and s.queue is null)
    ), every as (
      select * from sampled union all select * from by_index union all select * from rare
    ), grouped as (
      select case when grouping(e.task) = 0 then 'task' when grouping(e.queue) = 0 then 'queue' else 'worker' end as what,
        coalesce(e.task, e.queue, e.worker) as name,
        sum(e.weight) filter (where e.state = 'queued') as queued,
        sum(e.weight) filter (where e.state = 'errored') as errored,
        sum(e.weight) filter (where e.state in ('queued', 'errored') and e.run_at <= _at) as due,
        sum(e.weight) filter (where e.state = 'processing') as processing,
        sum(e.weight) filter (where e.state = 'failed') as failed,
        sum(e.weight) as every, bool_and(e.exact) as exact
      from every e group by grouping sets ((e.task), (e.queue), (e.worker))
    ), ranked as (
      select g.*, row_number() over (partition by g.what order by g.every desc, g.name) <= _names as shown
      from grouped g where g.name is not null and (g.what <> 'worker' or g.processing > 0)
    )
    select r.what, case when r.shown then r.name end, round(coalesce(sum(r.queued), 0))::bigint,
      round(coalesce(sum(r.errored), 0))::bigint, round(coalesce(sum(r.due), 0))::bigint,
      round(coalesce(sum(r.processing), 0))::bigint, round(coalesce(sum(r.failed), 0))::bigint, bool_and(r.exact)
    from ranked r group by r.what, r.shown, case when r.shown then r.name end;
end $$;

-- Live jobs by state, counted by their indexes up to `_most` and one; a state that has more is given as that many.
-- `queued` and `errored` are given where both together have no more.
create or replace function {schema}.count_states(_most int) returns table (state text, jobs bigint)
language plpgsql {definer} set enable_seqscan = off as $$
#variable_conflict use_column
declare
  _one text;
begin
  foreach _one in array array['processing', 'failed'] loop
    return query execute format(
      'select %L, count(*) from (select from %I.live l where l.state = %L limit %s) c',
      _one, {schema_text}, _one, _most + 1);
  end loop;
  return query
    with waiting as materialized (
      (select l.state from {schema}.live l
       where l.state <> 'processing' and l.state <> 'failed' and l.queue is null and l.resets < 2 limit _most + 1)
      union all
      (select l.state from {schema}.live l
       where l.state in ('queued', 'errored') and l.queue is not null and l.resets < 2 limit _most + 1)
      union all
      (select l.state from {schema}.live l where l.state in ('queued', 'errored') and l.resets >= 2 limit _most + 1)
    )
    select s.state, case when (select count(*) from waiting) > _most then _most + 1
      else (select count(*) from waiting w where w.state = s.state) end
    from (values ('queued'), ('errored')) as s(state);
end $$;

-- What is over, by task; `name` NULL: the others, beyond the largest `_names`. `minutes` NULL: all that the history keeps;
-- else what ended within the last so many, the failed too. That is counted by its time, and told from the sample where
-- more than `_most` ended in it.
create or replace function {schema}.ended(
  _minutes int[], _names int, _pages int default 2000, _most bigint default 300000, _now timestamptz default null
) returns table (minutes int, name text, completed bigint, canceled bigint, failed bigint, exact boolean)
language plpgsql {definer} set enable_seqscan = off as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _share double precision := {schema}.share_of((
    select sum(pg_relation_size(i.inhrelid)) from pg_inherits i where i.inhparent = {history_text}::regclass), _pages);
  _one int;
  _since timestamptz;
  _few boolean;
begin
  return query
    with grouped as (
      select h.task, count(*) filter (where h.state = 'completed') as completed,
        count(*) filter (where h.state = 'canceled') as canceled
      from {schema}.history h tablesample system (_share) repeatable ({schema}.sample_of()) group by h.task
    ), ranked as (
      select g.*, row_number() over (order by g.completed + g.canceled desc, g.task) <= _names as shown from grouped g
    )
    select null::int, case when r.shown then r.task end, round(sum(r.completed) * 100 / _share)::bigint,
      round(sum(r.canceled) * 100 / _share)::bigint, 0::bigint, _share = 100
    from ranked r group by r.shown, case when r.shown then r.task end;
  foreach _one in array _minutes loop
    _since := _at - _one * interval '1 minute';
    -- What ended just now is not in the index before it is summarized: if it is much, only the sample is quick.
    _few := _share = 100 or (
      select count(*) * 100 / _share from {schema}.history h tablesample system (_share) repeatable ({schema}.sample_of()) where h.finished_at > _since
    ) <= _most;
    return query
      with lately as (
        select h.task, h.state, 1.0::double precision as weight from {schema}.history h
        where _few and h.finished_at > _since
        union all
        select h.task, h.state, 100 / _share from {schema}.history h tablesample system (_share) repeatable ({schema}.sample_of())
        where not _few and h.finished_at > _since
        union all
        select l.task, l.state, 1.0 from {schema}.live l where l.state = 'failed' and l.finished_at > _since
      ), grouped as (
        select s.task, sum(s.weight) filter (where s.state = 'completed') as completed,
          sum(s.weight) filter (where s.state = 'canceled') as canceled,
          sum(s.weight) filter (where s.state = 'failed') as failed, sum(s.weight) as every
        from lately s group by s.task
      ), ranked as (
        select g.*, row_number() over (order by g.every desc, g.task) <= _names as shown from grouped g
      )
      select _one, case when r.shown then r.task end, round(coalesce(sum(r.completed), 0))::bigint,
        round(coalesce(sum(r.canceled), 0))::bigint, round(coalesce(sum(r.failed), 0))::bigint, _few
      from ranked r group by r.shown, case when r.shown then r.task end;
  end loop;
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
    and not exists (select from {schema}.pauses p where p.task = case when o.queue is null then '' else o.task end)
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
