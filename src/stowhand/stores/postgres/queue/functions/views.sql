-- The jobs that may still run, and the history: what every read asks, with the same columns (stores/kernel). Tokens are no columns.
create or replace view {schema}.live_jobs as select {live_job} from {schema}.live;

create or replace view {schema}.past_jobs as select {past_job} from {schema}.history;

-- Both, for people.
create or replace view {schema}.everything as
  select {live_row} from {schema}.live
  union all
  select {past_row} from {schema}.history;

-- Live jobs, for people; also what add_job returns. The first sixteen columns are graphile-worker's.
create or replace view {schema}.jobs as
select
  id, serial as queue_name, task as task_identifier, payload, priority, run_at, attempts, max_attempts, last_error,
  created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags, lease_until, {shown}
from {schema}.live;
