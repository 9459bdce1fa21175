-- The live jobs and the history, which every read uses, with the same columns (stores/kernel). Tokens are not included.
create or replace view {schema}.live_jobs as select {live_job} from {schema}.live;

create or replace view {schema}.past_jobs as select {past_job} from {schema}.history;

-- Live jobs and the history, for people.
create or replace view {schema}.everything as
  select {live_row} from {schema}.live
  union all
  select {past_row} from {schema}.history;

-- Live jobs, for people. add_job returns a row of it, too. The first sixteen columns are those of graphile-worker.
create or replace view {schema}.jobs as
select
  id, serial as queue_name, task as task_identifier, payload, priority, run_at, attempts, max_attempts, last_error,
  created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags, lease_until, {shown}
from {schema}.live;
