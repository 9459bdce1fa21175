-- The schema as it was at number 7, the migrations 1 to 7 of that time without their comments: what upgrades start from.
create table {schema}.live (
  id bigint generated always as identity,
  task text not null,
  payload json not null default '{}',
  queue text,
  priority int not null default 0,
  run_at timestamptz not null default now(),
  state text not null default 'queued',
  attempts int not null default 0,
  max_attempts int not null default 25,
  resets int not null default 0,
  max_resets int,
  key text,
  flags text[],
  last_error text,
  revision int not null default 0,
  token uuid,
  settled_token uuid,
  epoch bigint not null default 0,
  worker text,
  lease_until timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  cancel_requested boolean not null default false,
  loses_retries text,
  scout boolean not null default false,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint live_pkey primary key (id),
  constraint task_length check (length(task) between 1 and 128),
  constraint queue_length check (length(queue) <= 128),
  constraint key_length check (length(key) between 1 and 512),
  constraint known_state check (state in ('queued', 'processing', 'errored', 'failed')),
  constraint leased_iff_processing check (
    (state = 'processing') = (token is not null)
    and (token is null) = (lease_until is null) and (token is null) = (worker is null)),
  constraint finished_iff_failed check ((state = 'failed') = (finished_at is not null)),
  constraint settled_unless_processing check (settled_token is null or state <> 'processing'),
  constraint attempts_in_range check (attempts >= 0 and max_attempts >= 1 and attempts <= max_attempts),
  constraint resets_in_range check (resets >= 0 and max_resets >= 0),
  constraint asked_while_processing check (not cancel_requested or state in ('processing', 'failed')),
  constraint payload_size check (octet_length(payload::text) <= 1048576),
  constraint flags_count check (cardinality(flags) <= 64),
  constraint keyless_if_replaced check (loses_retries is null or (loses_retries in ('replaced', 'removed') and key is null)),
  constraint scouts_for_queues check (not scout or (queue is not null and state in ('queued', 'errored')))
) with (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000
);
create unique index live_key on {schema}.live (key) where key is not null;
create index live_ready on {schema}.live (priority, run_at, id)
  where state in ('queued', 'errored') and queue is null and resets < 2;
create index live_scouts on {schema}.live (priority, run_at, id)
  where scout and state in ('queued', 'errored') and resets < 2;
create index live_in_queue on {schema}.live (queue, priority, run_at, id)
  where state in ('queued', 'errored') and queue is not null and resets < 2;
create index live_suspects on {schema}.live (priority, run_at, id)
  where state in ('queued', 'errored') and resets >= 2;
create index live_processing on {schema}.live (id) where state = 'processing';
create index live_failed on {schema}.live (id) where state = 'failed';
create table {schema}.queues (
  name text primary key,
  holder_id bigint,
  holder_token uuid,
  absorbed boolean not null default false,
  hint_priority int,
  hint_run_at timestamptz,
  hint_id bigint,
  constraint held_by_a_pair check ((holder_id is null) = (holder_token is null)),
  constraint hint_if_free_and_absorbed check (hint_run_at is null or (holder_id is null and absorbed)),
  constraint hint_whole check (
    (hint_run_at is null) = (hint_priority is null) and (hint_run_at is null) = (hint_id is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index queues_hinted on {schema}.queues (hint_priority, hint_run_at, hint_id) where hint_run_at is not null;
create table {schema}.dead_tokens (
  token uuid primary key,
  at timestamptz not null default now()
);
create table {schema}.history (
  id bigint not null,
  task text not null,
  payload json not null,
  queue text,
  priority int not null,
  run_at timestamptz not null,
  state text not null,
  attempts int not null,
  max_attempts int not null,
  resets int not null,
  max_resets int,
  key text,
  flags text[],
  last_error text,
  revision int not null,
  settled_token uuid,
  epoch bigint not null,
  worker text,
  started_at timestamptz,
  finished_at timestamptz not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  cancel_requested boolean not null,
  result json,
  constraint over check (state in ('completed', 'canceled'))
) partition by range (finished_at);
create index history_id on {schema}.history (id);
create table {schema}.history_default partition of {schema}.history default;
create index history_default_finished on {schema}.history_default (finished_at);
create view {schema}.jobs as
select
  id, queue as queue_name, task as task_identifier, payload, priority, run_at,
  case when loses_retries is null then attempts else max_attempts end as attempts,
  max_attempts, last_error, created_at, updated_at, key,
  case when state = 'processing' then started_at end as locked_at,
  worker as locked_by, revision, flags,
  state, resets, max_resets, started_at, finished_at, lease_until, cancel_requested
from {schema}.live;
create function {schema}.wake() returns void
language sql as $$
  select pg_catalog.pg_notify({channel}, '')
$$;
create function {schema}.append_json(_old json, _new json) returns json
language plpgsql immutable as $$
declare
  _head text := btrim(_old::text, E' \t\n\r');
  _tail text := btrim(_new::text, E' \t\n\r');
begin
  if json_array_length(_old) = 0 then return _new; end if;
  if json_array_length(_new) = 0 then return _old; end if;
  return (left(_head, -1) || ',' || substr(_tail, 2))::json;
end $$;
create function {schema}.check_size(_payload json) returns json
language plpgsql immutable as $$
begin
  if octet_length(_payload::text) > 1048576 then
    raise exception 'The payload would take % bytes; the limit is 1 MiB (1048576 bytes).', octet_length(_payload::text)
      using errcode = '54000', hint = 'Store large data elsewhere and put its address into the payload.';
  end if;
  return _payload;
end $$;
create function {schema}.check_job(
  _task text, _payload json, _queue text, _max_attempts int, _key text, _flags text[], _max_resets int
) returns void
language plpgsql immutable as $$
begin
  if _task is null or length(_task) not between 1 and 128 then
    raise exception 'A task identifier has 1 to 128 characters (this one has %).', coalesce(length(_task), 0)
      using errcode = 'GWBID';
  elsif length(_queue) > 128 then
    raise exception 'A queue name has at most 128 characters (this one has %).', length(_queue) using errcode = 'GWBQN';
  elsif length(_key) not between 1 and 512 then
    raise exception 'A job key has 1 to 512 characters (this one has %).', length(_key) using errcode = 'GWBJK';
  elsif _max_attempts < 1 then
    raise exception 'max_attempts is at least 1 (here it is %).', _max_attempts using errcode = 'GWBMA';
  elsif _max_resets < 0 then
    raise exception 'max_resets is at least 0 (here it is %).', _max_resets using errcode = '22023';
  elsif _flags is not null and (cardinality(_flags) > 64 or array_position(_flags, null) is not null
      or exists (select from unnest(_flags) as f(flag) where length(f.flag) > 128)) then
    raise exception 'A job has at most 64 flags of at most 128 characters, none of them NULL.' using errcode = '22023';
  end if;
  if position('\u' in _payload::text) > 0 then
    perform _payload::jsonb;
  end if;
  perform {schema}.check_size(_payload);
end $$;
create function {schema}.enqueue(
  _task text, _payload json default null, _queue text default null, _run_at timestamptz default null,
  _delay double precision default null, _max_attempts int default null, _key text default null,
  _priority int default null, _flags text[] default null, _mode text default null, _max_resets int default null,
  _now timestamptz default null
) returns {schema}.live
language plpgsql {pinned_path} as $$
declare
  _at timestamptz := coalesce(_now, now());
  _job {schema}.live;
begin
  _payload := coalesce(_payload, '{}');
  _run_at := coalesce(_run_at, _at + _delay * interval '1 second', _at);
  _max_attempts := coalesce(_max_attempts, 25);
  _priority := coalesce(_priority, 0);
  _mode := coalesce(_mode, 'replace');
  if (length(_task) between 1 and 128 and length(_payload::text) < 8192 and position('\u' in _payload::text) = 0
      and _max_attempts > 0 and _queue is null and _key is null and _flags is null and _max_resets is null) is not true
  then
    perform {schema}.check_job(_task, _payload, _queue, _max_attempts, _key, _flags, _max_resets);
  end if;
  if _flags is not null then
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at or unsafe_dedupe.', _mode
      using errcode = 'GWBKM';
  end if;
  if _key is null then
    insert into {schema}.live (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                               created_at, updated_at)
    values (_task, _payload, _queue, _run_at, _max_attempts, _priority, _flags, _max_resets, _queue is not null,
            _at, _at)
    returning * into _job;
  elsif _mode = 'unsafe_dedupe' then
    insert into {schema}.live as old (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                                      key, created_at, updated_at)
    values (_task, _payload, _queue, _run_at, _max_attempts, _priority, _flags, _max_resets, _queue is not null,
            _key, _at, _at)
    on conflict (key) where key is not null do update set revision = old.revision + 1, updated_at = _at
    returning * into _job;
  else
    _job := {schema}.enqueue_keyed(_task, _payload, _queue, _run_at, _max_attempts, _key, _priority, _flags, _mode,
                                   _max_resets, _at);
  end if;
  perform pg_notify({channel}, '');
  return _job;
end $$;
create function {schema}.enqueue_keyed(
  _task text, _payload json, _queue text, _run_at timestamptz, _max_attempts int, _key text, _priority int,
  _flags text[], _mode text, _max_resets int, _at timestamptz
) returns {schema}.live
language plpgsql as $$
declare
  _job {schema}.live;
begin
  loop
    insert into {schema}.live as old (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                                      key, created_at, updated_at)
    values (_task, _payload, _queue, _run_at, _max_attempts, _priority, _flags, _max_resets, _queue is not null,
            _key, _at, _at)
    on conflict (key) where key is not null do update set
      task = _task,
      payload = case
        when old.state <> 'failed' and json_typeof(old.payload) = 'array' and json_typeof(_payload) = 'array'
          then {schema}.check_size({schema}.append_json(old.payload, _payload))
        else _payload end,
      queue = _queue,
      run_at = case
        when _mode = 'preserve_run_at' and old.state = 'queued' and old.attempts = 0 then old.run_at
        else _run_at end,
      max_attempts = _max_attempts, priority = _priority, flags = _flags, max_resets = _max_resets,
      scout = _queue is not null,
      state = 'queued', attempts = 0, resets = case when old.state = 'failed' then 0 else old.resets end,
      last_error = null, finished_at = null, cancel_requested = false,
      revision = old.revision + 1, updated_at = _at
    where old.state <> 'processing'
    returning * into _job;
    if found then return _job; end if;
    update {schema}.live set key = null, loses_retries = 'replaced' where key = _key and state = 'processing';
  end loop;
end $$;
create function {schema}.enqueue_many(
  _tasks text[], _payloads json[], _queues text[], _run_ats timestamptz[], _delays double precision[],
  _max_attempts int[], _priorities int[], _flags json[], _max_resets int[], _now timestamptz default null
) returns setof bigint
language plpgsql {pinned_path} as $$
declare
  _at timestamptz := coalesce(_now, now());
begin
  return query
  insert into {schema}.live (task, payload, queue, run_at, max_attempts, priority, flags, max_resets, scout,
                             created_at, updated_at)
  select j.task, j.payload, j.queue, coalesce(j.run_at, _at + j.delay * interval '1 second', _at),
         coalesce(j.max_attempts, 25), coalesce(j.priority, 0),
         case when j.flags is not null then array(select json_array_elements_text(j.flags)) end,
         j.max_resets, j.queue is not null, _at, _at
  from unnest(_tasks, _payloads, _queues, _run_ats, _delays, _max_attempts, _priorities, _flags, _max_resets)
    as j(task, payload, queue, run_at, delay, max_attempts, priority, flags, max_resets)
  returning id;
end $$;
create function {schema}.add_job(
  identifier text, payload json default '{}', queue_name text default null, run_at timestamptz default null,
  max_attempts int default null, job_key text default null, priority int default null, flags text[] default null,
  job_key_mode text default 'replace'
) returns {schema}.jobs
language plpgsql {pinned_path} as $$
declare
  _id bigint;
  _job {schema}.jobs;
begin
  select e.id into _id from {schema}.enqueue(
    add_job.identifier, add_job.payload, add_job.queue_name, add_job.run_at, null, add_job.max_attempts,
    add_job.job_key, add_job.priority, add_job.flags, add_job.job_key_mode) e;
  select * into _job from {schema}.jobs j where j.id = _id;
  return _job;
end $$;
create type {schema}.queue_heads as (heads bigint[], names text[], unfinished boolean);
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
create function {schema}.open_queue(_name text) returns text
language plpgsql as $$
declare
  _held boolean;
begin
  perform from {schema}.queues q where q.name = _name and q.holder_id is null for update skip locked;
  if found then return 'free'; end if;
  select q.holder_id is not null into _held from {schema}.queues q where q.name = _name;
  if not found then
    if not pg_try_advisory_xact_lock(hashtextextended({channel} || _name, 1)) then return 'locked'; end if;
    insert into {schema}.queues (name) values (_name) on conflict do nothing;
  elsif _held then
    return 'held';
  end if;
  perform from {schema}.queues q where q.name = _name and q.holder_id is null for update skip locked;
  return case when found then 'free' else 'locked' end;
end $$;
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
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;
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
create type {schema}.verdict as (
  id bigint, token uuid, queue text, state text, attempts int, resets int, epoch bigint, settled_token uuid,
  delay double precision, error text, result text);
create function {schema}.free_queues(_names text[], _ids bigint[], _tokens uuid[], _at timestamptz) returns void
language plpgsql as $$
declare
  _freed text[];
  _absorbed text[];
  _name text;
begin
  perform from {schema}.queues q where q.name = any(_names) order by q.name for update;
  with freed as (
    update {schema}.queues q set holder_id = null, holder_token = null
      where q.name = any(_names) and exists (
        select from unnest(_names, _ids, _tokens) as f(name, id, token)
        where q.name = f.name and q.holder_id = f.id and q.holder_token = f.token)
      returning q.name, q.absorbed
  )
  select array_agg(f.name), array_agg(f.name) filter (where f.absorbed) into _freed, _absorbed from freed f;
  if _absorbed is not null then
    foreach _name in array _absorbed loop
      perform {schema}.refresh_hint(_name, _at);
    end loop;
  end if;
  if exists (
    select from unnest(_freed) as f(name) cross join lateral (
      select from {schema}.live j
      where j.queue = f.name and j.state in ('queued', 'errored') and j.queue is not null and j.resets < 2
        and j.run_at <= _at limit 1) waiting)
  then
    perform {schema}.wake();
  end if;
end $$;
create function {schema}.settle_completed(_ids bigint[], _tokens uuid[], _keep boolean, _now timestamptz default null)
returns setof bigint
language plpgsql {pinned_path} {index_plans} as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _mine bigint[];
  _names text[];
  _held bigint[];
  _by uuid[];
begin
  _mine := array(
    select j.id from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id from {schema}.live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  if _keep then
    with gone as (
      delete from {schema}.live j where j.id = any(_mine) returning j.*
    ), kept as (
      insert into {schema}.history (id, task, payload, queue, priority, run_at, state, attempts, max_attempts, resets,
        max_resets, key, flags, last_error, revision, settled_token, epoch, worker, started_at, finished_at, created_at,
        updated_at, cancel_requested)
      select g.id, g.task, g.payload, g.queue, g.priority, g.run_at, 'completed', g.attempts, g.max_attempts, 0,
        g.max_resets, g.key, g.flags, g.last_error, g.revision, g.token, g.epoch, g.worker, g.started_at, _at,
        g.created_at, g.updated_at, g.cancel_requested
      from gone g
    )
    select array_agg(g.queue), array_agg(g.id), array_agg(g.token) into _names, _held, _by
      from gone g where g.queue is not null;
  else
    with gone as (
      delete from {schema}.live j where j.id = any(_mine) returning j.id, j.queue, j.token
    )
    select array_agg(g.queue), array_agg(g.id), array_agg(g.token) into _names, _held, _by
      from gone g where g.queue is not null;
  end if;
  if _names is not null then perform {schema}.free_queues(_names, _held, _by, _at); end if;
  return query select unnest(_mine);
end $$;
create function {schema}.bury(_verdicts {schema}.verdict[], _keep boolean, _at timestamptz) returns void
language sql set enable_hashjoin = on as $$
  with gone as (
    delete from {schema}.live j
      where j.id = any(array(select v.id from unnest(_verdicts) as v where v.state in ('completed', 'canceled')))
      returning j.*
  )
  insert into {schema}.history (id, task, payload, queue, priority, run_at, state, attempts, max_attempts, resets,
    max_resets, key, flags, last_error, revision, settled_token, epoch, worker, started_at, finished_at, created_at,
    updated_at, cancel_requested, result)
  select g.id, g.task, g.payload, g.queue, g.priority, g.run_at, v.state, v.attempts, g.max_attempts, v.resets,
    g.max_resets, g.key, g.flags, coalesce(v.error, g.last_error), g.revision, v.settled_token, v.epoch, g.worker,
    g.started_at, _at, g.created_at, g.updated_at, g.cancel_requested, v.result::json
  from unnest(_verdicts) as v join gone g on g.id = v.id
  where _keep
$$;
create function {schema}.carry_out(_verdicts {schema}.verdict[], _keep boolean, _at timestamptz) returns void
language plpgsql as $$
declare
  _one {schema}.verdict;
begin
  foreach _one in array _verdicts loop
    continue when _one.state in ('completed', 'canceled');
    update {schema}.live j
      set state = _one.state, attempts = _one.attempts, resets = _one.resets, epoch = _one.epoch,
          settled_token = _one.settled_token,
          token = null, worker = null, lease_until = null,
          last_error = coalesce(_one.error, j.last_error),
          run_at = coalesce(_at + _one.delay * interval '1 second', j.run_at),
          finished_at = case when _one.state = 'failed' then _at end,
          scout = j.queue is not null and _one.state <> 'failed'
      where j.id = _one.id;
  end loop;
  if exists (select from unnest(_verdicts) as v where v.state in ('completed', 'canceled')) then
    perform {schema}.bury(_verdicts, _keep, _at);
  end if;
  perform {schema}.free_queues(array_agg(v.queue), array_agg(v.id), array_agg(v.token), _at)
    from unnest(_verdicts) as v where v.queue is not null having count(*) > 0;
end $$;
create function {schema}.way_back(_state text, _cancel_requested boolean, _loses_retries text) returns text
language sql immutable as $$
  select case
    when _state not in ('queued', 'errored') then _state
    when _cancel_requested or _loses_retries = 'removed' then 'canceled'
    when _loses_retries = 'replaced' and _state = 'errored' then 'failed'
    else _state end
$$;
create function {schema}.settle(
  _ids bigint[], _tokens uuid[], _states text[], _delays double precision[], _refunds boolean[], _errors text[],
  _results text[], _keep boolean, _now timestamptz default null
) returns table (id bigint, token uuid)
language plpgsql {pinned_path} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.queue, {schema}.way_back(f.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - f.refund::int, 0), 0, j.epoch, j.token,
      case when {schema}.way_back(f.state, j.cancel_requested, j.loses_retries) in ('queued', 'errored')
        then f.delay end,
      f.error, f.result)::{schema}.verdict
    from unnest(_ids, _tokens, _states, _delays, _refunds, _errors, _results)
        as f(id, token, state, delay, refund, error, result)
      cross join lateral (
        select l.id, l.token, l.queue, l.attempts, l.epoch, l.cancel_requested, l.loses_retries from {schema}.live l
        where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  return query select v.id, v.token from unnest(_verdicts) as v;
end $$;
create function {schema}.look(_ids bigint[], _tokens uuid[]) returns table (id bigint, token uuid, found text)
language sql stable {pinned_path} {index_plans} as $$
  select f.id, f.token,
    case
      when j.token = f.token then 'busy'
      when j.settled_token = f.token or exists (
        select from {schema}.history h where h.id = f.id and h.settled_token = f.token) then 'settled'
      when j.id is not null or exists (select from {schema}.history h where h.id = f.id) then 'lost'
      else 'gone' end
  from unnest(_ids, _tokens) as f(id, token) left join lateral (
    select l.id, l.token, l.settled_token from {schema}.live l where l.id = f.id offset 0) j on true
$$;
create function {schema}.beat(
  _ids bigint[], _tokens uuid[], _lease double precision, _now timestamptz default null
) returns table (id bigint, token uuid, found text)
language plpgsql {pinned_path} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _mine bigint[];
begin
  _mine := array(
    select j.id from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id from {schema}.live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  update {schema}.live j set lease_until = _at + _lease * interval '1 second' where j.id = any(_mine);
  return query
    select f.id, f.token,
      case when j.token is distinct from f.token then 'lost' when j.id = any(_mine) then 'canceled' else 'busy' end
    from unnest(_ids, _tokens) as f(id, token) left join lateral (
      select l.id, l.token, l.cancel_requested from {schema}.live l where l.id = f.id offset 0) j on true
    where j.token is distinct from f.token or not j.id = any(_mine) or j.cancel_requested;
end $$;
create function {schema}.release(
  _ids bigint[], _tokens uuid[], _keep boolean, _now timestamptz default null
) returns setof bigint
language plpgsql {pinned_path} {index_plans} as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.queue, {schema}.way_back('queued', j.cancel_requested, j.loses_retries),
      greatest(j.attempts - 1, 0), j.resets, j.epoch, null, null, null, null)::{schema}.verdict
    from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id, l.token, l.queue, l.attempts, l.resets, l.epoch, l.cancel_requested, l.loses_retries
      from {schema}.live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  if cardinality(_verdicts) > 0 then perform {schema}.wake(); end if;
  return query select v.id from unnest(_verdicts) as v;
end $$;
create function {schema}.abandon(_token uuid, _keep boolean, _now timestamptz default null) returns boolean
language plpgsql {pinned_path} {index_plans} as $$
begin
  perform pg_advisory_xact_lock(uuid_hash_extended(_token, 0));
  insert into {schema}.dead_tokens (token, at) values (_token, coalesce(_now, clock_timestamp()))
    on conflict do nothing;
  perform {schema}.release(array_agg(j.id), array_agg(j.token), _keep, _now)
    from (select j.id, j.token from {schema}.live j where j.state = 'processing' and j.token = _token order by j.id) j
    having count(*) > 0;
  return not exists (select from {schema}.live j where j.state = 'processing' and j.token = _token);
end $$;
create function {schema}.find_stalled(
  _slack double precision, _worker text, _id bigint, _token uuid, _limit int, _now timestamptz default null
) returns table (id bigint, token text, task text, worker text, resets int, max_resets int, max_attempts int)
language plpgsql stable {pinned_path} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
begin
  return query
    select j.id, j.token::text, j.task, j.worker, j.resets, j.max_resets, j.max_attempts from {schema}.live j
    where j.state = 'processing'
      and (_slack is null or j.lease_until + _slack * interval '1 second' < _at)
      and (_worker is null or j.worker = _worker)
      and (_id is null or (j.id = _id and j.token = _token))
    order by j.id limit _limit;
end $$;
create function {schema}.reset(
  _ids bigint[], _tokens uuid[], _states text[], _errors text[], _slack double precision, _keep boolean,
  _now timestamptz default null
) returns table (id bigint, state text)
language plpgsql {pinned_path} {index_plans} as $$
#variable_conflict use_column
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _verdicts {schema}.verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.queue, {schema}.way_back(f.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - (f.state = 'queued')::int, 0), j.resets + 1, j.epoch + 1, null,
      null, f.error, null)::{schema}.verdict
    from unnest(_ids, _tokens, _states, _errors) as f(id, token, state, error) cross join lateral (
      select l.id, l.token, l.queue, l.attempts, l.resets, l.epoch, l.cancel_requested, l.loses_retries
      from {schema}.live l
      where l.id = f.id and l.token = f.token
        and (_slack is null or l.lease_until + _slack * interval '1 second' < _at)
      offset 0 for update skip locked) j);
  perform {schema}.carry_out(_verdicts, _keep, _at);
  if cardinality(_verdicts) > 0 then perform {schema}.wake(); end if;
  return query select v.id, v.state from unnest(_verdicts) as v;
end $$;
create function {schema}.retry(_id bigint, _now timestamptz default null, out done text, out why text)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _state text;
  _old {schema}.history;
begin
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it first, or wait until it has ended';
  elsif _state is not null then
    update {schema}.live j
      set state = 'queued', run_at = _at, attempts = 0, resets = 0, finished_at = null, loses_retries = null,
          cancel_requested = false, scout = j.queue is not null
      where j.id = _id;
    perform {schema}.wake();
    done := 'done'; why := '';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; enqueue it again instead';
      return;
    end if;
    delete from {schema}.history h where h.id = _id and h.state = 'canceled' returning h.* into _old;
    if not found then done := 'missing'; why := ''; return; end if;
    perform {schema}.revive(_old, _at);
    done := 'done';
    why := case when _old.key is null or exists (
        select from {schema}.live j where j.id = _id and j.key = _old.key) then ''
      else 'its key belongs to another job now, so it has none' end;
  end if;
end $$;
create function {schema}.revive(_old {schema}.history, _at timestamptz) returns void
language plpgsql as $$
begin
  insert into {schema}.live (id, task, payload, queue, priority, run_at, max_attempts, max_resets, key, flags,
                             last_error, revision, epoch, settled_token, scout, created_at, updated_at)
    overriding system value
    values (_old.id, _old.task, _old.payload, _old.queue, _old.priority, _at, _old.max_attempts, _old.max_resets,
            _old.key, _old.flags, _old.last_error, _old.revision, _old.epoch, _old.settled_token,
            _old.queue is not null, _old.created_at, _old.updated_at)
    on conflict (key) where key is not null do nothing;
  if not found then
    _old.key := null;
    perform {schema}.revive(_old, _at);
  end if;
  perform {schema}.wake();
end $$;
create function {schema}.cancel(
  _id bigint, _keep boolean, _now timestamptz default null, out done text, out why text
)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _state text;
begin
  why := '';
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state in ('queued', 'errored') then
    perform {schema}.bury(
      array[row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, null, null)
            ::{schema}.verdict], _keep, _at)
      from {schema}.live j where j.id = _id;
    done := 'done';
  elsif _state = 'processing' then
    update {schema}.live j set cancel_requested = true where j.id = _id;
    done := 'asked'; why := 'it is running; its worker hears of it at the next beat';
  elsif _state = 'failed' then
    done := 'refused'; why := 'it has failed already; remove it, or retry it';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'canceled' then
      done := 'unchanged'; why := 'it is canceled already';
    elsif _state = 'completed' then
      done := 'refused'; why := 'it has completed already';
    else
      done := 'missing';
    end if;
  end if;
end $$;
create function {schema}.remove(_id bigint, out done text, out why text)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
declare
  _state text;
begin
  why := '';
  select j.state into _state from {schema}.live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it instead';
  elsif _state is not null then
    delete from {schema}.live j where j.id = _id;
    done := 'done';
  else
    select h.state into _state from {schema}.history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; the history is pruned by its age';
    else
      delete from {schema}.history h where h.id = _id and h.state = 'canceled';
      done := case when found then 'done' else 'missing' end;
    end if;
  end if;
end $$;
create function {schema}.remove_key(_key text, out id bigint, out done text, out why text)
language plpgsql {pinned_path} set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  _state text;
begin
  why := '';
  select j.id, j.state into id, _state from {schema}.live j where j.key = _key for update;
  if _state = 'processing' then
    update {schema}.live j set key = null, loses_retries = 'removed' where j.id = remove_key.id;
    done := 'done'; why := 'it is running; it ends without its key and will not run again';
  elsif _state is not null then
    delete from {schema}.live j where j.id = remove_key.id;
    done := 'done';
  else
    done := 'missing';
  end if;
end $$;
create view {schema}.everything as
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, worker, cancel_requested, null::json as result
from {schema}.live
union all
select id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,
  last_error, revision, created_at, updated_at, started_at, finished_at, null, cancel_requested, result
from {schema}.history;
create function {schema}.next_due(_tasks text[], _now timestamptz default null) returns double precision
language plpgsql stable {pinned_path} {index_plans} as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
  _earliest timestamptz;
  _next record;
  _after int;
begin
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where j.state in ('queued', 'errored') and j.queue is null and j.resets < 2
        and j.priority >= coalesce(_after, -2147483648) and (_tasks is null or j.task = any(_tasks))
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found;
    _earliest := least(_earliest, _next.run_at);
    exit when _earliest <= _at;
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  _after := null;
  loop
    select j.priority, j.run_at into _next from {schema}.live j
      where j.scout and j.state in ('queued', 'errored') and j.resets < 2
        and j.priority >= coalesce(_after, -2147483648) and (_tasks is null or j.task = any(_tasks))
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found or _earliest <= _at;
    _earliest := least(_earliest, _next.run_at);
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  _earliest := least(_earliest,
    (select min(j.run_at) from {schema}.live j
      where j.state in ('queued', 'errored') and j.resets >= 2 and (_tasks is null or j.task = any(_tasks))),
    (select min(q.hint_run_at) from {schema}.queues q where q.hint_run_at is not null),
    (select _at from {schema}.queues q where q.absorbed and q.holder_id is not null and exists (
      select from {schema}.live j where j.queue = q.name and j.queue is not null and j.resets < 2
        and j.state in ('queued', 'errored') and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))) limit 1));
  return case when _earliest is not null then greatest(extract(epoch from _earliest - _at), 0)::double precision end;
end $$;
create function {schema}.make_days(_at timestamptz, _ahead int) returns void
language plpgsql as $$
declare
  _day date;
  _name text;
begin
  for _step in 0.._ahead loop
    _day := (_at at time zone 'UTC')::date + _step;
    _name := 'history_' || to_char(_day, 'YYYYMMDD');
    continue when exists (
      select from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = {schema_text} and c.relname = _name);
    begin
      execute format('create table %I.%I partition of %I.history for values from (%L) to (%L)',
        {schema_text}, _name, {schema_text}, _day || ' 00:00+00', (_day + 1) || ' 00:00+00');
    exception when check_violation or lock_not_available or duplicate_table then
      null;
    end;
  end loop;
end $$;
create function {schema}.prune_days(_before timestamptz) returns void
language plpgsql as $$
declare
  _part record;
  _ends timestamptz;
begin
  for _part in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = {history_text}::regclass and c.relname ~ '^history_\d{8}$' order by c.relname
  loop
    _ends := ((to_date(right(_part.relname, 8), 'YYYYMMDD') + 1)::text || ' 00:00+00')::timestamptz;
    exit when _ends - interval '1 day' > _before;
    begin
      if _ends <= _before then
        execute format('drop table %I.%I', {schema_text}, _part.relname);
      else
        execute format(
          'delete from %1$I.%2$I where ctid = any(array(select ctid from %1$I.%2$I
             where ctid < ''(128,0)''::tid and finished_at < $1 limit 5000 for update skip locked))',
          {schema_text}, _part.relname) using _before;
      end if;
    exception when lock_not_available then
      null;
    end;
  end loop;
end $$;
create function {schema}.prune_queues(_limit int) returns void
language plpgsql as $$
declare
  _name text;
begin
  for _name in
    select q.name from {schema}.queues q
    where q.holder_id is null and not exists (
      select from {schema}.live j where j.queue = q.name and j.state in ('queued', 'errored') and j.queue is not null
        and j.resets < 2)
    limit _limit for update skip locked
  loop
    delete from {schema}.queues q where q.name = _name and not exists (
      select from {schema}.live j where j.queue = q.name and j.state in ('queued', 'errored') and j.queue is not null
        and j.resets < 2);
  end loop;
end $$;
create function {schema}.maintain(_retention double precision, _now timestamptz default null) returns void
language plpgsql security definer {pinned_path} {index_plans} set lock_timeout = '200ms' as $$
declare
  _at timestamptz := coalesce(_now, clock_timestamp());
begin
  if not pg_try_advisory_xact_lock(hashtextextended({channel}, 2)) then return; end if;
  perform {schema}.make_days(_at, 3);
  perform {schema}.prune_days(_at - coalesce(_retention, 0) * interval '1 second');
  begin
    delete from {schema}.history_default h where h.ctid = any(array(
      select d.ctid from {schema}.history_default d
      where d.finished_at < _at - coalesce(_retention, 0) * interval '1 second'
      order by d.finished_at limit 5000 for update skip locked));
    perform {schema}.prune_queues(1000);
    delete from {schema}.dead_tokens d where d.at < _at - interval '1 hour';
  exception when lock_not_available then
    null;
  end;
end $$;
select {schema}.make_days(clock_timestamp(), 3);
revoke all on all functions in schema {schema} from public;
