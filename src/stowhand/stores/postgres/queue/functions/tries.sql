-- Entries of attempts that did not complete, in the table `tries`. The last ten of a job are kept.

-- Return at most 1 KiB of an error text: its first line and its end (jobs/failed_attempts.py: last_frames).
create or replace function {schema}.last_frames(_error text) returns text
language sql immutable strict as $$
  select case
    when octet_length(_error) <= 1024 then _error
    else concat(left(split_part(_error, E'\n', 1), f.head), E'\n[...]\n', right(_error, f.tail)) end
  from (select case when octet_length(_error) = length(_error) then 160 else 40 end as head,
               case when octet_length(_error) = length(_error) then 800 else 200 end as tail) f
$$;

-- Return the outcome of an attempt whose settlement requests this state (jobs/failed_attempts.py: attempt_end); NULL:
-- the attempt has no entry.
create or replace function {schema}.end_of_try(_state text, _error_class text) returns text
language sql immutable as $$
  select case
    when _state = 'canceled' then 'canceled'
    when _state in ('errored', 'failed') then case _error_class when 'TimedOut' then 'timeout' else 'error' end end
$$;

-- Return the next round of a job that is retried by hand or because of its key; NULL, the first round, while it has no
-- entry.
create or replace function {schema}.next_round(_id bigint) returns int
language sql stable as $$
  select max(t.round) + 1 from {schema}.tries t where t.job_id = _id
$$;

-- Write the entries of verdicts with an outcome, before the verdicts are carried out. The other values are those of the
-- rows, which are locked, so no two transactions number the entries of one job at the same time.
create or replace function {schema}.keep_tries(_verdicts {schema}.verdict[], _at timestamptz) returns void
language plpgsql {index_plans} as $$
declare
  _crowded bigint[];
begin
  with written as (
    insert into {schema}.tries (job_id, place, round, number, worker, started_at, ended_at, outcome, error_class, error)
    select j.id, coalesce(t.place, 0) + 1, coalesce(j.round, 1), j.attempts, j.worker,
      case when j.worker is not null then j.started_at end, _at, v.outcome, left(v.error_class, 200),
      {schema}.last_frames(v.error)
    from unnest(_verdicts) as v
      cross join lateral (
        select l.id, l.round, l.attempts, l.worker, l.started_at from {schema}.live l where l.id = v.id offset 0) j
      cross join lateral (
        select max(o.place) as place from {schema}.tries o where o.job_id = v.id offset 0) t
    where v.outcome is not null
    returning job_id, place
  )
  select array_agg(w.job_id) into _crowded from written w where w.place > 10;
  if _crowded is not null then
    delete from {schema}.tries t where t.job_id = any(_crowded)
      and t.place <= (select max(m.place) - 10 from {schema}.tries m where m.job_id = t.job_id);
  end if;
end $$;

-- Write the entries of jobs that a call, not a worker, fails. Their rows are locked and not yet written.
create or replace function {schema}.keep_ends_by_hand(_ids bigint[], _why text, _at timestamptz) returns void
language plpgsql as $$
begin
  if cardinality(_ids) = 0 then return; end if;
  perform {schema}.keep_tries(
    array(select row(i.id, null, null, 'failed', null, null, null, null, null, _why, null, null, 'by hand', 'by hand')
                 ::{schema}.verdict from unnest(_ids) as i(id)), _at);
end $$;

-- Delete entries of jobs that are neither live nor in the history: completed without a history, or dropped with their
-- day. This reads windows of pages from a random one on, while there is time. So even a very large table costs little
-- per call, and every page has its turn.
create or replace function {schema}.prune_tries() returns void
language plpgsql as $$
declare
  _window constant bigint := 128;
  _until timestamptz := clock_timestamp() + interval '500 milliseconds';
  _windows bigint := 1 + pg_relation_size({tries_text}::regclass) / (_window * current_setting('block_size')::bigint);
  _first bigint := floor(random() * _windows);
begin
  for _step in 0.._windows - 1 loop
    delete from {schema}.tries t where t.ctid = any(array(
      select o.ctid from {schema}.tries o
      where o.ctid >= format('(%s,0)', (_first + _step) % _windows * _window)::tid
        and o.ctid < format('(%s,0)', ((_first + _step) % _windows + 1) * _window)::tid
        and not exists (select from {schema}.live l where l.id = o.job_id)
        and not exists (select from {schema}.history h where h.id = o.job_id)
      for update skip locked));
    exit when clock_timestamp() > _until;
  end loop;
end $$;
