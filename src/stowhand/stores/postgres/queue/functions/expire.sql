-- Jobs that are canceled where no worker has claimed them in time.

-- Enter these jobs, as they are now, among those that expire.
create or replace function {schema}.note_expiry(_ids bigint[]) returns void
language sql as $$
  insert into {schema}.expiring (expires_at, id)
  select j.expires_at, j.id from {schema}.live j where j.id = any(_ids) and j.expires_at is not null
  on conflict do nothing
$$;

-- Those of these jobs whose moment has come, and that nobody has locked.
create or replace function {schema}.cancel_expired(_ids bigint[], _at timestamptz) returns void
language plpgsql {index_plans} as $$
begin
  perform {schema}.forget_periods(array_agg(j.id)), {schema}.bury(array_agg(
      row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, {expired}, null, null, null,
          null)::{schema}.verdict), true, _at)
    from (select distinct u.id from unnest(_ids) as u(id) order by u.id) f cross join lateral (
      select l.* from {schema}.live l where l.id = f.id and l.state = 'queued' and l.expires_at <= _at offset 0
      for update skip locked) j
    having count(*) > 0;
end $$;

-- The job that holds the key, if its moment has come.
create or replace function {schema}.cancel_expired_holder(_key text, _at timestamptz) returns void
language plpgsql {index_plans} as $$
begin
  perform {schema}.cancel_expired(array_agg(l.id), _at) from {schema}.live l
    where l.key = _key and l.state = 'queued' and l.expires_at <= _at having count(*) > 0;
end $$;

-- Cancel those whose moment has come, at most a thousand. True: there may be more. What another transaction has locked is left
-- for the next call; what a worker holds was claimed in time. Where no history is kept, they are pruned like others.
create or replace function {schema}.expire(_at timestamptz) returns boolean
language plpgsql {index_plans} as $$
declare
  _due bigint[] := array(
    select e.id from {schema}.expiring e where e.expires_at <= _at order by e.expires_at, e.id limit 1000
    for update skip locked);
begin
  perform {schema}.cancel_expired(_due, _at);
  delete from {schema}.expiring e where e.id = any(_due) and e.expires_at <= _at and not exists (
    select from {schema}.live l where l.id = e.id and l.state = 'queued' and l.expires_at = e.expires_at);
  return cardinality(_due) = 1000;
end $$;
