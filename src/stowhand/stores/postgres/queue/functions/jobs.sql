-- The SQL interface of the queue, for triggers and people. Names, arguments and meaning are those of graphile-worker.

-- Return a row of `live` as the view `jobs` shows it.
create or replace function {schema}.shown(_job {schema}.live) returns {schema}.jobs
language sql immutable as $$
  select row(_job.id, _job.serial, _job.task, _job.payload, _job.priority, _job.run_at, _job.attempts, _job.max_attempts,
    _job.last_error, _job.created_at, _job.updated_at, _job.key,
    case when _job.state = 'processing' then _job.started_at end, _job.worker, _job.revision, _job.flags,
    _job.lease_until, {job_shown})::{schema}.jobs
$$;

-- Enqueue all jobs or none. Return them in the order of the specs.
create or replace function {schema}.add_jobs(
  specs {schema}.job_spec[], job_key_preserve_run_at boolean default false
) returns setof {schema}.jobs
language plpgsql {definer} as $$
declare
  _twice text;
begin
  select s.job_key into _twice from unnest(specs) s where s.job_key is not null
    group by s.job_key having count(*) > 1 limit 1;
  if _twice is not null then
    raise exception 'Duplicate job key % in one call.', to_json(_twice) using errcode = '21000';
  end if;
  return query
    select ({schema}.shown(added.job)).* from (
      select j.n, {schema}.enqueue(
        j.identifier, j.payload, j.queue_name, j.run_at, null, j.max_attempts, j.job_key, j.priority, j.flags,
        case when job_key_preserve_run_at then 'preserve_run_at' end, _queue => j.work_queue) as job
      from (
        -- The columns have the names of the type. A list of names here would be wrong after a new field of job_spec.
        select s.*, row_number() over () as n from unnest(specs) s
        order by s.job_key collate "C" nulls first, n offset 0
      ) j offset 0
    ) added order by added.n;
end $$;

-- Delete the waiting or failed job with the key. A running job loses the key, and will not run again. Return NULL if no
-- job has the key.
create or replace function {schema}.remove_job(job_key text) returns {schema}.jobs
language plpgsql {definer} as $$
declare
  _job {schema}.live := {schema}.drop_key(job_key);
begin
  return case when _job.id is not null then {schema}.shown(_job) end;
end $$;

-- Make the view `jobs` writable as far as a function does the same, for its owner and for roles that the owner allows
-- to write it.
create or replace function {schema}.write_jobs() returns trigger
language plpgsql {definer} as $$
declare
  _answer record;
  _refused text;
begin
  if tg_op = 'DELETE' then
    _answer := {schema}.remove(old.id);
    if _answer.done = 'refused' then
      raise exception 'Job % cannot be deleted: %.', old.id, _answer.why using errcode = '55000',
        hint = 'stowhand jobs cancel, or the function cancel, asks its worker to stop.';
    end if;
    return case when _answer.done = 'done' then old end;
  end if;
  select string_agg(n.key, ', ') into _refused
    from json_each(row_to_json(new)) n
      left join json_each(case when tg_op = 'UPDATE' then row_to_json(old) end) o on o.key = n.key
    where n.value::text is distinct from coalesce(o.value::text, 'null')
      and (tg_op = 'INSERT' and n.key <> all(array['task_identifier', 'payload', 'queue_name', 'run_at', 'max_attempts', 'key',
                                                   'priority', 'flags', 'work_queue'])
        or tg_op = 'UPDATE' and n.key <> 'queue_name'
          and (n.key <> all(array['run_at', 'priority', 'attempts', 'max_attempts', 'work_queue']) or n.value::text = 'null'));
  if _refused is not null then
    raise exception '% of the view jobs does not take %.', tg_op, _refused using errcode = '0A000',
      hint = 'Use add_job with a job_key (task, payload, flags), reschedule_jobs (run_at, priority, attempts, work_queue), retry, cancel, '
        'complete_jobs or permanently_fail_jobs (state), force_unlock_workers (locks).';
  end if;
  if tg_op = 'INSERT' then
    return {schema}.add_job(new.task_identifier, new.payload, new.queue_name, new.run_at, new.max_attempts, new.key,
      new.priority, new.flags, work_queue => new.work_queue);
  end if;
  if (new.run_at, new.priority, new.attempts, new.max_attempts, new.work_queue)
      is distinct from (old.run_at, old.priority, old.attempts, old.max_attempts, old.work_queue) then
    perform from {schema}.reschedule_jobs(array[old.id], nullif(new.run_at, old.run_at),
      nullif(new.priority, old.priority), nullif(new.attempts, old.attempts), nullif(new.max_attempts, old.max_attempts),
      nullif(new.work_queue, old.work_queue));
  end if;
  perform {schema}.check_name('A queue name', new.queue_name, 128, 'GWBQN');
  update {schema}.live j set serial = new.queue_name, updated_at = now()
    where j.id = old.id and j.state <> 'processing';
  if not found then
    raise exception 'Job % is running, so it cannot be changed.', old.id using errcode = '55000',
      hint = 'The function cancel asks its worker to stop; force_unlock_workers takes it from a worker that is lost.';
  end if;
  perform {schema}.wake();
  return (select {schema}.shown(j) from {schema}.live j where j.id = old.id);
end $$;

do $$
begin
  if not exists (select from pg_catalog.pg_trigger t
                 where t.tgrelid = pg_catalog.to_regclass({schema_name} || '.jobs') and t.tgname = 'write_jobs') then
    create trigger write_jobs instead of insert or update or delete on {schema}.jobs for each row
      execute function {schema}.write_jobs();
  end if;
end $$;
