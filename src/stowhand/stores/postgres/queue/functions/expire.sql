-- Jobs that are canceled if no worker has claimed them in time.

-- Store the expiry of these jobs.
create or replace function {schema}.note_expiry(_ids bigint[]) returns void
language sql as $$
  insert into {schema}.expiring (expires_at, id)
  select j.expires_at, j.id from {schema}.live j where j.id = any(_ids) and j.expires_at is not null
  on conflict do nothing
$$;

-- Cancel those of these jobs that have expired and that no other transaction has locked.
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

-- Cancel the job that holds the key, if it has expired.
create or replace function {schema}.cancel_expired_holder(_key text, _at timestamptz) returns void
language plpgsql {index_plans} as $$
begin
  perform {schema}.cancel_expired(array_agg(l.id), _at) from {schema}.live l
    where l.key = _key and l.state = 'queued' and l.expires_at <= _at having count(*) > 0;
end $$;

-- Cancel expired jobs, at most a thousand. Return true if there may be more. A job that another transaction has locked
-- is left for the next call. A running job was claimed in time. If no history is kept, canceled jobs are pruned like
-- others.
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
