-- Failed jobs in the order in which they failed, and no two of them in one place: one index for lists, for counts and for the
-- purge, instead of one by id and one by time. Where the table is large it was built before, while others worked (schema.py).
create index if not exists live_failed_last on {schema}.live (finished_at, id) where state = 'failed';
drop index if exists {schema}.live_failed;
drop index if exists {schema}.live_failed_at;
alter index {schema}.live_failed_last rename to live_failed;

-- The version of the application, as a worker says it; NULL: it does not.
alter table {schema}.workers add column app_version text;
drop function if exists {schema}.worker_seen(text, text, bigint, text, text[], int, boolean, timestamptz, text[]);

-- When the first worker of a version came up, and when one was last seen: once more after it was gone for a while.
create table {schema}.app_versions (
  version text not null,
  since timestamptz not null,
  seen_at timestamptz not null,
  constraint app_versions_pkey primary key (version, since)
);
