-- Enqueueing. Plain jobs, one or many: `enqueue_many`. Any job: `enqueue`, which the others below call for each of theirs, but
-- `add_job`, whose body is its own (functions/add_job.sql). `details` are the options of a job but its key (rows.py). The arguments of
-- functions that programs call stay in their order: programs of an older version call them, too.
-- Backslashes stand in E'' only: what they mean in '' is a setting of the session (standard_conforming_strings).

create or replace function {schema}.wake() returns void
language sql as $$
  select pg_catalog.pg_notify({channel}, '')
$$;

-- Arrays of a keyed job are appended (batch jobs), as text: numbers and key order stay as they were written.
create or replace function {schema}.append_json(_old json, _new json) returns json
language plpgsql immutable as $$
declare
  _head text := btrim(_old::text, E' \t\n\r');
  _tail text := btrim(_new::text, E' \t\n\r');
begin
  if json_array_length(_old) = 0 then return _new; end if;
  if json_array_length(_new) = 0 then return _old; end if;
  return (left(_head, -1) || ',' || substr(_tail, 2))::json;
end $$;

create or replace function {schema}.check_size(_payload json) returns json
language plpgsql immutable as $$
begin
  if octet_length(_payload::text) > 1048576 then
    raise exception 'The payload would take % bytes; the limit is 1 MiB (1048576 bytes).', octet_length(_payload::text)
      using errcode = '54000', hint = 'Store large data elsewhere and put its address into the payload.';
  end if;
  return _payload;
end $$;

-- A text that may hold what strict_json.py refuses. Cheap, because every payload pays for it: `translate` and a pattern
-- that counts to 300 cost ten times as much. What is short cannot be nested too deep.
create or replace function {schema}.is_suspicious(_text text) returns boolean
language sql immutable as $$
  select _text ~ E'\\\\u|[eE][-+]?[0-9]{3}|[0-9]{20}'
    or length(_text) > 128 and length(_text) - length(replace(replace(_text, '[', ''), '{', '')) > 64
$$;

-- Refuse what no worker could read. `json` keeps what it was given, so it is parsed as jsonb too, which refuses NUL and
-- lone surrogates. Strings are emptied before numbers are looked for.
create or replace function {schema}.check_suspicious(_payload json) returns void
language plpgsql immutable as $$
declare
  _text text := _payload::text;
  _bare text;
begin
  if position(E'\\u' in _text) > 0 then
    perform _payload::jsonb;
  end if;
  if _text ~ '[eE][-+]?[0-9]{3}|[0-9]{20}' then
    _bare := regexp_replace(_text, E'"(?:[^"\\\\]|\\\\.)*"', '""', 'g');
    if _bare ~ '[eE][-+]?0*(?:309|3[1-9][0-9]|[4-9][0-9]{2}|[1-9][0-9]{3})' then
      raise exception 'A number in the payload has an exponent beyond the limit of 308.' using errcode = '54000';
    elsif _bare ~ '(?:^|[^0-9.])[0-9]{150}[0-9]{151}' then
      raise exception 'A number in the payload has more than 300 digits.' using errcode = '54000';
    end if;
  end if;
  if jsonb_path_exists(_payload::jsonb, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') then
    raise exception 'The payload is nested deeper than 64.' using errcode = '54000';
  end if;
end $$;

-- A name is one line of 1 to `_limit` characters: a line break or an escape sequence would forge lines in logs.
create or replace function {schema}.check_name(_what text, _name text, _limit int, _code text) returns void
language plpgsql immutable as $$
begin
  if length(_name) not between 1 and _limit then
    raise exception '% has 1 to % characters (this one has %).', _what, _limit, length(_name) using errcode = _code;
  elsif _name ~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028\\u2029]' then
    raise exception '% is one line of text (this one has a control character: %).', _what, to_json(left(_name, 200))
      using errcode = _code;
  end if;
end $$;

-- A serial key, or the key of a limit as it is stored (limits.sql: key_name).
create or replace function {schema}.check_serial(_name text) returns void
language plpgsql immutable as $$
declare
  _tab constant int := position(E'\t' in _name);
begin
  if _tab > 0 then
    perform {schema}.check_name('The name of a limit', left(_name, _tab - 1), 128, 'GWBQN');
    if length(_name) > _tab then perform {schema}.check_name('The key of a limit', substr(_name, _tab + 1), 128, 'GWBQN'); end if;
  else
    perform {schema}.check_name('A serial key', _name, 128, 'GWBQN');
  end if;
end $$;

-- No option of a worker could name a queue with a comma or outer blanks. The same rule is in jobs/limits.py: check_queue.
create or replace function {schema}.check_queue(_queue text) returns void
language plpgsql immutable as $$
begin
  perform {schema}.check_name('The name of a queue', _queue, 128, 'GWBQN');
  if _queue ~ '^ |,| $' then
    raise exception 'The name of a queue has no comma and no blank at its ends (this one is %).', to_json(_queue)
      using errcode = 'GWBQN';
  end if;
end $$;

create or replace function {schema}.check_job(
  _task text, _payload json, _suspicious boolean, _serial text, _max_attempts int, _key text, _flags text[],
  _max_resets int, _queue text
) returns void
language plpgsql immutable as $$
declare
  _flag text;
begin
  perform {schema}.check_name('A task identifier', coalesce(_task, ''), 128, 'GWBID');
  perform {schema}.check_serial(_serial);
  perform {schema}.check_name('A job key', _key, 512, 'GWBJK');
  perform {schema}.check_queue(_queue);
  if _max_attempts < 1 then
    raise exception 'max_attempts is at least 1 (here it is %).', _max_attempts using errcode = 'GWBMA';
  elsif _max_resets < 0 then
    raise exception 'max_resets is at least 0 (here it is %).', _max_resets using errcode = '22023';
  elsif cardinality(_flags) > 64 then
    raise exception 'A job has at most 64 flags (this one has %).', cardinality(_flags) using errcode = '22023';
  elsif array_position(_flags, null) is not null then
    raise exception 'A flag is 1 to 128 characters and never NULL.' using errcode = '22023';
  end if;
  foreach _flag in array coalesce(_flags, '{}') loop
    perform {schema}.check_name('A flag', _flag, 128, '22023');
  end loop;
  perform {schema}.check_size(_payload);
  if _suspicious then perform {schema}.check_suspicious(_payload); end if;
end $$;

-- Built-in tasks, which every worker runs, may delete. `enqueue` runs with its owner's rights, so it cannot check its
-- caller's: jobs of built-in tasks come from enqueue_built_in, which is granted to fewer roles.
create or replace function {schema}.refuse_reserved(_task text) returns void
language plpgsql immutable as $$
begin
  if _task = any({reserved}) then
    raise exception 'Task identifier % is built in, and may delete: its jobs come from a crontab, or from an administrator (enqueue_built_in).', _task
      using errcode = 'GWBID';
  end if;
end $$;

-- One look at the commonest kinds of jobs; the checks above say which limit it is for the others. What this look has found to
-- be in order is not looked at again. PostgreSQL puts it into the caller's expression, so arguments are to be variables.
create or replace function {schema}.is_usual(
  _task text, _payload text, _serial text, _max_attempts int, _key text, _flags text[], _queue text
) returns boolean
language sql immutable as $$
  select length(_task) between 1 and 128 and _max_attempts > 0 and length(_payload) < 8192
    and not {schema}.is_suspicious(_payload)
    and (_serial is null or length(_serial) between 1 and 128) and (_key is null or length(_key) between 1 and 512)
    and (_queue is null or length(_queue) between 1 and 128 and _queue !~ '^ |,| $')
    and concat(_task, _serial, _key, _queue) !~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028\\u2029]'
    and _task <> all({reserved}) and _flags is null
$$;

-- The queue that a worker has declared for the task of a job that names none; NULL: `default`, or none has. For statements:
-- with a subquery in its place the planner prefers a plan made anew for each insert, which costs a third of it. A function has
-- a statement of its own instead, which costs a third less than this call.
create or replace function {schema}.declared_queue(_task text) returns text
language plpgsql stable as $$
begin
  return (select q.queue from {schema}.task_queues q where q.task = _task);
end $$;

create or replace function {schema}.check_rules(
  _on_failure json, _expires double precision, _unique_period double precision, _mode text
) returns void
language plpgsql immutable as $$
begin
  if _expires <= 0 or _expires > 3155760000 then
    raise exception 'expires is more than 0 seconds, and at most 100 years.' using errcode = '22023';
  end if;
  if _unique_period <= 0 or _unique_period > 3155760000 or _unique_period is not null and _mode <> 'unique' then
    raise exception 'unique_period is more than 0 seconds, at most 100 years, and of the job_key_mode unique.'
      using errcode = '22023';
  end if;
  if _on_failure is not null then perform {schema}.check_handler(_on_failure); end if;
end $$;

-- `_expires` and `_unique_period` are in seconds. `_on_failure`: as jobs/job.py: NewJob has it, in JSON.
create or replace function {schema}.enqueue(
  _task text, _payload json default null, _serial text default null, _run_at timestamptz default null,
  _delay double precision default null, _max_attempts int default null, _key text default null,
  _priority int default null, _flags text[] default null, _mode text default null, _max_resets int default null,
  _on_failure json default null, _expires double precision default null, _unique_period double precision default null,
  _queue text default null, _now timestamptz default null
) returns {schema}.live
language plpgsql {definer} as $$
declare
  _at timestamptz := case when _now is null then now() else {schema}.pinned(_now) end;
  _text text;
  _notified text;
  _job {schema}.live;
begin
  _payload := coalesce(_payload, '{}');
  _text := _payload;
  _run_at := coalesce(_run_at, _at + _delay * interval '1 second', _at);
  _max_attempts := coalesce(_max_attempts, {max_attempts});
  _priority := coalesce(_priority, 0);
  _mode := coalesce(_mode, 'replace');
  if ({schema}.is_usual(_task, _text, _serial, _max_attempts, _key, _flags, _queue) and _max_resets is null) is not true then
    perform {schema}.refuse_reserved(_task);
    perform {schema}.check_job(
      _task, _payload, {schema}.is_suspicious(_text), _serial, _max_attempts, _key, _flags, _max_resets, _queue);
  end if;
  if _queue is null then
    select q.queue into _queue from {schema}.task_queues q where q.task = _task;
  elsif _queue = 'default' then
    _queue := null;
  end if;
  if _flags is not null then
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe', 'unique') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at, unsafe_dedupe or unique.', _mode
      using errcode = 'GWBKM';
  end if;
  if (_on_failure is null and _expires is null and _unique_period is null) is not true then
    perform {schema}.check_rules(_on_failure, _expires, _unique_period, _mode);
  end if;
  if _key is null then
    insert into {schema}.live (task, payload, run_at, {details}, on_failure, expires_at, created_at, updated_at)
    values (_task, _payload, _run_at, {given_details}, _on_failure,
            _run_at + _expires * interval '1 second', _at, _at)
    returning * into _job;
  else
    _job := {schema}.enqueue_keyed(_task, _payload, _run_at, _key, _mode, _on_failure, _expires, _unique_period, _at,
                                   {given_details});
    -- It may be running, or have run: who may enqueue is not to learn the proof of somebody's lease.
    _job.token := null; _job.settled_token := null;
  end if;
  if _job.expires_at is not null then
    insert into {schema}.expiring (expires_at, id) values (_job.expires_at, _job.id) on conflict do nothing;
  end if;
  _notified := pg_notify({channel}, '');  -- PERFORM would be a statement, which costs ten times as much
  return _job;
end $$;

-- Return the job that an enqueue with a key creates, changes or finds. The loop repeats only if the holder of the key was running
-- and has just lost the key, gave it up itself, or had expired. The conflict clause waits for the transaction that holds the row.
-- unique: a waiting or running job is read and not locked, so a repeated enqueue writes nothing and waits for no other transaction.
-- `_period`: seconds after its enqueue in which a completed job is found, too.
-- A job that has expired, and that no claim has canceled yet, will never run: every mode replaces it.
create or replace function {schema}.enqueue_keyed(
  _task text, _payload json, _run_at timestamptz, _key text, _mode text, _on_failure json, _expires double precision,
  _period double precision, _at timestamptz, {detail_parameters}
) returns {schema}.live
language plpgsql as $$
declare
  _taken record;
  _job {schema}.live;
begin
  loop
    if _mode = 'unsafe_dedupe' then
      insert into {schema}.live as old (task, payload, run_at, {details}, on_failure, expires_at, key, created_at,
                                        updated_at)
      values (_task, _payload, _run_at, {given_details}, _on_failure,
              _run_at + _expires * interval '1 second', _key, _at, _at)
      on conflict (key) where key is not null do update set revision = old.revision + 1, updated_at = _at
        where (old.state = 'queued' and old.expires_at <= _at) is not true
      returning * into _job;
      if found then return _job; end if;
      perform {schema}.cancel_expired_holder(_key, _at);
      continue;
    end if;
    if _mode = 'unique' then
      select * into _job from {schema}.live l where l.key = _key and l.state <> 'failed';
      if found and (_job.state = 'queued' and _job.expires_at <= _at) is not true then return _job; end if;
      if _period is not null and _job.id is null then
        select t.job_id, t.enqueued_at into _taken from {schema}.completed_within(_key, _at) t;
        if _taken.job_id is not null then
          select {given_details} into {job_details};
          _job.key := _key; _job.task := _task; _job.payload := _payload; _job.attempts := 0; _job.resets := 0;
          _job.revision := 0; _job.epoch := 0; _job.cancel_requested := false; _job.absorbed := false;
          return {schema}.as_completed(_taken.job_id, _taken.enqueued_at, _job);
        end if;
      end if;
    end if;
    insert into {schema}.live as old (task, payload, run_at, {details}, on_failure, expires_at, key, created_at,
                                      updated_at)
    values (_task, _payload, _run_at, {given_details}, _on_failure,
            _run_at + _expires * interval '1 second', _key, _at, _at)
    on conflict (key) where key is not null do update set
      task = _task,
      payload = case
        when old.state <> 'failed' and json_typeof(old.payload) = 'array' and json_typeof(_payload) = 'array'
          then {schema}.check_size({schema}.append_json(old.payload, _payload))
        else _payload end,
      {set_details},
      run_at = case
        when _mode = 'preserve_run_at' and old.state = 'queued' and old.attempts = 0 then old.run_at
        else _run_at end,
      absorbed = false, on_failure = _on_failure, waits_for = null,
      expires_at = _expires * interval '1 second' + case
        when _mode = 'preserve_run_at' and old.state = 'queued' and old.attempts = 0 then old.run_at
        else _run_at end,
      state = 'queued', attempts = 0, resets = case when old.state = 'failed' then 0 else old.resets end,
      last_error = null, finished_at = null, cancel_requested = false, progress = null,
      progress_text = null,
      round = case when old.last_worker is not null or old.round is not null or old.state = 'failed'
                   then {schema}.next_round(old.id) end,
      revision = old.revision + 1, updated_at = _at,
      replaced = case _mode when 'unique' then old.replaced else old.revision + 1 end
    where case _mode when 'unique' then old.state = 'failed' else old.state <> 'processing' end
      and (old.state = 'queued' and old.expires_at <= _at) is not true
    returning * into _job;
    if found then
      if _job.revision > 0 and exists (select from {schema}.steps s where s.job_id = _job.id) then
        perform {schema}.cancel_children(array[_job.id], true, _at, true);
        update {schema}.live c set parent_step = null, parent_place = null
          where c.parent_id = _job.id and c.parent_id is not null;
        delete from {schema}.steps s where s.job_id = _job.id;
      end if;
      if _period is not null and not {schema}.take_for_period(_job, _period, _at) then
        -- Since it was looked for, another one was made, has run and has completed.
        delete from {schema}.live l where l.id = _job.id;
        continue;
      end if;
      return _job;
    end if;
    if _mode <> 'unique' then
      -- It is running: it loses its key, and with it its retries. A job with another state is left to the next round.
      update {schema}.live set key = null, loses_retries = 'replaced' where key = _key and state = 'processing';
    end if;
    perform {schema}.cancel_expired_holder(_key, _at);
  end loop;
end $$;

-- A job of a built-in task: for administrators, and for the crontabs of workers. Else as `enqueue`.
create or replace function {schema}.enqueue_built_in(
  _task text, _payload json default null, _serial text default null, _run_at timestamptz default null,
  _delay double precision default null, _max_attempts int default null, _key text default null,
  _priority int default null, _flags text[] default null, _mode text default null, _max_resets int default null,
  _queue text default null, _now timestamptz default null
) returns {schema}.live
language plpgsql {definer} as $$
declare
  _at timestamptz := case when _now is null then now() else {schema}.pinned(_now) end;
  _job {schema}.live;
begin
  if (_task = any({reserved})) is not true then
    raise exception 'Task identifier % is not built in: enqueue it as usual.', _task using errcode = 'GWBID';
  elsif _mode not in ('replace', 'preserve_run_at') then
    raise exception 'The job_key_mode of a built-in task is replace or preserve_run_at, not "%".', _mode
      using errcode = 'GWBKM';
  end if;
  _payload := coalesce(_payload, '{}');
  _run_at := coalesce(_run_at, _at + _delay * interval '1 second', _at);
  _max_attempts := coalesce(_max_attempts, {max_attempts});
  _priority := coalesce(_priority, 0);
  _flags := nullif(_flags, '{}');
  perform {schema}.check_job(
    _task, _payload, {schema}.is_suspicious(_payload::text), _serial, _max_attempts, _key, _flags, _max_resets, _queue);
  _queue := nullif(_queue, 'default');
  _job := {schema}.enqueue_keyed(
    _task, _payload, _run_at, _key, coalesce(_mode, 'replace'), null, null, null, _at, {given_details});
  _job.token := null; _job.settled_token := null;
  perform pg_notify({channel}, '');
  return _job;
end $$;

-- Create jobs without keys, one or many, in this order. An argument that is NULL means its default for all of them. No worker is
-- notified. `_queues` empty: all in `default`, whatever workers have declared for their tasks.
create or replace function {schema}.enqueue_many(
  _tasks text[], _payloads json[], _serials text[], _run_ats timestamptz[], _delays double precision[],
  _max_attempts int[], _priorities int[], _flags json[], _max_resets int[], _queues text[] default null,
  _now timestamptz default null
) returns table (id bigint, run_at timestamptz, created_at timestamptz, max_attempts int, queue text)
language plpgsql {definer} as $$
#variable_conflict use_column
declare
  _at timestamptz := case when _now is null then now() else {schema}.pinned(_now) end;
  _are_declared boolean := false;
begin
  -- An `exists` in one expression with the first test would be a statement of its own, even where that test fails.
  if _queues is null or array_position(_queues, null) is not null then
    _are_declared := exists (select from {schema}.task_queues);
  end if;
  if _tasks && {reserved} then
    perform {schema}.refuse_reserved(r.task) from unnest({reserved}) as r(task) where r.task = any(_tasks);
  end if;
  return query
  insert into {schema}.live (task, payload, serial, run_at, max_attempts, priority, flags, max_resets, queue,
                             created_at, updated_at)
  select j.task, j.payload, j.serial, coalesce(j.run_at, _at + j.delay * interval '1 second', _at),
         coalesce(j.max_attempts, {max_attempts}), coalesce(j.priority, 0),
         case when j.flags is not null then array(select json_array_elements_text(j.flags)) end,
         j.max_resets,
         nullif(coalesce(j.queue, case when _are_declared then {schema}.declared_queue(j.task) end), 'default'),
         _at, _at
  from unnest(_tasks, _payloads, _serials, _run_ats, _delays, _max_attempts, _priorities, _flags, _max_resets, _queues)
    as j(task, payload, serial, run_at, delay, max_attempts, priority, flags, max_resets, queue)
  returning id, run_at, created_at, max_attempts, queue;
end $$;

-- Any jobs, in JSON as jobs/job.py: NewJob has them, one by one in the order (key, place): two calls with the same keys then never
-- wait for each other in a circle. A key that comes twice updates the job of its first time. `place` counts from 1, in the order
-- given. The fences (`offset 0`) keep the planner from moving a call out of the sorted list.
create or replace function {schema}.enqueue_jobs(_jobs json, _now timestamptz default null) returns setof {schema}.live
language plpgsql {definer} as $$
begin
  return query
  select (added.job).* from (
    select _new.ordinality as place, {schema}.enqueue({new_arguments}, _now => _now) as job
    from (
      select * from rows from (json_populate_recordset(null::{schema}.new_job, _jobs)) with ordinality as u
      order by u.key collate "C" nulls first, u.ordinality offset 0
    ) _new offset 0
  ) added order by added.place;
end $$;

-- One job, for callers of any driver: one text in, and one out, for neither depends on what a driver makes of json, of
-- arrays or of timestamps. In as jobs/job.py: NewJob has it in JSON, out as its Job. What is not known here (a newer
-- program's rule) is refused: left out, it would not hold.
create or replace function {schema}.enqueue_text(_job text) returns text
language plpgsql {definer} set timezone = 'UTC' as $$
declare
  _given jsonb := _job;
  _new {schema}.new_job;
  _live {schema}.live;
begin
  _given := _given - array[{new_names}];
  if _given - 'now' <> '{}' then
    raise exception 'This schema does not know %: it is older than the program. Run stowhand migrate.',
      to_json((select k from jsonb_object_keys(_given - 'now') k limit 1)) using errcode = '42883';
  end if;
  _new := json_populate_record(_new, _job::json);
  _live := {schema}.enqueue({new_arguments}, _now => (_given->>'now')::timestamptz);
  -- A run time may be infinite, or in a year that its reader does not know.
  _live.run_at := greatest(least(_live.run_at, timestamptz '9999-12-31 23:59:59.999999+00'),
                           timestamptz '0001-01-01 00:00:00+00');
  _live.flags := coalesce(_live.flags, '{}');
  return row_to_json(j) from (select {unended_job} from (select _live.*) live) j;
end $$;
