-- breaking
-- Claiming. Every function here carries its own planner settings: right after a burst the table has no statistics, and
-- without them the planner sorts or hashes the whole of it for each claim (measured: 9k instead of 60k jobs/s).
--
-- The settings do not choose the order of a join. Where statistics say that `live` is empty (they were taken when a
-- burst had just been worked off), the planner would walk all of it for each batch and compare: 1k jobs/s. So, here and
-- in the files that follow, `live` is never joined: rows are found by `id = any(…)`, or one by one in a lateral
-- subquery with `offset 0`, which the planner cannot turn round.
--
-- Named queues. The row in `queues` is the lock: it is taken before a job of the queue is chosen, and it is held until
-- that job leaves processing. (SKIP LOCKED on jobs alone is not serial; measured.) Producers never touch it. To find the
-- next queue without walking millions of jobs behind busy ones:
--   * every row that is written as waiting in a queue is a `scout`, in an index ordered as claims are;
--   * a claim that passes many scouts of a queue that is held absorbs them: they are scouts no more, and the queue's
--     row says `absorbed`. This happens under the lock of that row;
--   * whoever frees an absorbed queue computes, in a new statement under that lock, its hint: the place in the order of
--     its first due job, or of its earliest one. A claim walks scouts and hints merged.
-- So a free queue's waiting job is either a scout, or its queue's hint is no later than that job is due.

create type {schema}.queue_heads as (heads bigint[], names text[], unfinished boolean);

-- The first due job of an absorbed queue, else its earliest. Priorities are visited one by one, so that a million jobs
-- which are not due cost one step.
create function {schema}.refresh_hint(_name text, _at timestamptz) returns void
language plpgsql as $$
declare
  _best record;
  _next record;
  _after int;
begin
  select null::int as priority, null::timestamptz as run_at, null::bigint as id into _best;
  loop
    select j.priority, j.run_at, j.id into _next from {schema}.live j
      where j.queue = _name and j.state in ('queued', 'errored') and j.queue is not null and j.resets < 2
        and j.priority >= coalesce(_after, -2147483648)
      order by j.queue, j.priority, j.run_at, j.id limit 1;
    exit when not found;
    if _best.id is null or _next.run_at <= _at or _next.run_at < _best.run_at then _best := _next; end if;
    exit when _next.run_at <= _at;
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  update {schema}.queues q
    set absorbed = _best.id is not null,
        hint_priority = _best.priority, hint_run_at = _best.run_at, hint_id = _best.id
    where q.name = _name and q.holder_id is null
      and (q.hint_id is distinct from _best.id or q.hint_run_at is distinct from _best.run_at
           or q.hint_priority is distinct from _best.priority or q.absorbed <> (_best.id is not null));
end $$;

-- Scouts of queues that are held, or about to be by this very claim, are scouts no more.
create function {schema}.absorb(_scouts bigint[], _taken text[]) returns void
language plpgsql as $$
declare
  _locked text[];
begin
  _locked := array(
    select q.name from {schema}.queues q
    where q.name in (select distinct j.queue from {schema}.live j where j.id = any(_scouts))
      and (q.holder_id is not null or q.name = any(_taken))
    for update skip locked);
  update {schema}.queues q set absorbed = true where q.name = any(_locked) and not q.absorbed;
  update {schema}.live j set scout = false where j.id = any(array(
    select w.id from {schema}.live w
    where w.id = any(_scouts) and w.queue = any(_locked) and w.scout and w.state in ('queued', 'errored')
    for update skip locked));
end $$;

-- Lock a queue's row if it is free: 'free' (ours now), 'held' (a job of it is processing), 'locked' (by somebody else).
create function {schema}.open_queue(_name text) returns text
language plpgsql as $$
declare
  _held boolean;
begin
  perform from {schema}.queues q where q.name = _name and q.holder_id is null for update skip locked;
  if found then return 'free'; end if;
  select q.holder_id is not null into _held from {schema}.queues q where q.name = _name;
  if not found then
    -- First use. The try-lock keeps two claims from waiting for each other's row, or for ever in a circle.
    if not pg_try_advisory_xact_lock(hashtextextended({channel} || _name, 1)) then return 'locked'; end if;
    insert into {schema}.queues (name) values (_name) on conflict do nothing;
  elsif _held then
    return 'held';
  end if;
  perform from {schema}.queues q where q.name = _name and q.holder_id is null for update skip locked;
  return case when found then 'free' else 'locked' end;
end $$;

-- At most one job of each free queue, at most `_limit`, and none that comes after `_bound_*` in the order.
-- The rows in `queues` of those found stay locked until commit. `unfinished`: the walk was cut short, ask again.
create function {schema}.pick_heads(
  _limit int, _tasks text[], _forbidden text[], _at timestamptz,
  _bound_priority int, _bound_run_at timestamptz, _bound_id bigint,
  out heads bigint[], out names text[], out unfinished boolean
)
language plpgsql as $$
declare
  _began timestamptz := clock_timestamp();
  _held text[] := '{}';
  _dull text[] := '{}';
  _passed bigint[] := '{}';
  _place record;
  _head bigint;
  _seen int;
  _page int := least(greatest(_limit, 10) * 2, 1000);
begin
  heads := '{}'; names := '{}'; unfinished := false;
  select -2147483648 as priority, '-infinity'::timestamptz as run_at, 0::bigint as id into _place;
  loop
    _seen := 0;
    for _place in
      -- Two short ordered scans, merged by a sort of what they gave: over the union itself the planner sorts all of it.
      select m.* from (
        (select j.priority, j.run_at, j.id, j.queue, true as scout from {schema}.live j
          where j.scout and j.state in ('queued', 'errored') and j.resets < 2 and j.run_at <= _at
            and (_tasks is null or j.task = any(_tasks))
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
            and (j.priority, j.run_at, j.id) > (_place.priority, _place.run_at, _place.id)
          order by j.priority, j.run_at, j.id limit _page)
        union all
        (select q.hint_priority, q.hint_run_at, q.hint_id, q.name, false from {schema}.queues q
          where q.hint_run_at is not null and q.hint_run_at <= _at
            and (q.hint_priority, q.hint_run_at, q.hint_id) > (_place.priority, _place.run_at, _place.id)
          order by q.hint_priority, q.hint_run_at, q.hint_id limit _page)
      ) m order by m.priority, m.run_at, m.id limit _page
    loop
      _seen := _seen + 1;
      if (_place.priority, _place.run_at, _place.id) > (_bound_priority, _bound_run_at, _bound_id) then
        _seen := 0;
        exit;
      end if;
      continue when _place.queue = any(_dull);
      if not (_place.queue = any(names) or _place.queue = any(_held)) then
        case {schema}.open_queue(_place.queue)
        when 'held' then
          _held := _held || _place.queue;
        when 'locked' then
          _dull := _dull || _place.queue;
          continue;
        else
          -- Only now, in a statement of its own: what the queue's last holder has committed must be seen.
          select j.id into _head from {schema}.live j
            where j.queue = _place.queue and j.state in ('queued', 'errored') and j.queue is not null
              and j.resets < 2 and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))
              and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
            order by j.queue, j.priority, j.run_at, j.id limit 1 for update skip locked;
          if found then
            heads := heads || _head;
            names := names || _place.queue;
            exit when cardinality(heads) >= _limit;
          else
            _dull := _dull || _place.queue;
            if not _place.scout then perform {schema}.refresh_hint(_place.queue, _at); end if;
          end if;
          continue;
        end case;
      end if;
      if _place.scout then _passed := _passed || _place.id; end if;
    end loop;
    -- A few are cheaper to pass again than to write.
    if cardinality(_passed) > 50 then
      perform {schema}.absorb(_passed, names);
      _passed := '{}';
      exit when cardinality(heads) > 0 or _bound_id is not null;
    end if;
    exit when _seen < _page or cardinality(heads) >= _limit;
    _page := 1000;
    if clock_timestamp() > _began + interval '250 milliseconds' then
      unfinished := cardinality(heads) = 0;
      exit;
    end if;
  end loop;
end $$;

-- Jobs whose workers died twice or more: few, so they are looked at one by one.
create function {schema}.pick_suspects(
  _limit int, _tasks text[], _forbidden text[], _at timestamptz, out heads bigint[], out names text[]
)
language plpgsql as $$
declare
  _job record;
begin
  heads := '{}'; names := '{}';
  for _job in
    select j.id, j.queue from {schema}.live j
    where j.state in ('queued', 'errored') and j.resets >= 2 and j.run_at <= _at
      and (_tasks is null or j.task = any(_tasks))
      and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
    order by j.priority, j.run_at, j.id
  loop
    continue when _job.queue is not null
      and (_job.queue = any(names) or {schema}.open_queue(_job.queue) <> 'free');
    perform from {schema}.live j where j.id = _job.id and j.state in ('queued', 'errored') for update skip locked;
    continue when not found;
    heads := heads || _job.id;
    if _job.queue is not null then names := names || _job.queue; end if;
    exit when cardinality(heads) >= _limit;
  end loop;
end $$;

-- Due jobs in the order (priority, run_at, id), now processing under `_token`. A row with id 0 says: nothing yet, but
-- the walk was cut short, so ask again. `_after_*`: start behind this place in the order (jobs without a queue only).
create function {schema}.claim(
  _worker text, _token uuid, _limit int, _lease double precision, _tasks text[], _forbidden text[],
  _suspects boolean, _now timestamptz default null,
  _after_priority int default null, _after_run_at timestamptz default null, _after_id bigint default null
) returns table (
  id bigint, task text, payload text, queue text, priority int, run_at timestamptz, attempts int, max_attempts int,
  resets int, max_resets int, key text, flags text[], last_error text, revision int, created_at timestamptz,
  updated_at timestamptz, epoch bigint, started_at timestamptz
)
language plpgsql {pinned_path} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _picked bigint[] := '{}';
  _in_queues {schema}.queue_heads;
  _last record;
begin
  -- Shared with other claims, exclusive with `abandon` of this token: either it sees our jobs, or we see its mark.
  perform pg_advisory_xact_lock_shared(uuid_hash_extended(_token, 0));
  if exists (select from {schema}.dead_tokens d where d.token = _token) then return; end if;
  if _suspects then
    select p.heads, p.names, false into _in_queues
      from {schema}.pick_suspects(_limit, _tasks, _forbidden, _at) p;
    _picked := _in_queues.heads;
  else
    if _after_id is null then
      _picked := array(
        select j.id from {schema}.live j
        where j.state in ('queued', 'errored') and j.queue is null and j.resets < 2 and j.run_at <= _at
          and (_tasks is null or j.task = any(_tasks))
          and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
        order by j.priority, j.run_at, j.id limit _limit for update skip locked);
    else
      _picked := array(
        select j.id from {schema}.live j
        where j.state in ('queued', 'errored') and j.queue is null and j.resets < 2 and j.run_at <= _at
          and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
          and (_tasks is null or j.task = any(_tasks))
          and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
        order by j.priority, j.run_at, j.id limit _limit for update skip locked);
    end if;
    -- With no job in any named queue, this question is all that queues cost.
    if exists (select from {schema}.live j
               where j.scout and j.state in ('queued', 'errored') and j.resets < 2 and j.run_at <= _at)
       or exists (select from {schema}.queues q where q.hint_run_at is not null and q.hint_run_at <= _at) then
      select null::int as priority, null::timestamptz as run_at, null::bigint as id into _last;
      if cardinality(_picked) >= _limit then
        select j.priority, j.run_at, j.id into _last from {schema}.live j where j.id = _picked[_limit];
      end if;
      select p.heads, p.names, p.unfinished into _in_queues from {schema}.pick_heads(
        _limit, _tasks, _forbidden, _at, _last.priority, _last.run_at, _last.id) p;
      if cardinality(_in_queues.heads) > 0 then
        _picked := array(
          select j.id from {schema}.live j where j.id = any(_picked || _in_queues.heads)
          order by j.priority, j.run_at, j.id limit _limit);
      elsif _in_queues.unfinished and cardinality(_picked) = 0 then
        id := 0;
        return next;
        return;
      end if;
    end if;
  end if;
  if cardinality(_picked) = 0 then return; end if;

  return query
  update {schema}.live j
    set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
        token = _token, settled_token = null, worker = _worker,
        lease_until = _at + _lease * interval '1 second', started_at = _at, scout = false
    where j.id = any(_picked)
    returning j.id, j.task, j.payload::text, j.queue, j.priority, j.run_at, j.attempts, j.max_attempts, j.resets,
      j.max_resets, j.key, j.flags, j.last_error, j.revision, j.created_at, j.updated_at, j.epoch,
      j.started_at;

  if cardinality(_in_queues.names) > 0 then
    perform {schema}.hold_queues(_in_queues.heads, _picked, _token, _at);
  end if;
  if not exists (select from {schema}.live j where j.id = any(_in_queues.heads) and j.queue is not null
                 and j.token = _token) then
    -- A claim lost in a crash of the server leaves its jobs queued, which is safe; but a queue held twice is not.
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

-- The queues of the heads that were picked are held; the others, whose rows this claim had locked, are free again.
create function {schema}.hold_queues(_heads bigint[], _picked bigint[], _token uuid, _at timestamptz) returns void
language plpgsql as $$
declare
  _job record;
  _left text;
begin
  for _job in
    select j.id, j.queue from {schema}.live j
    where j.id = any(_heads) and j.id = any(_picked) and j.queue is not null
  loop
    update {schema}.queues q
      set holder_id = _job.id, holder_token = _token, hint_priority = null, hint_run_at = null, hint_id = null
      where q.name = _job.queue;
  end loop;
  for _left in
    select q.name from {schema}.live j cross join lateral (
      select w.name, w.holder_id, w.absorbed from {schema}.queues w where w.name = j.queue offset 0) q
    where j.id = any(_heads) and not j.id = any(_picked) and q.holder_id is null and q.absorbed
  loop
    perform {schema}.refresh_hint(_left, _at);
  end loop;
end $$;
