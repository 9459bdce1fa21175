-- What attempts leave that did not complete. Beside `live`, and only inserted into: no claim, beat or completion touches it.
-- (As a column of `live`, 0.9 KiB of entries made the log of a claim and of a beat 1285 bytes instead of 350.)
create table {schema}.tries (
  job_id bigint not null,
  place bigint not null,
  round int not null,
  number int not null,
  worker text,
  started_at timestamptz,
  ended_at timestamptz not null,
  outcome text not null,
  error_class text,
  error text,
  constraint tries_pkey primary key (job_id, place)
);

-- Who held it last. `round`: of the entries that its attempts will leave; NULL: the first. Both are behind what a claim and a
-- beat change, so they are in the log of neither.
alter table {schema}.live add column last_worker text, add column round int;

-- `outcome`: the attempt leaves an entry, with it; NULL: it leaves none.
alter type {schema}.verdict add attribute outcome text, add attribute error_class text;

create or replace view {schema}.jobs as
select
  id, queue as queue_name, task as task_identifier, payload, priority, run_at,
  case when loses_retries is null then attempts else max_attempts end as attempts,
  max_attempts, last_error, created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags,
  state, resets, max_resets, started_at, finished_at, lease_until, cancel_requested,
  coalesce(worker, last_worker) as last_worker
from {schema}.live;

create or replace view {schema}.everything as
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, null::json as result,
  coalesce(worker, last_worker) as last_worker
from {schema}.live
union all
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null, cancel_requested, result, worker
from {schema}.history;
