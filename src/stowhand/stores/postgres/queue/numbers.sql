-- Which migrations have been applied. Not `migrations`: that name is graphile-worker's (functions/shared_name.sql).
create table {schema}.applied_migrations (
  id int primary key, ts timestamptz not null default now(), breaking boolean not null default false);
