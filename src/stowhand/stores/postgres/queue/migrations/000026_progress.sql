-- How far a running job is, as its handler says: NULL where it says nothing. It is kept over retries, and cleared at the end.
alter table {schema}.live add column progress double precision, add column progress_text text;

create or replace view {schema}.jobs as
select
  id, queue as queue_name, task as task_identifier, payload, priority, run_at,
  case when loses_retries is null then attempts else max_attempts end as attempts,
  max_attempts, last_error, created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags,
  state, resets, max_resets, started_at, finished_at, lease_until, cancel_requested,
  coalesce(worker, last_worker) as last_worker, progress, progress_text
from {schema}.live;

create or replace view {schema}.everything as
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, null::json as result,
  coalesce(worker, last_worker) as last_worker, progress, progress_text
from {schema}.live
union all
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null, cancel_requested, result, worker,
  null, null
from {schema}.history;
