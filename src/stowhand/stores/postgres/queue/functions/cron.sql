-- Recurring jobs. A tick of an item is a row of the ledger, which one scheduler enters once. The row in `crontab` is
-- locked first, so schedulers of one item run one after another. `job_id` is written later in the same transaction.

-- Register items. A known item keeps its times and gets the new spec; its row is returned as it was before.
create or replace function {schema}.cron_register(_identifiers text[], _specs text[], _now timestamptz default null)
returns setof {schema}.crontab
language plpgsql {definer} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _items {schema}.crontab[];
  _item {schema}.crontab;
  _one record;
begin
  for _one in
    select u.name, u.spec, u.place from unnest(_identifiers, _specs) with ordinality as u(name, spec, place)
    order by u.name collate "C", u.place
  loop
    insert into {schema}.crontab (identifier, known_since, spec) values (_one.name, _at, _one.spec)
      on conflict (identifier) do nothing returning * into _item;
    if not found then
      select c.* into _item from {schema}.crontab c where c.identifier = _one.name for update;
      update {schema}.crontab c set spec = _one.spec, spec_since = _at
        where c.identifier = _one.name and c.spec <> _one.spec;
    end if;
    _items[_one.place] := _item;
  end loop;
  foreach _item in array coalesce(_items, '{}') loop
    return next _item;
  end loop;
end $$;

-- Enter ticks, in the order of the arguments. `mine`: the tick is new, so the caller enqueues its job and stores the
-- id. Otherwise the row has the job of the other scheduler.
create or replace function {schema}.cron_enter(
  _identifiers text[], _ticks timestamptz[], _specs text[], _backfilled boolean[],
  _now timestamptz default null
) returns table (mine boolean, job_id bigint, spec text)
language plpgsql {definer} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _one record;
begin
  insert into {schema}.crontab as known (identifier, known_since, last_tick, spec)
    select u.name, _at, max(u.tick), (array_agg(u.spec order by u.place))[1]
    from unnest(_identifiers, _ticks, _specs) with ordinality as u(name, tick, spec, place)
    group by u.name order by u.name collate "C"
    on conflict (identifier) do update set last_tick = greatest(known.last_tick, excluded.last_tick);
  for _one in
    select u.* from unnest(_identifiers, _ticks, _specs, _backfilled) with ordinality
      as u(name, tick, spec, backfilled, place) order by u.place
  loop
    insert into {schema}.ticks (identifier, tick, job_id, backfilled, spec, scheduled_at)
      values (_one.name, _one.tick, 0, _one.backfilled, _one.spec, _at) on conflict do nothing;
    mine := found;
    select t.job_id, t.spec into job_id, spec from {schema}.ticks t
      where t.identifier = _one.name and t.tick = _one.tick;
    return next;
  end loop;
end $$;

create or replace function {schema}.cron_note(_identifiers text[], _ticks timestamptz[], _job_ids bigint[]) returns void
language sql {definer} as $$
  update {schema}.ticks t set job_id = n.job_id
    from unnest(_identifiers, _ticks, _job_ids) as n(name, tick, job_id)
    where t.identifier = n.name and t.tick = n.tick and t.job_id = 0
$$;

-- A recent report counts for all schedulers. A report in the future is from before the clock was set back. A row that
-- another transaction holds is reported next time: three reports fit into the time for which one is valid.
create or replace function {schema}.cron_report(
  _identifiers text[], _scheduler text, _interval interval, _now timestamptz default null
) returns void
language plpgsql {definer} as $$
declare
  _at timestamptz := {schema}.at(_now);
begin
  update {schema}.crontab c set scheduled_by = _scheduler, scheduled_at = _at
    where c.ctid = any(array(
      select k.ctid from {schema}.crontab k
      where k.identifier = any(_identifiers)
        and (k.scheduled_at is null or k.scheduled_at <= _at - _interval or k.scheduled_at > _at)
      for update skip locked));
end $$;

create or replace function {schema}.cron_forget(
  _identifier text, _scheduled_for interval, _now timestamptz default null
) returns boolean
language plpgsql {definer} as $$
begin
  delete from {schema}.crontab c
    where c.identifier = _identifier
      and (c.scheduled_at is null or c.scheduled_at <= {schema}.at(_now) - _scheduled_for);
  return found;
end $$;

create or replace function {schema}.cron_known() returns setof {schema}.crontab
language sql stable {definer} as $$
  select c.* from {schema}.crontab c order by c.identifier collate "C"
$$;

-- The ledger keeps LEDGER_DAYS (protocols/queue_store.py) and one day more, so that a pruned tick is always refused,
-- whenever the two read the clock.
create or replace function {schema}.prune_ticks(_at timestamptz) returns void
language sql as $$
  delete from {schema}.ticks t where t.ctid = any(array(
    select o.ctid from {schema}.ticks o where o.tick < _at - interval '401 days'
    order by o.tick limit 5000 for update skip locked))
$$;
