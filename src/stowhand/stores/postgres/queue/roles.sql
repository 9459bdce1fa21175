-- `stowhand migrate --roles`: roles that cannot log in. Grant them to roles that can. They belong to the whole server,
-- so another database, or another session at the same time, may have created them.
do $$
declare
  _name text;
begin
  foreach _name in array array[{enqueuer_text}, {worker_text}, {reader_text}, {admin_text}] loop
    if not exists (select from pg_catalog.pg_roles r where r.rolname = _name) then
      begin
        execute pg_catalog.format('create role %I nologin', _name);
      exception when duplicate_object or unique_violation then
        null;
      end;
    end if;
  end loop;
end $$;
