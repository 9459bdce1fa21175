-- The fourteen rules of `live` as one CHECK. PostgreSQL prepares every CHECK of a table anew for each statement; for a statement
-- of one row that was two thirds of an insert.
--
-- The function stands here and in no other file, and is never replaced: nothing would look for what a new text of it forbids in
-- the rows that are there, and the constraint would still say `validated`. Other rules are another function and another
-- constraint. It takes columns and not the row: a composite of each of a thousand rows costs more than the rules. Every name in
-- it is qualified, and operators are called by their functions (texteq is `=`): a search_path of its own would cost more than
-- the rules, too.
create function {schema}.is_lawful(
  _task text, _payload json, _queue text, _state text, _attempts int, _max_attempts int, _resets int, _max_resets int,
  _key text, _flags text[], _token uuid, _settled_token uuid, _worker text, _lease_until timestamptz,
  _finished_at timestamptz, _cancel_requested boolean, _loses_retries text, _scout boolean
) returns boolean
language plpgsql immutable as $$
declare
  _broken text;
begin
  -- One look at the commonest rows, stricter than the rules. A payload of less than 2000 bytes as it is stored is within the
  -- limit, however it is compressed: no method makes 500 bytes one.
  if (pg_catalog.texteq(_state, 'queued') and _token is null and _lease_until is null and _worker is null
        and not _cancel_requested and (not _scout or _queue is not null)
      or pg_catalog.texteq(_state, 'processing') and _token is not null and _lease_until is not null
        and _worker is not null and _settled_token is null and not _scout)
    and _finished_at is null and _max_resets is null and _flags is null and _loses_retries is null
    and pg_catalog.int4ge(_attempts, 0) and pg_catalog.int4le(_attempts, _max_attempts)
    and pg_catalog.int4ge(_max_attempts, 1) and pg_catalog.int4ge(_resets, 0)
    and pg_catalog.textne(_task, '') and pg_catalog.int4le(pg_catalog.length(_task), 128)
    and (_queue is null or pg_catalog.int4le(pg_catalog.length(_queue), 128))
    and (_key is null or pg_catalog.textne(_key, '') and pg_catalog.int4le(pg_catalog.length(_key), 512))
    and pg_catalog.int4lt(pg_catalog.pg_column_size(_payload), 2000)
  then
    return true;
  end if;
  _broken := case
    when _cancel_requested and not (pg_catalog.texteq(_state, 'processing') or pg_catalog.texteq(_state, 'failed'))
      then 'asked_while_processing'
    when not (pg_catalog.int4ge(_attempts, 0) and pg_catalog.int4ge(_max_attempts, 1)
              and pg_catalog.int4le(_attempts, _max_attempts))
      then 'attempts_in_range'
    when pg_catalog.boolne(pg_catalog.texteq(_state, 'failed'), _finished_at is not null) then 'finished_iff_failed'
    when pg_catalog.int4gt(pg_catalog.cardinality(_flags), 64) then 'flags_count'
    when pg_catalog.texteq(_key, '') or pg_catalog.int4gt(pg_catalog.length(_key), 512) then 'key_length'
    when _loses_retries is not null
        and not ((pg_catalog.texteq(_loses_retries, 'replaced') or pg_catalog.texteq(_loses_retries, 'removed'))
                 and _key is null)
      then 'keyless_if_replaced'
    when not (pg_catalog.texteq(_state, 'queued') or pg_catalog.texteq(_state, 'processing')
              or pg_catalog.texteq(_state, 'errored') or pg_catalog.texteq(_state, 'failed'))
      then 'known_state'
    when pg_catalog.boolne(pg_catalog.texteq(_state, 'processing'), _token is not null)
        or pg_catalog.boolne(_token is null, _lease_until is null) or pg_catalog.boolne(_token is null, _worker is null)
      then 'leased_iff_processing'
    when pg_catalog.int4gt(pg_catalog.octet_length(_payload::pg_catalog.text), 1048576) then 'payload_size'
    when pg_catalog.int4gt(pg_catalog.length(_queue), 128) then 'queue_length'
    when not (pg_catalog.int4ge(_resets, 0) and (_max_resets is null or pg_catalog.int4ge(_max_resets, 0)))
      then 'resets_in_range'
    when _scout and not (_queue is not null
                         and (pg_catalog.texteq(_state, 'queued') or pg_catalog.texteq(_state, 'errored')))
      then 'scouts_for_queues'
    when _settled_token is not null and pg_catalog.texteq(_state, 'processing') then 'settled_unless_processing'
    when pg_catalog.texteq(_task, '') or pg_catalog.int4gt(pg_catalog.length(_task), 128) then 'task_length'
  end;
  if _broken is not null then
    -- In the words of PostgreSQL's own error, under the rule's name.
    raise exception 'new row for relation "live" violates check constraint "%"', _broken
      using errcode = '23514', schema = {schema_text}, table = 'live', constraint = _broken;
  end if;
  return true;
end $$;

-- The lock that this takes is held to the end of the installation, so the rows that are there are not read under it: what they
-- are is proved in a transaction of its own, while others work (schema.py).
alter table {schema}.live
  drop constraint if exists asked_while_processing, drop constraint if exists attempts_in_range,
  drop constraint if exists finished_iff_failed, drop constraint if exists flags_count,
  drop constraint if exists key_length, drop constraint if exists keyless_if_replaced,
  drop constraint if exists known_state, drop constraint if exists leased_iff_processing,
  drop constraint if exists payload_size, drop constraint if exists queue_length,
  drop constraint if exists resets_in_range, drop constraint if exists scouts_for_queues,
  drop constraint if exists settled_unless_processing, drop constraint if exists task_length,
  add constraint lawful check ({schema}.is_lawful(
    task, payload, queue, state, attempts, max_attempts, resets, max_resets, key, flags, token, settled_token, worker,
    lease_until, finished_at, cancel_requested, loses_retries, scout)) not valid;

do $$
begin
  if not exists (select from {schema}.live) then alter table {schema}.live validate constraint lawful; end if;
end $$;

-- Room for the row that a claim writes: on the page of the one before, its record of the log has one page instead of two and not
-- what is the same in both rows, and no lock of the old one is logged while another page is looked for.
alter table {schema}.live set (fillfactor = 60);
