-- The jobs that may still run, and the history: what every read asks, with the same columns (stores/kernel). Tokens are no columns.
create or replace view {schema}.live_jobs as
select id, task, payload::text as payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, worker,
  cancel_requested, null::text as result, coalesce(worker, last_worker) as last_worker, progress, progress_text
from {schema}.live;

create or replace view {schema}.past_jobs as
select id, task, payload::text as payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null::text as worker, cancel_requested,
  result::text as result, worker as last_worker, null::float8 as progress, null::text as progress_text
from {schema}.history;
