-- When a job is canceled that no worker has claimed by then; NULL: never, or an attempt has begun. The due ones are found in a
-- table of their own, not by an index of `live`, so that jobs which do not expire pay nothing. A row of it counts while the job
-- says the same moment; else it is a leftover, and goes when its moment has come (functions/expire.sql).
alter table {schema}.live add column expires_at timestamptz;
create table {schema}.expiring (
  expires_at timestamptz not null,
  id bigint not null,
  constraint expiring_pkey primary key (expires_at, id)
);
