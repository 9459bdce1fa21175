-- The job that reports the permanent failure of another job. It is stored with the job, and enqueued in the transaction
-- in which the job fails.

-- Raise an error unless this may be stored: a job without key and payload, of a task that is not built in. The client
-- has checked everything else.
create or replace function {schema}.check_handler(_handler json) returns void
language plpgsql immutable as $$
begin
  if json_typeof(_handler) <> 'object' or octet_length(_handler::text) > 16384
      or _handler->>'key' is not null or _handler->>'expires' is not null
      or _handler->>'payload' is not null or _handler->>'on_failure' is not null then
    raise exception 'on_failure is an object without key, expires, payload and on_failure, of 16 KiB at most.' using errcode = '22023';
  end if;
  perform {schema}.check_name('A task identifier', coalesce(_handler->>'task', ''), 128, 'GWBID');
  perform {schema}.check_serial(_handler->>'serial');
  perform {schema}.check_queue(_handler->>'queue');
  perform {schema}.refuse_reserved(_handler->>'task');
end $$;

-- This is job_of of jobs/failure.py. Arguments with the maximum nesting would exceed it inside another object.
create or replace function {schema}.failure_payload(_job {schema}.live, _error_class text) returns json
language plpgsql immutable as $$
declare
  _arguments text := _job.payload;
  _size int := octet_length(_arguments);
  _error text := coalesce(_job.last_error, '');
begin
  if _size > 1040000 or length(_arguments) - length(replace(replace(_arguments, '[', ''), '{', '')) > 63
      and jsonb_path_exists(_arguments::jsonb, 'strict $.**{63} ? (@.type() == "array" || @.type() == "object")') then
    _arguments := 'null';
  end if;
  if _size > 900000 then _error := left(_error, 1000); end if;
  return concat('{"job_id":', _job.id, ',"task":', to_json(_job.task), ',"arguments":', _arguments,
    ',"error_class":', coalesce(to_json(_error_class)::text, 'null'), ',"error":', to_json(_error), '}')::json;
end $$;

-- For jobs that have just failed permanently, each with the class of its error: enqueue the job that reports the
-- failure. This never fails its caller: if the database refuses a job, the error text of the failed job says so. Locks,
-- and a server that is full or shutting down, refuse all of it, and the caller repeats it.
create or replace function {schema}.tell_of_failures(_ids bigint[], _classes text[], _at timestamptz) returns void
language plpgsql as $$
declare
  _one record;
  _job {schema}.live;
  _new {schema}.new_job;
  _told boolean := false;
begin
  for _one in
    select l as job, f.class from unnest(_ids, _classes) as f(id, class) cross join lateral (
      select j.* from {schema}.live j where j.id = f.id and j.on_failure is not null offset 0) l
    order by f.id
  loop
    _job := _one.job;
    begin
      _new := json_populate_record(null::{schema}.new_job, _job.on_failure);
      _new.priority := coalesce(_new.priority, 0);
      _new.max_attempts := coalesce(_new.max_attempts, {max_attempts});
      _new.queue := nullif(coalesce(_new.queue, {schema}.declared_queue(_new.task)), 'default');
      insert into {schema}.live (task, payload, run_at, {details}, created_at, updated_at)
      values (_new.task, {schema}.failure_payload(_job, _one.class),
              coalesce(_new.run_at, _at + _new.delay * interval '1 second', _at), {new_details},
              _at, _at);
      _told := true;
    exception when others then
      if sqlstate ~ '^(08|25|40|53|55|57|58)' then raise; end if;
      update {schema}.live j
        set last_error = left(concat_ws(E'\n', j.last_error,
                                     'on_failure could not be enqueued: ' || sqlerrm), 16384)
        where j.id = _job.id;
    end;
  end loop;
  if _told then perform {schema}.wake(); end if;
end $$;
