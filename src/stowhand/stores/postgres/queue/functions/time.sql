-- The current time. `_now` is the frozen time of a test, which only a login that may act as the owner of the schema can
-- set.

create or replace function {schema}.pinned(_now timestamptz) returns timestamptz
language plpgsql stable as $$
begin
  if _now is not null and not pg_has_role(session_user, (
      select n.nspowner from pg_namespace n where n.nspname = {schema_text}), 'member') then
    raise exception 'Only the owner of schema % may set the time.', {schema_text} using errcode = '42501';
  end if;
  return _now;
end $$;

create or replace function {schema}.at(_now timestamptz) returns timestamptz
language sql as $$
  select case when _now is null then clock_timestamp() else {schema}.pinned(_now) end
$$;
