
-- Claim jobs for an idle worker. Without a job, return a row with id -1 that answers what the worker would ask next:
-- `run_at`, the time at which its next job is due, relative to `started_at`, which is now; and whether any suspect is
-- due (`resets`, 1 or 0).
create or replace function {schema}.poll(
  _worker text, _token uuid, _limit int, _lease double precision, _tasks text[], _forbidden text[],
  _now timestamptz default null, _queues text[] default null, _excluded text[] default null, _free int default null,
  _rooms jsonb default null
) returns table (
  {claimed_types}, epoch bigint
)
language plpgsql {definer} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := {schema}.at(_now);
  _due double precision;
begin
  return query select * from {schema}.claim(
    _worker, _token, _limit, _lease, _tasks, _forbidden, false, _now, _queues => _queues, _excluded => _excluded,
    _free => _free, _rooms => _rooms);
  if found then return; end if;
  _due := {schema}.next_due(_tasks, _now, _queues, _excluded);
  id := -1;
  started_at := _at;
  run_at := _at + least(_due, 86400) * interval '1 second';
  resets := exists (
    select from {schema}.live j where j.state in ('queued', 'errored') and j.resets >= 2 and j.run_at <= _at)::int;
  return next;
end $$;
