-- Keys that are taken for a period: of jobs that were enqueued with `unique_period`. What waits or runs is found by its key in
-- `live`; the table `uniques` is asked for what has completed. Rows of `live` are locked before rows of it.

-- The job that has completed within the period for which it took the key; NULL: there is none.
create or replace function {schema}.completed_within(
  _key text, _at timestamptz, out job_id bigint, out enqueued_at timestamptz
)
language sql stable as $$
  select u.job_id, u.enqueued_at from {schema}.uniques u
  where u.key = _key and u.until > _at and not exists (select from {schema}.live l where l.id = u.job_id)
$$;

-- Take the key for the job that was just made of it, or has been revived, which keeps the period of its first enqueueing.
-- False: somebody else's job has taken it meanwhile, and has ended.
create or replace function {schema}.take_for_period(_job {schema}.live, _period double precision, _at timestamptz)
returns boolean
language plpgsql {index_plans} as $$
begin
  insert into {schema}.uniques as u (key, job_id, enqueued_at, until)
    values (_job.key, _job.id, _at, _at + _period * interval '1 second')
    on conflict (key) do update set job_id = excluded.job_id, enqueued_at = _at, until = excluded.until
      -- A job that is live and is not this one has lost the key.
      where u.until <= _at
        or u.job_id <> excluded.job_id and exists (select from {schema}.live l where l.id = u.job_id);
  return found or exists (select from {schema}.uniques u where u.key = _job.key and u.job_id = _job.id);
end $$;

-- These jobs did not complete: their keys are free, whatever is left of the period.
create or replace function {schema}.forget_periods(_ids bigint[]) returns void
language sql {index_plans} as $$
  delete from {schema}.uniques u where u.job_id = any(_ids)
$$;

-- One that has completed, as the history has it. Where none is kept it is known that it has, and by the key what it was: the
-- rest is said of it as of the new one.
create or replace function {schema}.as_completed(_id bigint, _enqueued_at timestamptz, _new {schema}.live)
returns {schema}.live
language plpgsql stable {index_plans} as $$
declare
  _old {schema}.history;
  _job {schema}.live := _new;
begin
  select h.* into _old from {schema}.history h where h.id = _id order by h.finished_at desc limit 1;
  _job.id := _id;
  _job.state := 'completed';
  if _old.id is null then
    _job.run_at := _enqueued_at; _job.created_at := _enqueued_at; _job.updated_at := _enqueued_at;
    return _job;
  end if;
  select _old.task, _old.payload, {old_details} into _job.task, _job.payload, {job_details};
  _job.run_at := _old.run_at; _job.attempts := _old.attempts; _job.resets := _old.resets;
  _job.last_error := _old.last_error; _job.revision := _old.revision; _job.created_at := _old.created_at;
  _job.updated_at := _old.updated_at; _job.started_at := _old.started_at; _job.finished_at := _old.finished_at;
  _job.last_worker := _old.worker; _job.cancel_requested := _old.cancel_requested; _job.epoch := _old.epoch;
  return _job;
end $$;
