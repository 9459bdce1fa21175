-- After the functions were made anew: a function that has a name of ours and is none of them has other arguments. One of
-- another version would be called where the new one is meant, or make the call ambiguous; so would another program's.
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
