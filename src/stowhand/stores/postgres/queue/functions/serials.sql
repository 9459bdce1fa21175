-- Keys: jobs with the same serial key run one at a time, in order; of a limit with keys, a limited number (limits.sql). The
-- name of such a key contains a tab, which no serial key does.
--
-- Each key has a row in `limit_keys`, which a claim locks before it chooses a job of the key. Then a later statement reads
-- whether a job of the key is processing: it has the slot of the key (`live.key_slot`), which a unique index keeps for one
-- job. So whatever ends `processing` frees the key in the same write, also a DELETE by hand. (SKIP LOCKED on the jobs alone
-- does not keep the order, as measured.) An enqueue does not touch the row. No job of a paused key is claimed (operate.sql).
--
-- A claim must find the next free key without reading millions of waiting jobs of held keys:
--   * A waiting job with a serial key is a scout, unless it is absorbed. The index live_scouts has all scouts, in the
--     order of claims: priority, run_at, id. A place is a position in this order.
--   * If a claim passes many scouts without taking a job, and there are few keys, it goes from key to key instead
--     (`walk_names`).
--   * If there are many keys, the claim absorbs the scouts of held keys: it marks the jobs, and the row of their key,
--     as `absorbed`, under the lock of that row. So later claims do not read them. A job stays absorbed until its
--     serial key or its state changes.
--   * A transaction that frees an absorbed key computes its hint, in a new statement under the same lock: the place of
--     the key's first due job, or of its earliest one if none is due. A claim merges scouts and hints.
-- So each waiting job of a free key is found in time: it is a scout, or its key has a hint that is no later than the
-- time at which the job is due. After a change by hand, maintenance restores the hint (`restore_hints`).
--
-- Parameters of most functions: `_tasks`, the tasks to claim (NULL: all); `_forbidden`, flags that a job may not have;
-- `_queues` and `_excluded`, see `takes` (claim.sql); `_at`, the store's time. Nothing here raises an error of its own.

-- Return whether a serial key is held: a job of it is processing, or it is paused.
create or replace function {schema}.is_held(_name text) returns boolean
language sql stable as $$
  select exists (select from {schema}.live j where j.serial = _name and j.key_slot is not null and j.worker is not null)
    or exists (select from {schema}.limit_keys q where q.name = _name and q.paused_at is not null)
$$;

-- Make a job a scout again when its serial key or state changes. It is a trigger, because any statement may change
-- them, also one of a user. BEFORE triggers run in the order of their names: zz_absorbed sees what the others changed.
create or replace function {schema}.reset_absorbed() returns trigger
language plpgsql as $$
begin
  new.absorbed := false;
  return new;
end $$;

do $$
begin
  if exists (select from pg_catalog.pg_trigger t where t.tgrelid = {live_text}::regclass and t.tgname = 'zz_absorbed') then
    return;
  end if;
  create trigger zz_absorbed before update of serial, state on {schema}.live for each row
    when (new.absorbed and old.absorbed and (new.state <> old.state or new.serial is distinct from old.serial))
    execute function {schema}.reset_absorbed();
end $$;

-- Return the place of the first due job of a serial key after `_after`, of these tasks; if none is due, of the earliest
-- one. Tasks and priorities are visited one by one, each by one step in an index. So a million jobs of another task, or
-- a million jobs of one priority that are not due, cost one step.
create or replace function {schema}.serial_head(
  _name text, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz, _after {schema}.place default null
) returns {schema}.place
language plpgsql as $$
declare
  _task text := '';
  _only boolean := cardinality(_tasks) is not distinct from 1;
  _from {schema}.place;
  _next {schema}.place;
  _best {schema}.place;
begin
  loop
    if _only then
      _task := _tasks[1];
    else
      select j.task into _task from {schema}.live j
        where j.serial = _name and j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
          and j.task > _task
        order by j.serial, j.task, j.priority, j.run_at, j.id limit 1;
      exit when not found;
      continue when _tasks is not null and (_task = any(_tasks)) is not true;
    end if;
    _from := coalesce(_after, (-2147483648, '-infinity', 0)::{schema}.place);
    loop
      select j.priority, j.run_at, j.id into _next from {schema}.live j
        where j.serial = _name and j.task = _task
          and j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
          and (j.priority, j.run_at, j.id) > (_from.priority, _from.run_at, _from.id)
          and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          and {schema}.takes(_queues, _excluded, j.queue)
        order by j.serial, j.task, j.priority, j.run_at, j.id limit 1;
      exit when not found;
      -- This is the earliest job of its priority. If it is due, no job of a later priority precedes it.
      if _next.run_at <= _at then
        if _best.id is null or _best.run_at > _at
            or (_next.priority, _next.run_at, _next.id) < (_best.priority, _best.run_at, _best.id) then
          _best := _next;
        end if;
        exit;
      end if;
      if _best.id is null or _next.run_at < _best.run_at and _best.run_at > _at then _best := _next; end if;
      -- The other jobs of this priority are not due either, so go on behind them.
      _from := (_next.priority, 'infinity', 9223372036854775807)::{schema}.place;
    end loop;
    exit when _only;
  end loop;
  return _best;
end $$;

-- Return the place of a key of a limit in the order of claims. It is that of its first job, or, if the keys take turns and
-- this is later, that of its last claim. A time in the future, which a clock that was set back leaves, would hide the key.
create or replace function {schema}.key_place(_name text, _first {schema}.place, _at timestamptz) returns {schema}.place
language sql stable as $$
  select coalesce((
    select row(_first.priority, least(q.served_at, _at), q.turn)::{schema}.place from {schema}.limit_keys q
    where q.name = _name and q.served_at >= _first.run_at and _at >= _first.run_at), _first)
$$;

-- Compute the hint of a free key anew. A row that would not change is not written. The caller has locked the row.
create or replace function {schema}.refresh_hint(_name text, _at timestamptz) returns void
language plpgsql as $$
declare
  _opens_at timestamptz := {schema}.key_opens_at(_name, _at);
  _best {schema}.place;
begin
  if _opens_at = 'infinity' then
    update {schema}.limit_keys q set hint_priority = null, hint_run_at = null, hint_id = null
      where q.name = _name and q.hint_run_at is not null;
    return;
  end if;
  _best := {schema}.serial_head(_name, null, null, null, null, _at);
  if _best.run_at < _opens_at then _best.run_at := _opens_at; end if;
  if position(E'\t' in _name) > 0 and _best.id is not null then _best := {schema}.key_place(_name, _best, _at); end if;
  update {schema}.limit_keys q
    set absorbed = _best.id is not null,
        hint_priority = _best.priority, hint_run_at = _best.run_at, hint_id = _best.id
    where q.name = _name
      and (q.hint_id is distinct from _best.id or q.hint_run_at is distinct from _best.run_at
           or q.hint_priority is distinct from _best.priority or q.absorbed <> (_best.id is not null));
end $$;

-- Absorb these scouts, as far as their keys are held or are among `_taken`, which this claim is about to hold. Keys
-- and jobs that another transaction has locked are left out: they stay scouts, and a later claim may absorb them.
create or replace function {schema}.absorb(_scouts bigint[], _taken text[], _at timestamptz) returns void
language plpgsql as $$
declare
  _locked text[];
begin
  _locked := array(
    select q.name from {schema}.limit_keys q
    where q.name in (select distinct j.serial from {schema}.live j where j.id = any(_scouts))
    for update skip locked);
  -- A new statement under the locks: a key that was freed meanwhile keeps its scouts.
  _locked := array(select n.name from unnest(_locked) as n(name) where n.name = any(_taken) or {schema}.key_opens_at(n.name, _at) is not null);
  update {schema}.limit_keys q set absorbed = true where q.name = any(_locked) and not q.absorbed;
  update {schema}.live u set absorbed = true where u.id = any(array(
    select j.id from {schema}.live j
    where j.id = any(_scouts) and j.serial = any(_locked) and {scout}
    for update skip locked));
end $$;

-- Lock the row of a key if the key is free; create a missing row. Return 'free' (this transaction has locked the row),
-- 'held' (a job of the key is processing, or the key is paused) or 'locked' (by another transaction).
create or replace function {schema}.open_serial(_name text, _at timestamptz) returns text
language plpgsql as $$
begin
  -- A key that is held is not locked, since a claim may meet a hundred of them.
  if {schema}.key_opens_at(_name, _at) is not null then return 'held'; end if;
  perform from {schema}.limit_keys q where q.name = _name for update skip locked;
  if not found and cardinality({schema}.lock_keys(array[_name])) = 0 then return 'locked'; end if;
  -- A new statement under the lock: it sees every claim that has held the lock before.
  return case when {schema}.key_opens_at(_name, _at) is null then 'free' else 'held' end;
end $$;

-- Lock and return the head, the first due job, of a serial key whose row this claim has locked. Return NULL if the key
-- has no job for this claim.
create or replace function {schema}.take_head(
  _name text, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz
) returns bigint
language plpgsql as $$
declare
  _head bigint;
  _place {schema}.place;
begin
  -- Since the key's row was locked, new statements are used: they see what the last holder of the key has committed.
  -- The first of them serves the usual case: all jobs of the key are of one task, and its first job is due. The task is
  -- the only one if the first and the last job by task have the same. (`resets + 0`: the job is found by its id, see
  -- claim.sql.)
  select j.id into _head from {schema}.live j
    where j.id = (
        select f.id from (
          select l.id, l.task from {schema}.live l
          where l.serial = _name and l.state in ('queued', 'errored') and l.serial is not null and l.resets < 2
          order by l.serial, l.task, l.priority, l.run_at, l.id limit 1) f
        where f.task = (
          select l.task from {schema}.live l
          where l.serial = _name and l.state in ('queued', 'errored') and l.serial is not null and l.resets < 2
          order by l.serial desc, l.task desc, l.priority desc, l.run_at desc, l.id desc limit 1))
      and j.serial = _name and j.state in ('queued', 'errored') and j.resets + 0 < 2 and j.run_at <= _at
      and (_tasks is null or j.task = any(_tasks))
      and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
      and {schema}.takes(_queues, _excluded, j.queue)
    for update skip locked;
  if found then return _head; end if;
  -- Another transaction may have locked the first jobs, for example to cancel them. So try ten jobs.
  for _ in 1..10 loop
    _place := {schema}.serial_head(_name, _tasks, _forbidden, _queues, _excluded, _at, _place);
    exit when _place.id is null or _place.run_at > _at;
    select j.id into _head from {schema}.live j
      where j.id = _place.id and j.serial = _name and j.state in ('queued', 'errored') and j.resets + 0 < 2
        and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))
        and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
        and {schema}.takes(_queues, _excluded, j.queue)
      for update skip locked;
    if found then return _head; end if;
  end loop;
  return null;
end $$;

-- Return the first serial key after this name that has a waiting job; the first of all if `_name` is NULL. Each case
-- has a query of its own, because a condition that allows both could not be answered by a step in the index.
create or replace function {schema}.next_name(_name text) returns text
language plpgsql as $$
begin
  if _name is null then
    return (select j.serial from {schema}.live j
      where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
      order by j.serial, j.task, j.priority, j.run_at, j.id limit 1);
  end if;
  return (select j.serial from {schema}.live j
    where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2 and j.serial > _name
    order by j.serial, j.task, j.priority, j.run_at, j.id limit 1);
end $$;

-- Return the free serial keys that have a due job up to the bound, in the order of their heads. Keys in `_but` are left
-- out. Return NULL if more than `_most` keys have waiting jobs, free or held: then it costs too much to visit each.
create or replace function {schema}.walk_names(
  _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz, _but text[], _most int,
  _bound_priority int, _bound_run_at timestamptz, _bound_id bigint
) returns text[]
language plpgsql as $$
declare
  _name text;
  _head {schema}.place;
  _names text[] := '{}';
  _heads {schema}.place[] := '{}';
begin
  for _ in 0.._most loop
    _name := {schema}.next_name(_name);
    if _name is null then
      return array(select n.name from unnest(_names, _heads) as n(name, priority, run_at, id)
                   order by n.priority, n.run_at, n.id);
    end if;
    continue when _name = any(_but) or {schema}.key_opens_at(_name, _at) is not null;
    _head := {schema}.serial_head(_name, _tasks, _forbidden, _queues, _excluded, _at);
    continue when _head.id is null or _head.run_at > _at;
    if position(E'\t' in _name) > 0 then _head := {schema}.key_place(_name, _head, _at); end if;
    continue when (_head.priority, _head.run_at, _head.id) > (_bound_priority, _bound_run_at, _bound_id);
    _names := _names || _name;
    _heads := _heads || _head;
  end loop;
  return null;
end $$;

-- Return the heads of free serial keys: at most one job of each key, at most `_limit` in all, and none after the place
-- `_bound_*` (NULL: no bound). Return their keys too, whose rows stay locked until the commit. `unfinished`: the time
-- was up before a job was found, or a key has moved meanwhile, so the caller claims again. `_fair`: tasks whose keys take turns. Scouts of them are parked
-- first (`park`), since a scout has the place of its job and not that of its key. `_without`: limits whose keys are left out.
create or replace function {schema}.pick_heads(
  _limit int, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamptz,
  _bound_priority int, _bound_run_at timestamptz, _bound_id bigint, _fair text[], _without text[],
  out heads bigint[], out names text[], out unfinished boolean
)
language plpgsql as $$
declare
  -- _next is the next scout or hint, which starts a round of at most _page places of its priority. In this round,
  -- _seen places were visited, and _vain of them gave no job. _full: the round had _page places, so there may be more.
  -- _place is the place that the walk has reached.
  --
  -- _held are keys that were found held. _passed are scouts of these keys, and of keys that this claim takes: they may
  -- be absorbed. _dull are keys that need not be tried again: they are locked, or have no job for this claim. _unparked
  -- are scouts of fair tasks that stay scouts, because another transaction has locked them or their keys.
  _began timestamptz := clock_timestamp();
  _page int := 32;
  _seen int;
  _vain int;
  _full boolean;
  _few text[];
  _name text;
  _held text[] := '{}';
  _dull text[] := '{}';
  _passed bigint[] := '{}';
  _unparked bigint[] := '{}';
  _is_parking boolean;
  _has_missed boolean := false;
  _place record;
  _next record;
  _head bigint;
begin
  heads := '{}'; names := '{}'; unfinished := false;
  select -2147483648 as priority, '-infinity'::timestamptz as run_at, 0::bigint as id into _place;
  <<walk>>
  loop
    select m.priority, m.run_at, m.id into _next from (
      (select j.priority, j.run_at, j.id from {schema}.live j
        where {scout}
          and (j.priority, j.run_at, j.id) > (_place.priority, _place.run_at, _place.id)
        order by j.priority, j.run_at, j.id limit 1)
      union all
      (select q.hint_priority, q.hint_run_at, q.hint_id from {schema}.limit_keys q
        where q.hint_run_at is not null
          and (q.hint_priority, q.hint_run_at, q.hint_id) > (_place.priority, _place.run_at, _place.id)
          and (_without is null or split_part(q.name, E'\t', 1) <> all(_without))
        order by q.hint_priority, q.hint_run_at, q.hint_id limit 1)
    ) m order by m.priority, m.run_at, m.id limit 1;
    exit when not found
      or (_next.priority, _next.run_at, _next.id) > (_bound_priority, _bound_run_at, _bound_id);
    _seen := 0;
    _vain := 0;
    _is_parking := false;
    if _next.run_at <= _at then
      for _place in
        -- Two short ordered scans are merged by a sort of their rows. Without a limit in each of them, the planner
        -- would sort all scouts and hints. Whether a job is for this claim (`ours`) is known of a scout, not of a hint.
        select m.* from (
          (select j.priority, j.run_at, j.id, j.serial, true as scout, (_tasks is null or j.task = any(_tasks))
              and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
              and {schema}.takes(_queues, _excluded, j.queue) as ours, j.task = any(_fair) as fair from {schema}.live j
            where {scout}
              and j.priority = _next.priority and j.run_at <= _at and (j.run_at, j.id) >= (_next.run_at, _next.id)
            order by j.priority, j.run_at, j.id limit _page)
          union all
          (select q.hint_priority, q.hint_run_at, q.hint_id, q.name, false, true, false from {schema}.limit_keys q
            where q.hint_run_at is not null and q.hint_priority = _next.priority and q.hint_run_at <= _at
              and (q.hint_run_at, q.hint_id) >= (_next.run_at, _next.id)
              and (_without is null or split_part(q.name, E'\t', 1) <> all(_without))
            order by q.hint_priority, q.hint_run_at, q.hint_id limit _page)
        ) m order by m.priority, m.run_at, m.id limit _page
      loop
        exit walk when (_place.priority, _place.run_at, _place.id) > (_bound_priority, _bound_run_at, _bound_id);
        _seen := _seen + 1;
        _vain := _vain + 1;
        if _place.fair then
          continue when _place.id = any(_unparked);
          _is_parking := true;
          exit;
        end if;
        continue when not _place.ours or _place.serial = any(_dull);
        if not (_place.serial = any(names) or _place.serial = any(_held)) then
          case {schema}.open_serial(_place.serial, _at)
          when 'held' then
            _held := _held || _place.serial;
          when 'locked' then
            _dull := _dull || _place.serial;
            continue;
          else
            -- Since this round was read, another claim may have given the key its turn.
            if _fair is not null and not _place.scout and not exists (
              select from {schema}.limit_keys q where q.name = _place.serial
                and (q.hint_priority, q.hint_run_at, q.hint_id) = (_place.priority, _place.run_at, _place.id))
            then
              _dull := _dull || _place.serial;
              _has_missed := true;
              continue;
            end if;
            _head := {schema}.take_head(_place.serial, _tasks, _forbidden, _queues, _excluded, _at);
            if _head is not null then
              heads := heads || _head;
              names := names || _place.serial;
              exit walk when cardinality(heads) >= _limit;
              _vain := _vain - 1;
            else
              _dull := _dull || _place.serial;
              -- The hint has led to no job. It may be outdated, and later claims would follow it again.
              if not _place.scout then perform {schema}.refresh_hint(_place.serial, _at); end if;
            end if;
            continue;
          end case;
        end if;
        if _place.scout then _passed := _passed || _place.id; end if;
      end loop;
    end if;
    if _is_parking then
      -- Then read again from this place: the hints of the keys are there or behind it.
      _unparked := _unparked || {schema}.park(array(
        select s.id from (
          select j.id, j.task from {schema}.live j
          where {scout}
            and j.priority = _place.priority and j.run_at <= _at and (j.run_at, j.id) >= (_place.run_at, _place.id)
          order by j.priority, j.run_at, j.id limit 400) s
        where s.task = any(_fair) and s.id <> all(_unparked)), _at);
      select _place.priority as priority, _place.run_at as run_at, _place.id - 1 as id into _place;
      unfinished := cardinality(heads) = 0 and clock_timestamp() > _began + interval '250 milliseconds';
      exit when clock_timestamp() > _began + interval '250 milliseconds';
      continue;
    end if;
    _full := _seen = _page;
    -- Most of the round was in vain: go from key to key if there are few keys, otherwise read large pages.
    if _full and _vain > _seen / 2 and _page < 1000 then
      _few := {schema}.walk_names(_tasks, _forbidden, _queues, _excluded, _at, names || _held || _dull, 100,
                                  _bound_priority, _bound_run_at, _bound_id);
      if _few is not null then
        foreach _name in array _few loop
          continue when {schema}.open_serial(_name, _at) <> 'free';
          _head := {schema}.take_head(_name, _tasks, _forbidden, _queues, _excluded, _at);
          continue when _head is null;
          heads := heads || _head;
          names := names || _name;
          exit when cardinality(heads) >= _limit;
        end loop;
        exit;
      end if;
      _page := 1000;
    end if;
    -- Absorb the passed scouts, unless they are few: it costs less to pass a few again than to write them. After these
    -- writes, walk on only if this claim has no job yet.
    if _page = 1000 and cardinality(_passed) > 50 then
      perform {schema}.absorb(_passed, names, _at);
      _passed := '{}';
      exit when cardinality(heads) > 0 or _bound_id is not null;
    end if;
    if not _full then
      -- The other jobs of this priority are not due: go on with the next priority.
      select _next.priority, 'infinity'::timestamptz as run_at, 9223372036854775807 as id into _place;
    elsif _page = 32 then
      _page := least(greatest(_limit, 10) * 2, 1000);
    else
      _page := 1000;
    end if;
    if clock_timestamp() > _began + interval '250 milliseconds' then
      unfinished := cardinality(heads) = 0;
      exit;
    end if;
  end loop;
  if _has_missed and cardinality(heads) = 0 then unfinished := true; end if;
end $$;

-- Update the hints of keys whose jobs this claim has picked. Serial keys are held now. `_heads` are all heads that this claim
-- has locked. It has picked other jobs before some of them: their keys stay free, and need a hint if they are absorbed.
create or replace function {schema}.clear_hints(_heads bigint[], _picked bigint[], _at timestamptz) returns void
language plpgsql as $$
declare
  _left text;
begin
  update {schema}.limit_keys q set hint_priority = null, hint_run_at = null, hint_id = null
    where q.hint_run_at is not null and position(E'\t' in q.name) = 0 and q.name = any(array(
      select j.serial from {schema}.live j where j.id = any(_heads) and j.id = any(_picked) and j.serial is not null));
  for _left in
    select q.name from {schema}.limit_keys q
    where position(E'\t' in q.name) > 0 and q.absorbed and q.name = any(array(
      select j.serial from {schema}.live j where j.id = any(_picked) and j.serial is not null))
  loop
    perform {schema}.refresh_hint(_left, _at);
  end loop;
  for _left in
    select q.name from {schema}.live j cross join lateral (
      select w.name, w.absorbed from {schema}.limit_keys w where w.name = j.serial offset 0) q
    where j.id = any(_heads) and not j.id = any(_picked) and q.absorbed
  loop
    perform {schema}.refresh_hint(_left, _at);
  end loop;
end $$;
