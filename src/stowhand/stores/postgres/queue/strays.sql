-- This runs after the functions were created. A function with one of our names that is none of ours has other
-- arguments. A function of another version would be called by mistake, or make calls ambiguous, and so would one of
-- another program.
do $$
declare
  _stray regprocedure;
begin
  for _stray in
    with ours (name, digest) as (values {functions})
    select p.oid from pg_catalog.pg_proc p
    where p.pronamespace = pg_catalog.to_regnamespace({schema_name})
      and p.proname in (select o.name from ours o)
      and (p.proname, pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(p.prosrc, 'UTF8')), 'hex'))
        not in (select o.name, o.digest from ours o)
  loop
    execute pg_catalog.format('drop function %s', _stray);
  end loop;
end $$;
