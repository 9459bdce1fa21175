-- Maintenance, which limits the size of the schema. It runs as the owner of the schema, because the role of a worker
-- must not create or drop tables. It is idempotent, and cheap if there is nothing to do. It waits for no lock longer
-- than the timeout: the next call does what could not be done.

-- Create coming days of the history. A day whose rows are already in the default partition stays there.
create or replace function {schema}.make_days(_at timestamptz, _ahead int) returns void
language plpgsql as $$
declare
  _day date;
  _name text;
begin
  for _step in 0.._ahead loop
    _day := (_at at time zone 'UTC')::date + _step;
    _name := 'history_' || to_char(_day, 'YYYYMMDD');
    continue when exists (
      select from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = {schema_text} and c.relname = _name);
    begin
      execute format('create table %I.%I partition of %I.history for values from (%L) to (%L)',
        {schema_text}, _name, {schema_text}, _day || ' 00:00+00', (_day + 1) || ' 00:00+00');
    exception when check_violation or lock_not_available or duplicate_table then
      null;
    end;
  end loop;
end $$;

-- Drop days that are older than the retention. Of the day at the limit, delete old rows within a window of pages. The
-- window moves every ten minutes and returns to the start, so even a very large day costs little per call.
create or replace function {schema}.prune_days(_before timestamptz, _at timestamptz) returns void
language plpgsql as $$
declare
  _window constant bigint := 1024;
  _part record;
  _ends timestamptz;
  _first bigint;
begin
  for _part in
    select c.oid, c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = {history_text}::regclass and c.relname ~ '^history_[0-9]{8}$' order by c.relname
  loop
    _ends := ((to_date(right(_part.relname, 8), 'YYYYMMDD') + 1)::text || ' 00:00+00')::timestamptz;
    exit when _ends - interval '1 day' > _before;
    begin
      if _ends <= _before then
        execute format('drop table %I.%I', {schema_text}, _part.relname);
      else
        _first := floor(extract(epoch from _at) / 600)::bigint
          % (1 + pg_relation_size(_part.oid) / (_window * current_setting('block_size')::bigint)) * _window;
        execute format(
          'delete from %1$I.%2$I where ctid = any(array(select ctid from %1$I.%2$I
             where ctid >= ''(%3$s,0)''::tid and ctid < ''(%4$s,0)''::tid and finished_at < $1 for update skip locked))',
          {schema_text}, _part.relname, _first, _first + _window) using _before;
      end if;
    exception when lock_not_available then
      null;
    end;
  end loop;
end $$;

-- Leave hints for serial keys whose running job was deleted or changed by hand.
create or replace function {schema}.restore_hints(_at timestamptz) returns void
language plpgsql as $$
begin
  perform {schema}.free_if_unlocked(array_agg(q.name), _at) from {schema}.limit_keys q
    where q.absorbed and q.hint_run_at is null and {schema}.key_opens_at(q.name, _at) is distinct from 'infinity'
    having count(*) > 0;
  perform {schema}.show_hidden_keys(_at);
end $$;

-- Delete rows of serial keys that no job needs. This is a separate statement under the lock of the row, so no claim is
-- choosing a job by it. A later scout creates the row again.
create or replace function {schema}.prune_serials(_limit int, _at timestamptz) returns void
language plpgsql as $$
declare
  _name text;
begin
  for _name in
    select q.name from {schema}.limit_keys q
    where not {schema}.is_held(q.name) and not coalesce(greatest(q.next_start, q.held_until) > _at, false) and not exists (
      select from {schema}.live j where j.serial = q.name and j.state in ('queued', 'errored') and j.serial is not null
        and j.resets < 2)
    limit _limit for update skip locked
  loop
    delete from {schema}.limit_keys q where q.name = _name and not exists (
      select from {schema}.live j where j.serial = q.name and j.state in ('queued', 'errored') and j.serial is not null
        and j.resets < 2);
  end loop;
end $$;

-- Run all maintenance tasks. `_retention`: seconds for which the history is kept. `_failed`: seconds for which failed
-- jobs are kept; NULL: until they are handled. Each task runs by itself, so that one that a user's trigger or
-- publication forbids does not prevent the others. Return NULL, or what could not be done and the reason.
create or replace function {schema}.maintain(
  _retention double precision, _now timestamptz default null, _failed double precision default null
) returns text
language plpgsql {definer} {index_plans} set lock_timeout = '200ms' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _before timestamptz := _at - coalesce(_retention, 0) * interval '1 second';
  _duty text;
  _trouble text;
begin
  -- One call at a time is enough.
  if not pg_try_advisory_xact_lock(hashtextextended({channel}, 2)) then return null; end if;
  foreach _duty in array array['days ahead', 'days behind', 'the history without a day', 'hints', 'serials', 'ticks', 'flows',
                               'failed jobs', 'attempts', 'expired jobs', 'periods', 'workers', 'tokens', 'steps', 'times', 'throughput'] loop
    begin
      case _duty
        when 'days ahead' then perform {schema}.make_days(_at, 3);
        when 'days behind' then perform {schema}.prune_days(_before, _at);
        when 'the history without a day' then
          delete from {schema}.history_default h where h.ctid = any(array(
            select d.ctid from {schema}.history_default d where d.finished_at < _before
            order by d.finished_at limit 50000 for update skip locked));
        when 'hints' then perform {schema}.restore_hints(_at);
        when 'serials' then perform {schema}.prune_serials(1000, _at);
        when 'ticks' then perform {schema}.prune_ticks(_at);
        when 'flows' then perform {schema}.prune_flows(_before, _at, 20000);
        when 'failed jobs' then
          if _failed is not null then perform {schema}.purge_failed(_failed, 20000, _now); end if;
        when 'expired jobs' then perform {schema}.expire(_at);
        when 'steps' then perform {schema}.prune_steps(5000, _at);
        when 'periods' then
          delete from {schema}.uniques u where u.ctid = any(array(
            select o.ctid from {schema}.uniques o where o.until <= _at order by o.until limit 20000
            for update skip locked));
        when 'attempts' then perform {schema}.prune_tries();
        when 'workers' then
          delete from {schema}.workers w where w.seen_at < _at - interval '1 day';
          delete from {schema}.app_versions v where v.seen_at < _at - interval '90 days';
        when 'times' then  -- autovacuum does this too, but seldom
          perform brin_summarize_new_values(i.inhrelid) from pg_inherits i
            where i.inhparent = to_regclass({schema_name} || '.history_ended');
        when 'throughput' then perform {schema}.fold_throughput(_now);  -- last, because workers wait for its lock
        when 'tokens' then delete from {schema}.dead_tokens d where d.at < _at - interval '1 hour';
      end case;
    exception
      when lock_not_available then
        null;  -- the next call does it
      when others then
        _trouble := concat_ws('; ', _trouble, _duty || ': ' || sqlerrm);
    end;
  end loop;
  return _trouble;
end $$;
