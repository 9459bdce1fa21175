-- Workflows (protocols/workflows.py): recorded steps, waits, events and children.
--
-- `steps` has a row for each step of a job. A wait is a row without value and error; `until` is its end. A step with
-- children has a row at place -1, whose `remaining` counts the children that have not ended, and a row for each ended
-- child, at its place. A waiting job is queued; `waits_for` says what for, and `run_at` is the end of the wait.
--
-- Locks are taken in this order: rows at place -1 of waiting jobs, events, rows of jobs (descendants before their
-- ancestors), rows at place -1 by (job_id, name), rows of parents by id. Waking a job without a reason is harmless.

-- Return the key of the lock of an event. An emitter holds it exclusively at its commit, and a settlement that starts to
-- wait for the event shares it before it looks for the event. Without it, each could miss the other (measured: 63 of 120).
create or replace function {schema}.event_lock(_event text) returns bigint
language sql immutable as $$
  select hashtextextended({channel} || _event, 4)
$$;

-- Record steps of running jobs. Return for each whether its lease holds the job. A row that has a value or an error keeps
-- it. The rows of the jobs are locked FOR SHARE, so no job is reset or settled before these steps are committed. (KEY SHARE
-- would not conflict with those updates.)
create or replace function {schema}.record_steps(
  _ids bigint[], _tokens uuid[], _names text[], _values text[], _errors text[], _now timestamptz default null
) returns setof boolean
language plpgsql {definer} {index_plans} as $$
declare
  _at timestamptz := {schema}.at(_now);
  _held bigint[];
  _epochs bigint[];
begin
  select array_agg(h.id), array_agg(h.epoch) into _held, _epochs
    from (select distinct u.id, u.token from unnest(_ids, _tokens) as u(id, token) order by u.id) f cross join lateral (
      select l.id, l.epoch from {schema}.live l
      where l.id = f.id and l.token = f.token offset 0 for share) h;
  insert into {schema}.steps as known (job_id, name, place, value, error, epoch, at)
    select distinct on (u.n) u.id, u.name, 0, u.value::json, u.error, h.epoch, _at
    from (
      select distinct on (a.id, a.name) a.* from unnest(_ids, _names, _values, _errors)
        with ordinality as a(id, name, value, error, n) order by a.id, a.name, a.n) u
      join unnest(_held, _epochs) as h(id, epoch) on h.id = u.id
    order by u.n
    on conflict (job_id, name, place) do update
      set value = excluded.value, error = excluded.error, epoch = excluded.epoch
      where known.value is null and known.error is null;
  return query select coalesce(u.id = any(_held), false)
    from unnest(_ids) with ordinality as u(id, n) order by u.n;
end $$;

-- The same in a transaction of the caller, for callers of any driver: one step as JSON in, 'true' or 'false' out.
create or replace function {schema}.record_text(_step text) returns text
language sql {definer} as $$
  select {schema}.record_steps(
    array[(s->>'id')::bigint], array[(s->>'token')::uuid], array[s->>'name'], array[s->>'value'], array[s->>'error'],
    (s->>'now')::timestamptz)::text
  from (select _step::json as s) given
$$;

-- Lock what the waits of a settlement need, before rows of jobs are locked: an ending child locks the row at place -1
-- before the row of its parent.
create or replace function {schema}.lock_waits(_ids bigint[], _waits json[]) returns void
language plpgsql as $$
begin
  perform from {schema}.steps s
    where s.place = -1 and (s.job_id, s.name) in (
      select w.id, w.wait->>'step' from unnest(_ids, _waits) as w(id, wait) where w.wait->>'value' is not null)
    order by s.job_id, s.name for update;
  perform pg_advisory_xact_lock_shared(k.key) from (
    select distinct {schema}.event_lock(w.wait->>'event') as key from unnest(_waits) as w(wait)
    where w.wait->>'event' is not null order by 1) k;
end $$;

-- Start the wait of a job that was just settled as queued. `_wait` has the fields of lifecycle.Wait; `children` is the
-- number of new ones, which the caller enqueues in the same transaction.
create or replace function {schema}.start_wait(_id bigint, _wait json, _at timestamptz) returns void
language plpgsql as $$
declare
  _step text := _wait->>'step';
  _event text := _wait->>'event';
  _note text := _wait->>'value';
  _never constant timestamptz := '9999-12-31 00:00:00+00';
  _until timestamptz := coalesce(
    (_wait->>'until')::timestamptz, _at + (_wait->>'delay')::double precision * interval '1 second');
  _payload json;
  _places int[];
  _remaining int;
  _is_over boolean;
begin
  if _note is not null then
    _places := array(select p.place::int from json_array_elements_text(_wait->'places') as p(place));
    delete from {schema}.steps s where s.job_id = _id and s.name = _step and s.place = any(_places);
    if found then
      -- These children failed, and are created anew: if one of the old ones is retried by hand, it records nothing.
      update {schema}.live j set parent_step = null, parent_place = null
        where j.parent_id = _id and j.parent_id is not null and j.parent_step = _step and j.parent_place = any(_places);
    end if;
    insert into {schema}.steps as known (job_id, name, place, value, remaining, at)
      values (_id, _step, -1, _note::json, (_wait->>'children')::int, _at)
      on conflict (job_id, name, place) do update
        set value = excluded.value, remaining = known.remaining + excluded.remaining
      returning remaining into _remaining;
    _is_over := _remaining = 0;
  else
    if _event is not null then
      -- A new statement under the lock of the event. An event for this job precedes one for all jobs.
      select e.payload into _payload from {schema}.events e
        where e.name = _event and e.job_id in (0, _id) order by e.job_id desc limit 1;
    end if;
    insert into {schema}.steps as known (job_id, name, place, value, until, at)
      values (_id, _step, 0, _payload, _until, _at)
      on conflict (job_id, name, place) do update
        set value = coalesce(known.value, case when known.error is null then excluded.value end)
      returning until, value is not null into _until, _is_over;
  end if;
  update {schema}.live j
    set run_at = case when _is_over then _at else least(coalesce(_until, _never), _never) end,
        attempts = least((_wait->>'attempts')::int, j.max_attempts), resets = 0,
        waits_for = case when _note is not null then 'children:' || _step when _event is not null then 'event:' || _event
                         else 'time:' || _step end
    where j.id = _id;
  if _is_over then perform {schema}.wake(); end if;
end $$;

-- Emit an event: jobs that wait for it go on when this transaction commits. `job_id`: only this job; NULL: all. Return
-- true for the first event with this name, which is the only one that counts.
create or replace function {schema}.emit_event(
  name text, payload json default null, job_id bigint default null, _now timestamptz default null
) returns boolean
language plpgsql {definer} as $$
#variable_conflict use_column
begin
  perform {schema}.check_name('The name of an event', coalesce(emit_event.name, ''), 200, '22023');
  if octet_length(payload::text) > 1048576 then
    raise exception 'The payload of an event has at most 1 MiB.' using errcode = '22023';
  end if;
  insert into {schema}.events (name, job_id, payload, at)
    values (emit_event.name, coalesce(emit_event.job_id, 0), coalesce(emit_event.payload, 'null'), {schema}.at(_now))
    on conflict do nothing;
  return found;
end $$;

-- The same for callers of any driver: JSON in, 'true' or 'false' out.
create or replace function {schema}.emit_text(_event text) returns text
language sql {definer} as $$
  select {schema}.emit_event(e->>'name', (e->>'payload')::json, (e->>'job_id')::bigint, (e->>'now')::timestamptz)::text
  from (select _event::json as e) given
$$;

-- Wake the jobs that wait for an event, in the commit of its emitter (a deferred trigger). A prepared transaction holds
-- the lock of the event until COMMIT PREPARED; settlements that start to wait for it wait for that.
create or replace function {schema}.wake_waiting() returns trigger
language plpgsql {definer} {index_plans} as $$
declare
  _waiting bigint[];
begin
  perform pg_advisory_xact_lock({schema}.event_lock(new.name));
  -- A new statement under the lock: it sees every job that has started to wait.
  _waiting := array(
    select j.id from {schema}.live j
    where j.waits_for = 'event:' || new.name and j.waits_for is not null and j.state = 'queued'
      and (new.job_id = 0 or j.id = new.job_id)
    order by j.id for update);
  if cardinality(_waiting) = 0 then return null; end if;
  update {schema}.steps s set value = new.payload
    where s.job_id = any(_waiting) and s.place = 0 and s.value is null and s.error is null
      and (s.name = 'event:' || new.name or starts_with(s.name, 'event:' || new.name || '#'));
  update {schema}.live j set run_at = new.at where j.id = any(_waiting) and j.run_at > new.at;
  perform {schema}.wake();
  return null;
end $$;

do $$
begin
  if exists (select from pg_catalog.pg_trigger t where t.tgrelid = {events_text}::regclass and t.tgname = 'wake_waiting') then
    return;
  end if;
  create constraint trigger wake_waiting after insert on {schema}.events deferrable initially deferred
    for each row execute function {schema}.wake_waiting();
end $$;

-- Record the ends of jobs in the steps of their parents. `_values`: the results of completed jobs; NULL: the job has
-- failed or was canceled, with its error. The rows of the jobs are locked and still in `live`. The last child to end wakes
-- its parent. A job that was recorded as failed before, and has been retried, changes only its row.
create or replace function {schema}.end_children(_ids bigint[], _values json[], _errors text[], _at timestamptz) returns void
language plpgsql {index_plans} as $$
declare
  _parents bigint[];
  _names text[];
  _awake bigint[];
begin
  -- While no job has a parent, this query is the only cost of children.
  if not exists (select from {schema}.live j where j.parent_id is not null) then return; end if;
  select array_agg(p.parent_id), array_agg(p.parent_step) into _parents, _names from (
    select distinct j.parent_id, j.parent_step
    from unnest(_ids) as u(id) cross join lateral (
      select l.parent_id, l.parent_step from {schema}.live l where l.id = u.id offset 0) j  -- not by live_children
    where j.parent_step is not null order by 1, 2) p;
  if _parents is null then return; end if;
  perform from {schema}.steps s
    where s.place = -1 and (s.job_id, s.name) in (select p.id, p.name from unnest(_parents, _names) as p(id, name))
    order by s.job_id, s.name for update;
  -- A new statement under the locks.
  with ended as (
    insert into {schema}.steps as known (job_id, name, place, value, error, at)
      select j.parent_id, j.parent_step, j.parent_place, u.value, case when u.value is null then coalesce(u.error, 'canceled') end,
        _at
      from unnest(_ids, _values, _errors) as u(id, value, error) cross join lateral (
        select l.parent_id, l.parent_step, l.parent_place from {schema}.live l where l.id = u.id offset 0) j
      where j.parent_step is not null and exists (
        select from {schema}.steps h where h.job_id = j.parent_id and h.name = j.parent_step and h.place = -1)
      on conflict (job_id, name, place) do update set value = excluded.value, error = null
        where known.value is null and excluded.value is not null
      returning job_id, name, xmax = 0 as is_new
  ), counted as (
    select e.job_id, e.name, count(*) filter (where e.is_new)::int as number from ended e group by e.job_id, e.name
  )
  update {schema}.steps s set remaining = s.remaining - c.number
    from counted c where s.job_id = c.job_id and s.name = c.name and s.place = -1 and c.number > 0;
  _awake := array(
    select j.id from {schema}.live j
    where j.id = any(_parents) and j.state = 'queued' and exists (
      select from unnest(_parents, _names) as p(id, name) join {schema}.steps s
        on s.job_id = p.id and s.name = p.name and s.place = -1 and s.remaining = 0
      where p.id = j.id and j.waits_for = 'children:' || p.name)
    order by j.id for update);
  update {schema}.live j set run_at = _at where j.id = any(_awake) and j.run_at > _at;
  if cardinality(_awake) > 0 then perform {schema}.wake(); end if;
end $$;

-- The same for jobs that have just failed permanently.
create or replace function {schema}.end_failed(_ids bigint[], _at timestamptz) returns void
language plpgsql {index_plans} as $$
begin
  if not exists (select from {schema}.live j where j.parent_id is not null) then return; end if;
  perform {schema}.end_children(array_agg(j.id), null, array_agg(coalesce(nullif(j.last_error, ''), 'failed')), _at)
    from {schema}.live j where j.id = any(_ids) and j.state = 'failed' having count(*) > 0;
end $$;

-- Cancel the unfinished children of these jobs, and theirs: waiting ones at once, running ones by a request. Descendants
-- have higher ids than their ancestors, and are locked first. `_skips`: leave out rows that another transaction has
-- locked, because the caller has locked the parents already.
create or replace function {schema}.cancel_children(
  _parents bigint[], _keep boolean, _at timestamptz, _skips boolean default false
) returns void
language plpgsql {index_plans} as $$
declare
  _ids bigint[];
  _waiting bigint[];
begin
  if not exists (select from {schema}.live j where j.parent_id = any(_parents) and j.parent_id is not null) then return; end if;
  _ids := array(
    with recursive family as (
      select j.id from {schema}.live j where j.parent_id = any(_parents) and j.parent_id is not null
      union
      select c.id from family f cross join lateral (
        select j.id from {schema}.live j where j.parent_id = f.id and j.parent_id is not null offset 0) c)
    select f.id from family f);
  if _skips then
    _ids := array(select j.id from {schema}.live j where j.id = any(_ids) order by j.id desc for update skip locked);
  else
    perform from {schema}.live j where j.id = any(_ids) order by j.id desc for update;
  end if;
  update {schema}.live j set cancel_requested = true where j.id = any(_ids) and j.state = 'processing';
  _waiting := array(select j.id from {schema}.live j where j.id = any(_ids) and j.state in ('queued', 'errored'));
  perform {schema}.forget_periods(_waiting);
  perform {schema}.bury(array_agg(
      row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, 'its parent was canceled',
          null, null, null, null)::{schema}.verdict), _keep, _at)
    from {schema}.live j where j.id = any(_waiting) having count(*) > 0;
  perform {schema}.wake();
end $$;

-- Let the failed children of these jobs be created anew: an administrator has set their attempts to 0.
create or replace function {schema}.retry_children(_ids bigint[]) returns void
language sql as $$
  update {schema}.steps s set value = (s.value::jsonb || '{"attempts": -1}')::json
    where s.job_id = any(_ids) and s.place = -1
$$;

-- Enqueue children without keys and further options. The arguments after `_places` are as in `enqueue_many`.
create or replace function {schema}.enqueue_children(
  _parent bigint, _step text, _places int[],
  _tasks text[], _payloads json[], _serials text[], _run_ats timestamptz[], _delays double precision[],
  _max_attempts int[], _priorities int[], _flags json[], _max_resets int[], _queues text[] default null,
  _now timestamptz default null
) returns void
language plpgsql {definer} as $$
declare
  _at timestamptz := case when _now is null then now() else {schema}.pinned(_now) end;
  _are_declared boolean := exists (select from {schema}.task_queues);
begin
  perform {schema}.refuse_reserved(r.task) from unnest({reserved}) as r(task) where r.task = any(_tasks);
  insert into {schema}.live (task, payload, serial, run_at, max_attempts, priority, flags, max_resets, queue,
                             created_at, updated_at, parent_id, parent_step, parent_place)
  select j.task, j.payload, j.serial, coalesce(j.run_at, _at + j.delay * interval '1 second', _at),
         coalesce(j.max_attempts, {max_attempts}), coalesce(j.priority, 0),
         case when j.flags is not null then array(select json_array_elements_text(j.flags)) end,
         j.max_resets,
         nullif(coalesce(j.queue, case when _are_declared then {schema}.declared_queue(j.task) end), 'default'),
         _at, _at, _parent, _step, j.place
  from unnest(_places, _tasks, _payloads, _serials, _run_ats, _delays, _max_attempts, _priorities, _flags, _max_resets, _queues)
    as j(place, task, payload, serial, run_at, delay, max_attempts, priority, flags, max_resets, queue);
  perform {schema}.wake();
end $$;

-- Make jobs that were just enqueued the children of a job.
create or replace function {schema}.adopt(_parent bigint, _step text, _places int[], _ids bigint[]) returns void
language sql {definer} as $$
  update {schema}.live j set parent_id = _parent, parent_step = _step, parent_place = c.place
    from unnest(_ids, _places) as c(id, place) where j.id = c.id and j.parent_id is null
$$;

-- Enqueue a copy of a job, with the steps that were recorded before this one; pending waits are not copied, nor steps with
-- unfinished children. Its epoch is that of a claimed job, so that its
-- worker reads the steps. Return NULL without such a job; raise an error without such a step.
create or replace function {schema}.fork_job(_id bigint, _step text, _now timestamptz default null) returns bigint
language plpgsql {definer} {index_plans} set lock_timeout = '5s' as $$
declare
  _at timestamptz := {schema}.at(_now);
  _first bigint;
  _fork bigint;
begin
  if not exists (select from {schema}.live j where j.id = _id) and not exists (
    select from {schema}.history h where h.id = _id) then return null; end if;
  select min(s.seq) into _first from {schema}.steps s where s.job_id = _id and s.name = _step;
  if _first is null then
    raise exception 'Job % has recorded no step %.', _id, to_json(_step) using errcode = '22023';
  end if;
  insert into {schema}.live (task, payload, {details}, run_at, epoch, created_at, updated_at)
    select o.* from (
      select j.task, j.payload, {details_of_job}, _at, 1, _at, _at from {schema}.live j where j.id = _id
      union all
      select h.task, h.payload, {details_of_past}, _at, 1, _at, _at from {schema}.history h where h.id = _id) o limit 1
    returning id into _fork;
  insert into {schema}.steps (job_id, name, place, value, error, until, remaining, epoch, at)
    select _fork, s.name, s.place, s.value, s.error, s.until, s.remaining, s.epoch, s.at from {schema}.steps s
    where s.job_id = _id and (s.value is not null or s.error is not null or s.until <= _at) and s.name in (
      select f.name from {schema}.steps f where f.job_id = _id
      group by f.name having min(f.seq) < _first and coalesce(max(f.remaining), 0) = 0)
    order by s.seq;
  perform {schema}.wake();
  return _fork;
end $$;

-- Delete the steps of jobs that are neither live nor in the history: of at most `_limit` jobs, from a random one if there
-- are more. Delete old events.
create or replace function {schema}.prune_steps(_limit int, _at timestamptz) returns void
language plpgsql as $$
declare
  _from bigint := 0;
  _known bigint[];
begin
  delete from {schema}.events e where e.ctid = any(array(
    select o.ctid from {schema}.events o where o.at < _at - interval '30 days' order by o.at limit 20000
    for update skip locked));
  if (select count(*) from (select from {schema}.steps s limit _limit) s) = _limit then
    select min(s.job_id) + (random() * (max(s.job_id) - min(s.job_id)))::bigint - 1 into _from from {schema}.steps s;
  end if;
  with recursive known as (
    (select s.job_id from {schema}.steps s where s.job_id > _from order by s.job_id limit 1)
    union all
    select n.job_id from known k cross join lateral (
      select s.job_id from {schema}.steps s where s.job_id > k.job_id order by s.job_id limit 1) n
  )
  select array_agg(k.job_id) into _known from (select w.job_id from known w limit _limit) k
    where not exists (select from {schema}.live j where j.id = k.job_id)
      and not exists (select from {schema}.history h where h.id = k.job_id);
  delete from {schema}.steps s where s.job_id = any(_known);
end $$;
