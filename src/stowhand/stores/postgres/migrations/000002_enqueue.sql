-- breaking
-- Enqueueing. One algorithm, whoever calls: `add_job` for triggers and people, `enqueue` for this package.

create function {schema}.wake() returns void
language sql as $$
  select pg_catalog.pg_notify({channel}, '')
$$;

-- Arrays of a keyed job are appended (batch jobs), as text: numbers and key order stay as they were written.
create function {schema}.append_json(_old json, _new json) returns json
language plpgsql immutable as $$
declare
  _head text := btrim(_old::text, E' \t\n\r');
  _tail text := btrim(_new::text, E' \t\n\r');
begin
  if json_array_length(_old) = 0 then return _new; end if;
  if json_array_length(_new) = 0 then return _old; end if;
  return (left(_head, -1) || ',' || substr(_tail, 2))::json;
end $$;

create function {schema}.check_size(_payload json) returns json
language plpgsql immutable as $$
begin
  if octet_length(_payload::text) > 1048576 then
    raise exception 'The payload would take % bytes; the limit is 1 MiB (1048576 bytes).', octet_length(_payload::text)
      using errcode = '54000', hint = 'Store large data elsewhere and put its address into the payload.';
  end if;
  return _payload;
end $$;

create function {schema}.check_job(
  _task text, _payload json, _queue text, _max_attempts int, _key text, _flags text[], _max_resets int
) returns void
language plpgsql immutable as $$
begin
  if _task is null or length(_task) not between 1 and 128 then
    raise exception 'A task identifier has 1 to 128 characters (this one has %).', coalesce(length(_task), 0)
      using errcode = 'GWBID';
  elsif length(_queue) > 128 then
    raise exception 'A queue name has at most 128 characters (this one has %).', length(_queue) using errcode = 'GWBQN';
  elsif length(_key) not between 1 and 512 then
    raise exception 'A job key has 1 to 512 characters (this one has %).', length(_key) using errcode = 'GWBJK';
  elsif _max_attempts < 1 then
    raise exception 'max_attempts is at least 1 (here it is %).', _max_attempts using errcode = 'GWBMA';
  elsif _max_resets < 0 then
    raise exception 'max_resets is at least 0 (here it is %).', _max_resets using errcode = '22023';
  elsif _flags is not null and (cardinality(_flags) > 64 or array_position(_flags, null) is not null
      or exists (select from unnest(_flags) as f(flag) where length(f.flag) > 128)) then
    raise exception 'A job has at most 64 flags of at most 128 characters, none of them NULL.' using errcode = '22023';
  end if;
  -- `json` keeps what it was given; what no worker could decode (NUL, lone surrogates) is refused by jsonb's parser.
  if position('\u' in _payload::text) > 0 then
    perform _payload::jsonb;
  end if;
  perform {schema}.check_size(_payload);
end $$;

create function {schema}.enqueue(
  _task text, _payload json default null, _queue text default null, _run_at timestamptz default null,
  _delay double precision default null, _max_attempts int default null, _key text default null,
  _priority int default null, _flags text[] default null, _mode text default null, _max_resets int default null,
  _now timestamptz default null
) returns {schema}.live
language plpgsql {pinned_path} as $$
declare
  _at timestamptz := coalesce(_now, now());
  _job {schema}.live;
begin
  _payload := coalesce(_payload, '{}');
  _run_at := coalesce(_run_at, _at + _delay * interval '1 second', _at);
  _max_attempts := coalesce(_max_attempts, 25);
  _priority := coalesce(_priority, 0);
  _mode := coalesce(_mode, 'replace');
  -- One look at the commonest kind of job; the checks say which limit it is for the others.
  if (length(_task) between 1 and 128 and length(_payload::text) < 8192 and position('\u' in _payload::text) = 0
      and _max_attempts > 0 and _queue is null and _key is null and _flags is null and _max_resets is null) is not true
  then
    perform {schema}.check_job(_task, _payload, _queue, _max_attempts, _key, _flags, _max_resets);
  end if;
  if _flags is not null then
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at or unsafe_dedupe.', _mode
      using errcode = 'GWBKM';
  end if;
  if _key is null then
    insert into {schema}.live (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                               created_at, updated_at)
    values (_task, _payload, _queue, _run_at, _max_attempts, _priority, _flags, _max_resets, _queue is not null,
            _at, _at)
    returning * into _job;
  elsif _mode = 'unsafe_dedupe' then
    insert into {schema}.live as old (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                                      key, created_at, updated_at)
    values (_task, _payload, _queue, _run_at, _max_attempts, _priority, _flags, _max_resets, _queue is not null,
            _key, _at, _at)
    on conflict (key) where key is not null do update set revision = old.revision + 1, updated_at = _at
    returning * into _job;
  else
    _job := {schema}.enqueue_keyed(_task, _payload, _queue, _run_at, _max_attempts, _key, _priority, _flags, _mode,
                                   _max_resets, _at);
  end if;
  perform pg_notify({channel}, '');
  return _job;
end $$;

-- replace and preserve_run_at. The loop ends: it goes round only when the key's holder was running and has just been
-- made to let go of the key, or let go of it by itself; and the conflict clause waits for whoever holds the row.
create function {schema}.enqueue_keyed(
  _task text, _payload json, _queue text, _run_at timestamptz, _max_attempts int, _key text, _priority int,
  _flags text[], _mode text, _max_resets int, _at timestamptz
) returns {schema}.live
language plpgsql as $$
declare
  _job {schema}.live;
begin
  loop
    insert into {schema}.live as old (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                                      key, created_at, updated_at)
    values (_task, _payload, _queue, _run_at, _max_attempts, _priority, _flags, _max_resets, _queue is not null,
            _key, _at, _at)
    on conflict (key) where key is not null do update set
      task = _task,
      payload = case
        when old.state <> 'failed' and json_typeof(old.payload) = 'array' and json_typeof(_payload) = 'array'
          then {schema}.check_size({schema}.append_json(old.payload, _payload))
        else _payload end,
      queue = _queue,
      run_at = case
        when _mode = 'preserve_run_at' and old.state = 'queued' and old.attempts = 0 then old.run_at
        else _run_at end,
      max_attempts = _max_attempts, priority = _priority, flags = _flags, max_resets = _max_resets,
      scout = _queue is not null,
      state = 'queued', attempts = 0, resets = case when old.state = 'failed' then 0 else old.resets end,
      last_error = null, finished_at = null, cancel_requested = false,
      revision = old.revision + 1, updated_at = _at
    where old.state <> 'processing'
    returning * into _job;
    if found then return _job; end if;
    -- It is running: it loses its key, and with it its retries. A job with another state is left to the next round.
    update {schema}.live set key = null, loses_retries = 'replaced' where key = _key and state = 'processing';
  end loop;
end $$;

-- Many jobs without keys. An argument given as NULL means its default for all of them. Ids in the order given.
create function {schema}.enqueue_many(
  _tasks text[], _payloads json[], _queues text[], _run_ats timestamptz[], _delays double precision[],
  _max_attempts int[], _priorities int[], _flags json[], _max_resets int[], _now timestamptz default null
) returns setof bigint
language plpgsql {pinned_path} as $$
declare
  _at timestamptz := coalesce(_now, now());
begin
  return query
  insert into {schema}.live (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                             created_at, updated_at)
  select j.task, j.payload, j.queue, coalesce(j.run_at, _at + j.delay * interval '1 second', _at),
         coalesce(j.max_attempts, 25), coalesce(j.priority, 0),
         case when j.flags is not null then array(select json_array_elements_text(j.flags)) end,
         j.max_resets, j.queue is not null, _at, _at
  from unnest(_tasks, _payloads, _queues, _run_ats, _delays, _max_attempts, _priorities, _flags, _max_resets)
    as j(task, payload, queue, run_at, delay, max_attempts, priority, flags, max_resets)
  returning id;
end $$;

create function {schema}.add_job(
  identifier text, payload json default '{}', queue_name text default null, run_at timestamptz default null,
  max_attempts int default null, job_key text default null, priority int default null, flags text[] default null,
  job_key_mode text default 'replace'
) returns {schema}.jobs
language plpgsql {pinned_path} as $$
declare
  _id bigint;
  _job {schema}.jobs;
begin
  select e.id into _id from {schema}.enqueue(
    add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, null, add_job.max_attempts,
    add_job.job_key, add_job.priority, add_job.flags, add_job.job_key_mode) e;
  select * into _job from {schema}.jobs j where j.id = _id;
  return _job;
end $$;
