-- A worker reports threads that outlive their attempts, and that its event loop is blocked.
alter table {schema}.workers
  add column abandoned_threads int not null default 0,
  add column blocked boolean not null default false;

-- It takes two arguments more.
drop function if exists {schema}.worker_seen(
  text, text, bigint, text, text[], int, boolean, timestamptz, text[], text);
