-- Keys that are taken for a period, by jobs enqueued with `unique_period`. A waiting or running job is found by its key
-- in `live`, and a completed one in `uniques`. Rows of `live` are locked before rows of `uniques`.

-- Return the job that has completed within the period for which it took the key; NULL: there is none.
create or replace function {schema}.completed_within(
  _key text, _at timestamptz, out job_id bigint, out enqueued_at timestamptz
)
language sql stable as $$
  select u.job_id, u.enqueued_at from {schema}.uniques u
  where u.key = _key and u.until > _at and not exists (select from {schema}.live l where l.id = u.job_id)
$$;

-- Take the key for a new job, or for a revived one, which keeps the period of its first enqueue. Return false if a job
-- of another transaction has taken it meanwhile and has ended.
create or replace function {schema}.take_for_period(_job {schema}.live, _period double precision, _at timestamptz)
returns boolean
language plpgsql {index_plans} as $$
begin
  insert into {schema}.uniques as u (key, job_id, enqueued_at, until)
    values (_job.key, _job.id, _at, _at + _period * interval '1 second')
    on conflict (key) do update set job_id = excluded.job_id, enqueued_at = _at, until = excluded.until
      -- Another job that is still live has lost the key.
      where u.until <= _at
        or u.job_id <> excluded.job_id and exists (select from {schema}.live l where l.id = u.job_id);
  return found or exists (select from {schema}.uniques u where u.key = _job.key and u.job_id = _job.id);
end $$;

-- Free the keys of these jobs, which did not complete, whatever remains of the period.
create or replace function {schema}.forget_periods(_ids bigint[]) returns void
language sql {index_plans} as $$
  delete from {schema}.uniques u where u.job_id = any(_ids)
$$;

-- Return a completed job as the history has it. Without a history, only its completion and its key are known; all other
-- values are those of the new job.
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
