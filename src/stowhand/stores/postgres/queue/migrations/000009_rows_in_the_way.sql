-- What makes a claim's cost independent of rows that it may not take (functions/claim.sql, functions/queues.sql).

-- A place in the order in which jobs are claimed.
create type {schema}.place as (priority int, run_at timestamptz, id bigint);

-- The jobs of one task, for workers that lack others. Its predicate says the same as live_ready's in other words, so that
-- statements written for this one cannot be planned over that one, whatever the statistics say about tasks.
create index live_by_task on {schema}.live (task, priority, run_at, id)
  where state <> 'processing' and state <> 'failed' and queue is null and resets < 2;

-- The task comes before the priority: a step over a queue's jobs of another task, however many there are.
drop index {schema}.live_in_queue;
create index live_in_queue on {schema}.live (queue, task, priority, run_at, id)
  where state in ('queued', 'errored') and queue is not null and resets < 2;
