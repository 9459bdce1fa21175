-- The job that is enqueued when another has failed for good (functions/on_failure.sql); NULL: none. The history has it for jobs
-- that are tried again after they were canceled.
alter table {schema}.live add column on_failure json;
alter table {schema}.history add column on_failure json;
