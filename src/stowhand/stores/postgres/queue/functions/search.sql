-- Searching, for people: piece by piece in the order of a key, until time is up or enough is found. No question reads a table
-- of millions at one go, and none needs an index of its own.

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

-- How many rows such a search looks at in all; more than `_most` are given as more than that.
create or replace function {schema}.searchable(_states text[], _most int) returns bigint
language plpgsql {definer} set enable_seqscan = off as $$
begin
  if cardinality(_states) = 1 and _states[1] in ('processing', 'failed') then
    return (select s.jobs from {schema}.count_states(_most) s where s.state = _states[1]);
  end if;
  return case when _states && array['queued', 'errored', 'processing', 'failed']
      then (select count(*) from (select from {schema}.live l limit _most + 1) c) else 0 end
    + case when _states && array['completed', 'canceled']
      then (select count(*) from (select from {schema}.history h limit _most + 1) c) else 0 end;
end $$;
