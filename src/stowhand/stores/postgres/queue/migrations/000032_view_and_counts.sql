-- What is shown is what is stored: a job that was replaced by its key uses up its attempts when it fails, and not before.
create or replace view {schema}.jobs as
select
  id, queue as queue_name, task as task_identifier, payload, priority, run_at, attempts,
  max_attempts, coalesce(last_error, earlier_error) as last_error, created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags,
  state, resets, max_resets, started_at, finished_at, lease_until, cancel_requested,
  coalesce(worker, last_worker) as last_worker, progress, progress_text
from {schema}.live;

-- What is counted for people is counted by an index. Only jobs that fail or are canceled pay for these two.
create index live_troubled on {schema}.live (state, task) where state in ('errored', 'failed');
create index history_canceled on {schema}.history (id) where state = 'canceled';
