-- Searching, for people: piece by piece in the order of a key, until time is up or enough is found. No question reads a table
-- of millions at one go, and none needs an index of its own.

-- About how many rows a table, or all parts of one, have: as vacuum and analyze saw their pages, for as many pages as there are
-- now. Of what they have not seen yet some pages are counted.
create or replace function {schema}.about_rows(_table regclass) returns bigint
language plpgsql as $$
declare
  _part record;
  _pages numeric;
  _share double precision;
  _here double precision;
  _all double precision := 0;
begin
  for _part in
    select c.oid, n.nspname, c.relname, c.reltuples, c.relpages
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = _table and c.relkind = 'r'
      or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = _table)
  loop
    _pages := pg_relation_size(_part.oid) / current_setting('block_size')::numeric;
    if _part.relpages > 0 and _part.reltuples >= 0 then
      _all := _all + _part.reltuples / _part.relpages * _pages;
    elsif _pages > 0 then
      _share := {schema}.share_of(pg_relation_size(_part.oid), 400);
      execute format('select count(*) from %I.%I tablesample system (%s) repeatable (%s)',
        _part.nspname, _part.relname, _share, {schema}.sample_of()) into _here;
      _all := _all + _here * 100 / _share;
    end if;
  end loop;
  return round(_all);
end $$;

-- Live jobs, or the history (`_states` are of one of them), in descending order of ids; of failed jobs alone (`_at` is given), of
-- the time at which they failed. `_below`, `_at`: where it begins. The jobs come as lists show them; beside each, and where there
-- is none by itself: the rows that were examined, and where to go on (NULL: there is no more). A search examines `_rows` at
-- least, and after `_budget` seconds no further piece; each takes about a sixth of what is left. The live job of a key is
-- found by index, and so are the live jobs of a queue that has few: by ids, they may lie behind millions of others.
create or replace function {schema}.search_jobs(
  _states text[], _task text, _queue text, _key text, _flag text, _worker text, _error text, _since timestamptz,
  _until timestamptz, _below bigint, _at timestamptz, _limit int, _budget double precision, _rows int
) returns table (
  looked_at bigint, next_id bigint, next_at timestamptz, id bigint, task text, state text, queue text, priority int,
  run_at timestamptz, attempts int, max_attempts int, resets int, max_resets int, key text, flags text[], last_error text,
  revision int, created_at timestamptz, updated_at timestamptz, started_at timestamptz, finished_at timestamptz,
  worker text, cancel_requested boolean, last_worker text, progress double precision, progress_text text
)
language plpgsql {definer} set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
  _begin timestamptz := clock_timestamp();
  _before timestamptz;
  _left double precision;
  _one text := case when cardinality(_states) = 1 and _states[1] in ('processing', 'failed') then _states[1] end;
  _wanted text := 'o.state = any($1)'
    || case when _task is null then '' else ' and o.task = $2' end
    || case when _queue is null then '' else ' and o.queue = $3' end
    || case when _key is null then '' else ' and o.key = $4' end
    || case when _flag is null then '' else ' and o.flags @> array[$5]' end;
  _error_in constant text := case when _error is null then '' else ' and position(lower($7) in lower(%s)) > 0' end;
  _live text := _wanted || format(_error_in, 'coalesce(o.last_error, o.earlier_error)')
    || case when _worker is null then '' else ' and coalesce(o.worker, o.last_worker) = $6' end
    || case when _since is null then '' else ' and coalesce(o.finished_at, o.created_at) >= $8' end
    || case when _until is null then '' else ' and coalesce(o.finished_at, o.created_at) < $9' end;
  _past text := _wanted || format(_error_in, 'o.last_error')
    || case when _worker is null then '' else ' and o.worker = $6' end
    || case when _since is null then '' else ' and o.finished_at >= $8' end
    || case when _until is null then '' else ' and o.finished_at < $9' end;
  _order text := case when _at is null then 'id desc' else 'at desc, id desc' end;
  _is_live constant boolean := _states && array['queued', 'errored', 'processing', 'failed'];
  _few bigint[];
  _piece text;
  _count bigint;
  _place record;
  _last record;
  _found bigint[] := '{}';
  _times timestamptz[] := '{}';
  _ids bigint[];
  _ends timestamptz[];
  _numbers bigint[];
  _looked bigint := 0;
  _take int;
begin
  if _is_live and _key is not null then
    execute format('select array_agg(o.id) from %I.live o where o.key = $1', {schema_text}) into _few using _key;
    _few := coalesce(_few, '{}');
  elsif _is_live and _queue is not null and _one is null then
    select case when count(*) <= 10000 then coalesce(array_agg(f.id) filter (where f.queue = _queue), '{}') end into _few
    from (
      (select l.id, l.queue from {schema}.live l
       where l.queue = _queue and l.state in ('queued', 'errored') and l.resets < 2 limit 10001)
      union all
      (select l.id, l.queue from {schema}.live l where l.state in ('queued', 'errored') and l.resets >= 2 limit 10001)
      union all
      (select l.id, l.queue from {schema}.live l where l.state = 'processing' limit 10001)
      union all
      (select l.id, l.queue from {schema}.live l where l.state = 'failed' limit 10001)
    ) f;
  end if;
  if _is_live then
    _piece := format(
      '(select o.id, o.finished_at as at, %s as hit from %I.live o where %s %s %s order by %s limit $12)', _live,
      {schema_text}, case when _one is null then '' else format('o.state = %L and', _one) end,
      case when _few is null then '' else 'o.id = any($14) and' end,
      case when _at is null then 'o.id < $10' else '(o.finished_at, o.id) < ($11, $10)' end,
      case when _at is null then 'o.id desc' else 'o.finished_at desc, o.id desc' end);
  else
    _piece := format(
      '(select o.id, o.finished_at as at, %s as hit from %I.history o where o.id < $10 order by o.id desc limit $12)', _past,
      {schema_text});
  end if;
  _piece := format(
    'with piece as (
       select p.id, p.at, p.hit is true as hit, row_number() over (order by %1$s) as n
       from %2$s p)
     select count(*), (array_agg(c.id order by c.n) filter (where c.hit))[:$13],
       (array_agg(c.at order by c.n) filter (where c.hit))[:$13], (array_agg(c.n order by c.n) filter (where c.hit))[:$13],
       (array_agg(c.id order by c.n desc))[1], (array_agg(c.at order by c.n desc))[1] from piece c',
    _order, _piece);
  while _below is not null and cardinality(_found) < _limit loop
    _before := clock_timestamp();
    _take := _limit - cardinality(_found);
    execute _piece into _count, _ids, _ends, _numbers, _below, _at
      using _states, _task, _queue, _key, _flag, _worker, _error, _since, _until, _below, _at, _rows, _take, _few;
    _found := _found || _ids;
    _times := _times || _ends;
    if cardinality(_ids) = _take and _numbers[_take] < _count then  -- what lies behind the last one is for the next answer
      _looked := _looked + _numbers[_take];
      _below := _ids[_take];
      _at := _ends[_take];
      exit;
    end if;
    _looked := _looked + _count;
    if _count < _rows then _below := null; end if;
    _left := _budget - extract(epoch from clock_timestamp() - _begin);
    exit when _below is null or _left <= 0;
    _rows := greatest(1000, least(_rows * 2, 100000, _rows * _left / 6
      / greatest(extract(epoch from clock_timestamp() - _before), 0.000001)));
  end loop;
  if _one is distinct from 'failed' then _at := null; end if;
  return query select _looked, _below, _at, j.* from (values (1)) as always(one) left join lateral (
    select l.id, l.task, l.state, l.queue, l.priority, l.run_at, l.attempts, l.max_attempts, l.resets, l.max_resets, l.key,
      l.flags, left(split_part(coalesce(l.last_error, l.earlier_error), e'\n', 1), 200), l.revision, l.created_at, l.updated_at, l.started_at,
      l.finished_at, l.worker, l.cancel_requested, coalesce(l.worker, l.last_worker), l.progress, l.progress_text
    from {schema}.live l where l.id = any(_found)
    union all
    select h.id, h.task, h.state, h.queue, h.priority, h.run_at, h.attempts, h.max_attempts, h.resets, h.max_resets, h.key,
      h.flags, left(split_part(h.last_error, e'\n', 1), 200), h.revision, h.created_at, h.updated_at, h.started_at,
      h.finished_at, null, h.cancel_requested, h.worker, null, null
    from {schema}.history h where h.id = any(_found) and h.finished_at = any(_times)) j on true;
end $$;

-- How many rows such a search looks at in all: exact up to `_most`. Where there are clearly more, none is counted.
create or replace function {schema}.searchable(_states text[], _most int) returns table (jobs bigint, exact boolean)
language plpgsql {definer} set enable_seqscan = off as $$
declare
  _about bigint := 0;
begin
  jobs := 0;
  if cardinality(_states) = 1 and _states[1] in ('processing', 'failed') then
    select a.jobs, a.exact into jobs, exact from {schema}.state_amounts(_most, _states[1]) a;
    return next;
    return;
  end if;
  if _states && array['queued', 'errored', 'processing', 'failed'] then
    _about := {schema}.about_rows({live_text}::regclass);
    if _about <= 3 * _most then
      jobs := (select count(*) from (select from {schema}.live l order by l.id limit _most + 1) c);
    end if;
  end if;
  if _states && array['completed', 'canceled'] then
    _about := _about + {schema}.about_rows({history_text}::regclass);
    if _about <= 3 * _most then
      jobs := jobs + (select count(*) from (select from {schema}.history h order by h.id limit _most + 1) c);
    end if;
  end if;
  exact := jobs <= _most and _about <= 3 * _most;
  if not exact then jobs := greatest(jobs, _about); end if;
  return next;
end $$;

-- Jobs by state (`_only`: by this one, failed or processing): exact up to `_most`, beyond it an estimate from a sample of pages.
-- What is clearly more is not counted first: this is asked every second while somebody looks.
create or replace function {schema}.state_amounts(_most int, _only text default null)
returns table (state text, jobs bigint, exact boolean)
language plpgsql {definer} set enable_seqscan = off as $$
#variable_conflict use_column
declare
  _live constant bigint := {schema}.about_rows({live_text}::regclass);
  _past constant bigint := case when _only is null then {schema}.about_rows({history_text}::regclass) else 0 end;
  _share double precision;
  _one record;
  _count bigint;
begin
  if _live <= 3 * _most and not exists (select from {schema}.count_states(_most) c where c.jobs > _most) then
    return query select c.state, c.jobs, true from {schema}.count_states(_most) c where c.state = coalesce(_only, c.state);
  else
    _share := {schema}.share_of(pg_relation_size({live_text}::regclass), 200);
    for _one in
      with sampled as materialized (
        select l.state, count(*) as rows, sum(count(*)) over () as every
        from {schema}.live l tablesample system (_share) repeatable ({schema}.sample_of()) group by l.state)
      select k.state, coalesce(case when _share = 100 then s.rows else round(_live * s.rows / s.every) end, 0)::bigint as jobs
      from (values ('queued'), ('errored'), ('processing'), ('failed')) as k(state) left join sampled s on s.state = k.state
      where k.state = coalesce(_only, k.state)
    loop
      state := _one.state; jobs := _one.jobs; exact := false;
      if state in ('processing', 'failed') and jobs <= 3 * _most then
        execute format('select count(*) from (select from %I.live l where l.state = %L limit %s) c',
          {schema_text}, state, _most + 1) into _count;
        exact := _count <= _most;
        jobs := case when exact then _count else greatest(jobs, _count) end;
      end if;
      return next;
    end loop;
  end if;
  if _only is not null then return; end if;
  if _past <= 3 * _most then
    return query select p.state, count(h.id), true
      from (values ('completed'), ('canceled')) as p(state) left join {schema}.history h on h.state = p.state group by p.state;
    return;
  end if;
  _share := {schema}.share_of((
    select sum(pg_relation_size(i.inhrelid)) from pg_inherits i where i.inhparent = {history_text}::regclass), 100);
  return query
    with sampled as materialized (
      select h.state, count(*) as rows, sum(count(*)) over () as every
      from {schema}.history h tablesample system (_share) repeatable ({schema}.sample_of()) group by h.state)
    select p.state, coalesce(round(_past * s.rows / s.every), 0)::bigint, false
    from (values ('completed'), ('canceled')) as p(state) left join sampled s on s.state = p.state;
end $$;
