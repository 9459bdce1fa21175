-- breaking
-- Our numbers stand in a table of their own (statements.sql: create_applied), because graphile-worker of a schema with
-- its name takes `migrations` for its own; what it finds there is made by functions/finish.sql.

-- In the order in which a settlement locks them: else it, and this, would each wait for what the other has.
lock table {schema}.live, {schema}.history in access exclusive mode;

-- What the installation fills into the functions' texts, so that no call looks here. One row.
create table {schema}.settings (
  only_row boolean primary key default true,
  max_attempts int not null default 25,
  constraint one_row check (only_row),
  constraint max_attempts_at_least_1 check (max_attempts >= 1)
);
insert into {schema}.settings default values;

-- A publication FOR ALL TABLES forbids updates and deletions of rows without an identity. The key takes the place of the
-- index on ids, so a settlement pays for no second one. A large day's key is made before this migration, while others
-- work (statements.sql: prepare_key), and is only named here; the small ones are made here, under the lock.
do $$
declare
  _part record;
begin
  for _part in
    select c.relname as day, k.relname as key
    from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
      join pg_catalog.pg_index x on x.indrelid = c.oid and x.indisunique and x.indisvalid
      join pg_catalog.pg_class k on k.oid = x.indexrelid and k.relname = c.relname || '_pkey'
    where i.inhparent = {history_text}::regclass and not x.indisprimary
  loop
    execute format('alter table %I.%I add constraint %I primary key using index %I',
      {schema_text}, _part.day, _part.key, _part.key);
  end loop;
end $$;
alter table {schema}.history add constraint history_pkey primary key (id, finished_at);
drop index {schema}.history_id;

-- It gives what it could not do now.
drop function if exists {schema}.maintain(double precision, timestamptz, double precision);
