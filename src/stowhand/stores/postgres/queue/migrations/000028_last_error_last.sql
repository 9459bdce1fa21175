-- `last_error` is behind what a claim changes: the log of an update leaves out what both rows begin and end with, and nothing
-- between. (Where it stood, a claim of a job with a traceback of 700 bytes logged 1024 bytes; now 376, as of a job that never failed.)
-- What is there stays in `earlier_error`, as a rewrite of the table would stop all work; whatever writes the row next moves it,
-- and every reader takes whichever there is.
alter table {schema}.live rename column last_error to earlier_error;
alter table {schema}.live add column last_error text;

-- Programs of before read `live` themselves: of what failed newest, as much as they look at. A trigger of the application's
-- that forbids it does not forbid the migration.
do $$
begin
  update {schema}.live j set last_error = j.earlier_error, earlier_error = null
    where j.id = any(array(select l.id from {schema}.live l where l.state = 'failed' order by l.id desc limit 10000))
      and j.earlier_error is not null;
exception when others then
  null;
end $$;

create or replace view {schema}.jobs as
select
  id, queue as queue_name, task as task_identifier, payload, priority, run_at,
  case when loses_retries is null then attempts else max_attempts end as attempts,
  max_attempts, coalesce(last_error, earlier_error) as last_error, created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags,
  state, resets, max_resets, started_at, finished_at, lease_until, cancel_requested,
  coalesce(worker, last_worker) as last_worker, progress, progress_text
from {schema}.live;

create or replace view {schema}.everything as
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  coalesce(last_error, earlier_error) as last_error, revision, created_at, updated_at, started_at, finished_at, worker,
  cancel_requested, null::json as result, coalesce(worker, last_worker) as last_worker, progress, progress_text
from {schema}.live
union all
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null, cancel_requested, result, worker,
  null, null
from {schema}.history;
