-- The queue's SQL interface, for triggers and people: names, arguments and meaning as graphile-worker has them.

-- A row of `live`, as the view `jobs` shows it.
create or replace function {schema}.shown(_job {schema}.live) returns {schema}.jobs
language sql immutable as $$
  select row(_job.id, _job.queue, _job.task, _job.payload, _job.priority, _job.run_at,
    case when _job.loses_retries is null then _job.attempts else _job.max_attempts end,
    _job.max_attempts, coalesce(_job.last_error, _job.earlier_error), _job.created_at, _job.updated_at, _job.key,
    case when _job.state = 'processing' then _job.started_at end, _job.worker, _job.revision, _job.flags,
    _job.state, _job.resets, _job.max_resets, _job.started_at, _job.finished_at, _job.lease_until,
    _job.cancel_requested, coalesce(_job.worker, _job.last_worker), _job.progress,
    _job.progress_text)::{schema}.jobs
$$;

-- Many at once, or none; the jobs in the order of the specs.
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
    raise exception 'The job key % is given twice in one call.', to_json(_twice) using errcode = '21000';
  end if;
  return query
    select ({schema}.shown(e)).* from (
      select array_agg(s.identifier order by n) as tasks, array_agg(s.payload order by n) as payloads,
        array_agg(s.queue_name order by n) as queues, array_agg(s.run_at order by n) as run_ats,
        array_agg(s.max_attempts order by n) as max_attempts, array_agg(s.job_key order by n) as keys,
        array_agg(s.priority order by n) as priorities, array_agg(to_json(s.flags) order by n) as flags,
        array_agg(case when job_key_preserve_run_at then 'preserve_run_at' end order by n) as modes
      from unnest(specs) with ordinality
        as s(identifier, payload, queue_name, run_at, max_attempts, job_key, priority, flags, n)
    ) a cross join lateral {schema}.enqueue_each(
      a.tasks, a.payloads, a.queues, a.run_ats, null, a.max_attempts, a.keys, a.priorities, a.flags, a.modes, null) e;
end $$;

-- A waiting or failed job is deleted, a running one loses its key: it ends, and will not run again. NULL: there is none.
create or replace function {schema}.remove_job(job_key text) returns {schema}.jobs
language plpgsql {definer} as $$
declare
  _job {schema}.live := {schema}.drop_key(job_key);
begin
  return case when _job.id is not null then {schema}.shown(_job) end;
end $$;
