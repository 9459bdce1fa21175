-- A worker reports threads that outlive their attempts, and that its event loop is blocked.
alter table {schema}.workers
  add column abandoned_threads int not null default 0,
  add column blocked boolean not null default false;

-- It takes two arguments more.
drop function if exists {schema}.worker_seen(
  text, text, bigint, text, text[], int, boolean, timestamptz, text[], text);

-- `jobs list --error` reads these instead of every job. Only jobs with an error pay for them.
create index live_errors on {schema}.live (id) where coalesce(last_error, earlier_error) is not null;
create index history_errors on {schema}.history (id) where last_error is not null;
