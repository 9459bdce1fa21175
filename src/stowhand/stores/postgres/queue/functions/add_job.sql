-- Return the stored key for this key of the limit of a task.
create or replace function {schema}.key_of_task(_task text, _serial text, _key text) returns text
language plpgsql as $$
declare
  _limit text := (select t.key_limit from {schema}.task_limits t where t.task = _task);
begin
  if _limit is null then
    raise exception 'limit_key: task % has no limit with a key: a worker declares limits when it starts.', to_json(_task)
      using errcode = '22023';
  elsif _serial is not null then
    raise exception 'A job has one key: use limit_key, or queue_name (the serial key), not both.' using errcode = '22023';
  end if;
  return {schema}.key_name(_limit, _key);
end $$;

-- Created three times (function_texts.py), for a payload of json, of jsonb and of text. With two candidates, a literal
-- would fit both and be refused as ambiguous. With three, PostgreSQL chooses `text`, which it prefers for a literal
-- without a type.
--
-- It does the same as `enqueue`, in a body of its own: in a call from a trigger, a second function with the rights of
-- its owner and the conversion of a row of `live` to one of `jobs` took a third of the time.
create or replace function {schema}.add_job(
  identifier text, payload {payload}, queue_name text default null, run_at timestamptz default null,
  max_attempts int default null, job_key text default null, priority int default null, flags text[] default null,
  job_key_mode text default 'replace', work_queue text default null, limit_key text default null
) returns {schema}.jobs
language plpgsql {definer} as $$
#variable_conflict use_column
declare
  _payload json := coalesce(payload::json, '{}');
  _text text := _payload;
  _run_at timestamptz := coalesce(run_at, now());
  _max_attempts int := coalesce(max_attempts, {max_attempts});
  _flags text[] := flags;
  _mode text := coalesce(job_key_mode, 'replace');
  _queue text := work_queue;
  _notified text;
  _keyed {schema}.live;
  _job {schema}.jobs;
begin
  if limit_key is not null then queue_name := {schema}.key_of_task(identifier, queue_name, limit_key); end if;
  if {schema}.is_usual(identifier, _text, queue_name, _max_attempts, job_key, _flags, _queue) is not true then
    perform {schema}.refuse_reserved(identifier);
    perform {schema}.check_job(
      identifier, _payload, {schema}.is_suspicious(_text), queue_name, _max_attempts, job_key, _flags, null, _queue);
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe', 'unique') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at, unsafe_dedupe or unique.', _mode
      using errcode = 'GWBKM';
  end if;
  if _queue is null then
    select q.queue into _queue from {schema}.task_queues q where q.task = identifier;
  elsif _queue = 'default' then
    _queue := null;
  end if;
  if job_key is null then
    insert into {schema}.live (task, payload, serial, run_at, max_attempts, priority, flags, queue, created_at, updated_at)
    values (identifier, _payload, queue_name, _run_at, _max_attempts, coalesce(priority, 0), _flags, _queue,
            now(), now())
    returning id, serial, task, payload, priority, run_at, attempts, max_attempts, last_error, created_at, updated_at, key,
      null::timestamptz, worker, revision, flags, lease_until, {shown}
    into _job;
  else
    _keyed := {schema}.enqueue_keyed(
      identifier, _payload, _run_at, job_key, _mode, null, null, null, now(), _serial => queue_name,
      _max_attempts => _max_attempts, _priority => coalesce(priority, 0), _flags => _flags,
      _queue => _queue);
    _job := {schema}.shown(_keyed);
  end if;
  _notified := pg_notify({channel}, '');
  return _job;
end $$;
