-- Workers enroll the flags that they leave alone; null: a function says which, anew each time.
alter table {schema}.workers add column forbidden_flags text[] default array[]::text[];

-- It takes one argument more.
drop function if exists {schema}.worker_seen(text, text, bigint, text, text[], int, boolean, timestamptz);
