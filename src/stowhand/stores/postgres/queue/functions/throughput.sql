-- Throughput: numbers of ended attempts, by minute and task. Writers share a lock that the fold holds exclusively. So
-- no row is added up while it is written, and none is written to a minute that has been added up. Each writer has its
-- own rows, so writers do not lock rows of each other. (With common rows, 8 writers of 30 tasks deadlocked.)

-- Store absolute numbers, so that a repeat counts nothing twice. `_rows`: [{"minute": since 1970, "task": …, "tally":
-- {…}}, …]. Return the rows that were not written: their minute is closed (stores/periods.py) or in the future.
create or replace function {schema}.write_throughput(_writer text, _rows jsonb, _now timestamptz default null)
returns table (minute bigint, task text)
language plpgsql {definer} as $$
#variable_conflict use_column
declare
  _at timestamptz;
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_advisory_xact_lock_shared(hashtextextended({channel}, 3));
  _at := {schema}.at(_now);  -- after the lock, as an earlier fold has read an earlier time
  return query
    with given as (
      select g.minute, g.task, g.tally, to_timestamp(g.minute * 60) as begins
      from jsonb_to_recordset(_rows) as g(minute bigint, task text, tally jsonb)
    ), kept as (
      select g.* from given g
      where g.begins > _at - interval '11 minutes' and g.begins <= _at + interval '1 minute' and not exists (
        select from {schema}.throughput t
        where t.seconds = 60 and t.begins = g.begins and t.task = g.task and t.writer = '')
    ), written as (
      insert into {schema}.throughput (seconds, begins, task, writer, tally)
        select 60, k.begins, k.task, _writer, k.tally from kept k
        on conflict (seconds, begins, task, writer) do update set tally = excluded.tally
    )
    select g.minute, g.task from given g where not exists (
      select from kept k where k.minute = g.minute and k.task = g.task);
end $$;

-- Write one row for each task, of all rows in these periods: the 500 largest tasks, and one row for all others.
create or replace function {schema}.regroup_throughput(_begins timestamptz[], _seconds int) returns void
language sql as $$
  with gone as (
    delete from {schema}.throughput t using unnest(_begins) as s(begins)
      where t.seconds between 1 and _seconds and t.begins >= s.begins and t.begins < s.begins + _seconds * interval '1 second'
      returning s.begins, t.task, t.tally
  ), numbers as (
    select g.begins, g.task, e.key, sum(e.value::bigint) as number
    from gone g cross join lateral jsonb_each_text(g.tally) as e(key, value) group by g.begins, g.task, e.key
  ), ranked as (
    select n.begins, n.task, row_number() over (partition by n.begins order by n.task = '', coalesce(sum(n.number) filter (
      where n.key in ('ok', 'retry', 'failed', 'poison', 'snoozed', 'canceled')), 0) desc, n.task collate "C") as place
    from numbers n group by n.begins, n.task
  ), named as (
    select n.begins, case when r.place <= 500 then n.task else '' end as task, n.key, sum(n.number) as number
    from numbers n join ranked r on r.begins = n.begins and r.task = n.task group by 1, 2, 3
  )
  insert into {schema}.throughput (seconds, begins, task, writer, tally)
    select _seconds, n.begins, n.task, '', jsonb_object_agg(n.key, n.number) from named n group by n.begins, n.task
$$;

-- Write one row for all tasks of each of these regrouped periods, under `-_seconds`. Delete those of the minutes of an
-- hour.
create or replace function {schema}.total_throughput(_begins timestamptz[], _seconds int) returns void
language sql as $$
  with gone as (
    delete from {schema}.throughput t using unnest(_begins) as s(begins)
      where t.seconds < 0 and t.seconds > -_seconds
        and t.begins >= s.begins and t.begins < s.begins + _seconds * interval '1 second'
  ), numbers as (
    select t.begins, e.key, sum(e.value::bigint) as number
    from {schema}.throughput t cross join lateral jsonb_each_text(t.tally) as e(key, value)
    where t.seconds = _seconds and t.begins = any(_begins) and t.writer = '' group by t.begins, e.key
  )
  insert into {schema}.throughput (seconds, begins, task, writer, tally)
    select -_seconds, n.begins, '', '', jsonb_object_agg(n.key, n.number) from numbers n group by n.begins
    on conflict (seconds, begins, task, writer) do update set tally = excluded.tally
$$;

-- Add up closed minutes, and the minutes of two days ago into hours. Delete hours of 90 days ago.
create or replace function {schema}.fold_throughput(_now timestamptz) returns void
language plpgsql as $$
declare
  _at timestamptz;
  _begins timestamptz[];
begin
  perform pg_advisory_xact_lock(hashtextextended({channel}, 3));
  _at := {schema}.at(_now);
  _begins := array(
    select distinct t.begins from {schema}.throughput t
    where t.writer <> '' and t.begins <= _at - interval '11 minutes' order by t.begins limit 120);
  perform {schema}.regroup_throughput(_begins, 60);
  perform {schema}.total_throughput(_begins, 60);
  _begins := array(
    select distinct to_timestamp(floor(extract(epoch from t.begins) / 3600) * 3600) from {schema}.throughput t
    where t.seconds = 60 and t.begins < to_timestamp(floor(extract(epoch from _at - interval '2 days') / 3600) * 3600)
    order by 1 limit 24);
  perform {schema}.regroup_throughput(_begins, 3600);
  perform {schema}.total_throughput(_begins, 3600);
  delete from {schema}.throughput t where t.seconds in (3600, -3600) and t.begins < _at - interval '90 days';
end $$;
