-- Waiting for the end of jobs. Who waits marks their rows with a uuid of its process; what ends a marked row, or puts
-- another job into its place, notifies that process. Rows without a mark notify nobody.

-- A second process makes a mark common (the nil uuid): all that wait hear of it. The name is made here, of a uuid, so no
-- client chooses a channel.
create or replace function {schema}.waiter_channel(_waiter uuid) returns text
language sql immutable as $$
  select case _waiter when '00000000-0000-0000-0000-000000000000' then {ends} else {ends} || ':' || _waiter::text end
$$;

create or replace function {schema}.notify_waiters(_waiters uuid[]) returns void
language plpgsql as $$
begin
  perform pg_catalog.pg_notify({schema}.waiter_channel(w.waiter), '')
    from (select distinct u.waiter from unnest(_waiters) as u(waiter) where u.waiter is not null) w;
end $$;

-- Mark these jobs, unless `_waiter` is NULL; and how those stand that have ended, or have made place for another job. State
-- 'locked': another transaction holds the row, so it is not marked yet; 'gone': there is no trace of it; 'unknown': no job
-- ever had this id.
-- A statement of its own looks once the rows are marked: what ended before is seen, and what ends after it notifies.
create or replace function {schema}.await_jobs(_ids bigint[], _waiter uuid) returns table (
  id bigint, state text, attempts int, resets int, last_error text, result text, started_at timestamptz,
  finished_at timestamptz, revision int, replaced int
)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _nil constant uuid := '00000000-0000-0000-0000-000000000000';
  _mine bigint[];
begin
  if _waiter is not null then
    perform set_config('synchronous_commit', 'off', true);  -- a mark that a crash loses costs a poll
    _mine := array(
      select j.id from (select u.id from unnest(_ids) as u(id) order by u.id) f cross join lateral (
        select l.id from {schema}.live l where l.id = f.id and l.state <> 'failed' offset 0 for update skip locked) j);
    update {schema}.live j set waiter = case when j.waiter is null then _waiter else _nil end
      where j.id = any(_mine) and (j.waiter is null or j.waiter not in (_waiter, _nil));
  end if;
  return query
    select f.id,
      case when h.state is not null then h.state
           when l.state is null then
             case when f.id > coalesce(pg_sequence_last_value({sequence_text}), 0) then 'unknown' else 'gone' end
           when l.state <> 'failed' and _waiter is not null and not l.id = any(_mine) then 'locked'
           else l.state end,
      coalesce(l.attempts, h.attempts), coalesce(l.resets, h.resets),
      case when l.id is null then h.last_error else l.last_error end, h.result,
      case when l.id is null then h.started_at else l.started_at end,
      case when l.id is null then h.finished_at else l.finished_at end,
      coalesce(l.revision, h.revision), case when l.id is null then h.replaced else l.replaced end
    from unnest(_ids) as f(id)
      left join lateral (
        select j.id, j.state, j.attempts, j.resets, j.last_error, j.started_at, j.finished_at, j.revision,
          j.replaced
        from {schema}.live j where j.id = f.id offset 0) l on true
      left join lateral (
        select p.state, p.attempts, p.resets, p.last_error, p.result::text, p.started_at, p.finished_at, p.revision,
          p.replaced
        from {schema}.history p where p.id = f.id and l.id is null order by p.finished_at desc limit 1) h on true
    where l.id is null or l.state = 'failed' or l.replaced is not null
      or _waiter is not null and not l.id = any(_mine);
end $$;
