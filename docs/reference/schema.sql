-- The schema `stowhand` as `stowhand migrate` leaves it in an empty database, read from the database by pg_dump 18.
-- For reading; `stowhand migrate --plan` prints what is run. Not shown: the days of the history (`history_YYYYMMDD`),
-- and rights: nothing is PUBLIC's, and what each role may do stands in roles.md.
-- Written by scripts/dump-schema; a test compares.

CREATE SCHEMA stowhand;

CREATE TYPE stowhand.job_spec AS (
	identifier text,
	payload json,
	queue_name text,
	run_at timestamp with time zone,
	max_attempts integer,
	job_key text,
	priority integer,
	flags text[],
	work_queue text
);

CREATE TYPE stowhand.new_job AS (
	task text,
	payload text,
	serial text,
	run_at timestamp with time zone,
	delay double precision,
	max_attempts integer,
	key text,
	priority integer,
	flags text[],
	key_mode text,
	max_resets integer,
	on_failure json,
	expires double precision,
	unique_period double precision,
	queue text
);

CREATE TYPE stowhand.place AS (
	priority integer,
	run_at timestamp with time zone,
	id bigint
);

CREATE TYPE stowhand.serial_heads AS (
	heads bigint[],
	names text[],
	unfinished boolean
);

CREATE TYPE stowhand.verdict AS (
	id bigint,
	token uuid,
	serial text,
	state text,
	attempts integer,
	resets integer,
	epoch bigint,
	settled_token uuid,
	delay double precision,
	error text,
	result text,
	payload text,
	outcome text,
	error_class text
);

CREATE FUNCTION stowhand.abandon(_token uuid, _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  perform pg_advisory_xact_lock(uuid_hash_extended(_token, 0));
  insert into "stowhand".dead_tokens (token, at) values (_token, "stowhand".at(_now))
    on conflict do nothing;
  perform "stowhand".release(array_agg(j.id), array_agg(j.token), _keep, _now)
    from (select j.id, j.token from "stowhand".live j where j.state = 'processing' and j.token = _token order by j.id) j
    having count(*) > 0;
  return not exists (select from "stowhand".live j where j.state = 'processing' and j.token = _token);
end $$;

CREATE FUNCTION stowhand.absorb(_scouts bigint[], _taken text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _locked text[];
begin
  _locked := array(
    select q.name from "stowhand".limit_keys q
    where q.name in (select distinct j.serial from "stowhand".live j where j.id = any(_scouts))
    for update skip locked);
  -- A new statement under the locks: a key that was freed meanwhile keeps its scouts.
  _locked := array(select n.name from unnest(_locked) as n(name) where n.name = any(_taken) or "stowhand".key_opens_at(n.name, _at) is not null);
  update "stowhand".limit_keys q set absorbed = true where q.name = any(_locked) and not q.absorbed;
  update "stowhand".live u set absorbed = true where u.id = any(array(
    select j.id from "stowhand".live j
    where j.id = any(_scouts) and j.serial = any(_locked) and j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2
    for update skip locked));
end $$;

CREATE FUNCTION stowhand.is_lawful(_task text, _payload json, _serial text, _state text, _attempts integer, _max_attempts integer, _resets integer, _max_resets integer, _queue text, _key text, _flags text[], _token uuid, _settled_token uuid, _worker text, _lease_until timestamp with time zone, _finished_at timestamp with time zone, _cancel_requested boolean, _loses_retries text, _absorbed boolean) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
declare
  _broken text;
begin
  -- The most common rows pass here; these conditions are stricter than the rules. Each transaction prepares those that it
  -- comes to, so the lengths of absent names are apart. A payload of less than 2000 stored bytes is within the limit: no
  -- compression reduces 500 bytes to one.
  if (pg_catalog.texteq(_state, 'queued') and _token is null and _lease_until is null and _worker is null
        and not _cancel_requested and (not _absorbed or _serial is not null)
      or pg_catalog.texteq(_state, 'processing') and _token is not null and _lease_until is not null
        and _worker is not null and _settled_token is null and not _absorbed)
    and _finished_at is null and _max_resets is null and _flags is null and _loses_retries is null
    and pg_catalog.int4ge(_attempts, 0) and pg_catalog.int4le(_attempts, _max_attempts)
    and pg_catalog.int4ge(_max_attempts, 1) and pg_catalog.int4ge(_resets, 0)
    and pg_catalog.textne(_task, '') and pg_catalog.int4le(pg_catalog.length(_task), 128)
    and pg_catalog.int4lt(pg_catalog.pg_column_size(_payload), 2000)
  then
    if _serial is null and _queue is null and _key is null then return true; end if;
    if (_serial is null or pg_catalog.int4le(pg_catalog.length(_serial), 128))
      and (_queue is null or pg_catalog.int4le(pg_catalog.length(_queue), 128) and pg_catalog.textne(_queue, '')
           and pg_catalog.textne(_queue, 'default') and pg_catalog.textregexne(_queue, '^ |,| $'))
      and (_key is null or pg_catalog.textne(_key, '') and pg_catalog.int4le(pg_catalog.length(_key), 512))
    then
      return true;
    end if;
  end if;
  _broken := case
    when _cancel_requested and not (pg_catalog.texteq(_state, 'processing') or pg_catalog.texteq(_state, 'failed'))
      then 'asked_while_processing'
    when not (pg_catalog.int4ge(_attempts, 0) and pg_catalog.int4ge(_max_attempts, 1)
              and pg_catalog.int4le(_attempts, _max_attempts))
      then 'attempts_in_range'
    when pg_catalog.boolne(pg_catalog.texteq(_state, 'failed'), _finished_at is not null) then 'finished_iff_failed'
    when pg_catalog.int4gt(pg_catalog.cardinality(_flags), 64) then 'flags_count'
    when pg_catalog.texteq(_key, '') or pg_catalog.int4gt(pg_catalog.length(_key), 512) then 'key_length'
    when _loses_retries is not null
        and not ((pg_catalog.texteq(_loses_retries, 'replaced') or pg_catalog.texteq(_loses_retries, 'removed'))
                 and _key is null)
      then 'keyless_if_replaced'
    when not (pg_catalog.texteq(_state, 'queued') or pg_catalog.texteq(_state, 'processing')
              or pg_catalog.texteq(_state, 'errored') or pg_catalog.texteq(_state, 'failed'))
      then 'known_state'
    when pg_catalog.boolne(pg_catalog.texteq(_state, 'processing'), _token is not null)
        or pg_catalog.boolne(_token is null, _lease_until is null) or pg_catalog.boolne(_token is null, _worker is null)
      then 'leased_iff_processing'
    when pg_catalog.int4gt(pg_catalog.octet_length(_payload::pg_catalog.text), 1048576) then 'payload_size'
    when pg_catalog.texteq(_queue, '') or pg_catalog.int4gt(pg_catalog.length(_queue), 128) then 'queue_length'
    when pg_catalog.texteq(_queue, 'default') then 'queue_is_null_for_default'
    when pg_catalog.textregexeq(_queue, '^ |,| $') then 'queue_without_comma_and_outer_blanks'
    when pg_catalog.int4gt(pg_catalog.length(_serial), 128) and pg_catalog.int4eq(pg_catalog.strpos(_serial, E'\t'), 0)
      then 'serial_length'
    when not (pg_catalog.int4ge(_resets, 0) and (_max_resets is null or pg_catalog.int4ge(_max_resets, 0)))
      then 'resets_in_range'
    when _absorbed and not (_serial is not null
                            and (pg_catalog.texteq(_state, 'queued') or pg_catalog.texteq(_state, 'errored')))
      then 'absorbed_while_waiting'
    when _settled_token is not null and pg_catalog.texteq(_state, 'processing') then 'settled_unless_processing'
    when pg_catalog.texteq(_task, '') or pg_catalog.int4gt(pg_catalog.length(_task), 128) then 'task_length'
  end;
  if _broken is not null then
    -- The same words as PostgreSQL's own error, with the name of the rule.
    raise exception 'new row for relation "live" violates check constraint "%"', _broken
      using errcode = '23514', schema = 'stowhand', table = 'live', constraint = _broken;
  end if;
  return true;
end $_$;

CREATE TABLE stowhand.live (
    id bigint NOT NULL,
    task text NOT NULL,
    payload json DEFAULT '{}'::json NOT NULL,
    serial text,
    queue text,
    priority integer DEFAULT 0 NOT NULL,
    run_at timestamp with time zone DEFAULT now() NOT NULL,
    state text DEFAULT 'queued'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    max_attempts integer DEFAULT 25 NOT NULL,
    resets integer DEFAULT 0 NOT NULL,
    max_resets integer,
    key text,
    flags text[],
    revision integer DEFAULT 0 NOT NULL,
    token uuid,
    settled_token uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    worker text,
    lease_until timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    cancel_requested boolean DEFAULT false NOT NULL,
    loses_retries text,
    absorbed boolean DEFAULT false NOT NULL,
    key_slot integer,
    limit_name text,
    limit_slot integer,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    last_worker text,
    round integer,
    replaced integer,
    on_failure json,
    progress double precision,
    progress_text text,
    expires_at timestamp with time zone,
    waits_for text,
    parent_id bigint,
    parent_step text,
    parent_place integer,
    last_error text,
    CONSTRAINT lawful CHECK (stowhand.is_lawful(task, payload, serial, state, attempts, max_attempts, resets, max_resets, queue, key, flags, token, settled_token, worker, lease_until, finished_at, cancel_requested, loses_retries, absorbed))
)
WITH (fillfactor='60', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', autovacuum_vacuum_insert_threshold='-1', autovacuum_analyze_scale_factor='0.2', autovacuum_analyze_threshold='20000');

CREATE VIEW stowhand.jobs AS
 SELECT id,
    serial AS queue_name,
    task AS task_identifier,
    payload,
    priority,
    run_at,
    attempts,
    max_attempts,
    last_error,
    created_at,
    updated_at,
    key,
        CASE
            WHEN (state = 'processing'::text) THEN started_at
            ELSE NULL::timestamp with time zone
        END AS locked_at,
    worker AS locked_by,
    revision,
    flags,
    lease_until,
    state,
    COALESCE(queue, 'default'::text) AS work_queue,
    resets,
    max_resets,
    started_at,
    finished_at,
    COALESCE(worker, last_worker) AS last_worker,
    cancel_requested,
    progress,
    progress_text,
    parent_id,
    waits_for
   FROM stowhand.live;

CREATE FUNCTION stowhand.add_job(identifier text, payload json DEFAULT '{}'::json, queue_name text DEFAULT NULL::text, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT NULL::integer, job_key text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, flags text[] DEFAULT NULL::text[], job_key_mode text DEFAULT 'replace'::text, work_queue text DEFAULT NULL::text, limit_key text DEFAULT NULL::text) RETURNS stowhand.jobs
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _payload json := coalesce(payload::json, '{}');
  _text text := _payload;
  _run_at timestamptz := coalesce(run_at, now());
  _max_attempts int := coalesce(max_attempts, 25);
  _flags text[] := flags;
  _mode text := coalesce(job_key_mode, 'replace');
  _queue text := work_queue;
  _notified text;
  _keyed "stowhand".live;
  _job "stowhand".jobs;
begin
  if limit_key is not null then queue_name := "stowhand".key_of_task(identifier, queue_name, limit_key); end if;
  if "stowhand".is_usual(identifier, _text, queue_name, _max_attempts, job_key, _flags, _queue) is not true then
    perform "stowhand".refuse_reserved(identifier);
    perform "stowhand".check_job(
      identifier, _payload, "stowhand".is_suspicious(_text), queue_name, _max_attempts, job_key, _flags, null, _queue);
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe', 'unique') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at, unsafe_dedupe or unique.', _mode
      using errcode = 'GWBKM';
  end if;
  if _queue is null then
    select q.queue into _queue from "stowhand".task_queues q where q.task = identifier;
  elsif _queue = 'default' then
    _queue := null;
  end if;
  if job_key is null then
    insert into "stowhand".live (task, payload, serial, run_at, max_attempts, priority, flags, queue, created_at, updated_at)
    values (identifier, _payload, queue_name, _run_at, _max_attempts, coalesce(priority, 0), _flags, _queue,
            now(), now())
    returning id, serial, task, payload, priority, run_at, attempts, max_attempts, last_error, created_at, updated_at, key,
      null::timestamptz, worker, revision, flags, lease_until, state, coalesce(queue, 'default') as work_queue, resets, max_resets, started_at, finished_at, coalesce(worker, last_worker) as last_worker, cancel_requested, progress, progress_text, parent_id, waits_for
    into _job;
  else
    _keyed := "stowhand".enqueue_keyed(
      identifier, _payload, _run_at, job_key, _mode, null, null, null, now(), _serial => queue_name,
      _max_attempts => _max_attempts, _priority => coalesce(priority, 0), _flags => _flags,
      _queue => _queue);
    _job := "stowhand".shown(_keyed);
  end if;
  _notified := pg_notify('stowhand:wake', '');
  return _job;
end $$;

CREATE FUNCTION stowhand.add_job(identifier text, payload jsonb, queue_name text DEFAULT NULL::text, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT NULL::integer, job_key text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, flags text[] DEFAULT NULL::text[], job_key_mode text DEFAULT 'replace'::text, work_queue text DEFAULT NULL::text, limit_key text DEFAULT NULL::text) RETURNS stowhand.jobs
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _payload json := coalesce(payload::json, '{}');
  _text text := _payload;
  _run_at timestamptz := coalesce(run_at, now());
  _max_attempts int := coalesce(max_attempts, 25);
  _flags text[] := flags;
  _mode text := coalesce(job_key_mode, 'replace');
  _queue text := work_queue;
  _notified text;
  _keyed "stowhand".live;
  _job "stowhand".jobs;
begin
  if limit_key is not null then queue_name := "stowhand".key_of_task(identifier, queue_name, limit_key); end if;
  if "stowhand".is_usual(identifier, _text, queue_name, _max_attempts, job_key, _flags, _queue) is not true then
    perform "stowhand".refuse_reserved(identifier);
    perform "stowhand".check_job(
      identifier, _payload, "stowhand".is_suspicious(_text), queue_name, _max_attempts, job_key, _flags, null, _queue);
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe', 'unique') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at, unsafe_dedupe or unique.', _mode
      using errcode = 'GWBKM';
  end if;
  if _queue is null then
    select q.queue into _queue from "stowhand".task_queues q where q.task = identifier;
  elsif _queue = 'default' then
    _queue := null;
  end if;
  if job_key is null then
    insert into "stowhand".live (task, payload, serial, run_at, max_attempts, priority, flags, queue, created_at, updated_at)
    values (identifier, _payload, queue_name, _run_at, _max_attempts, coalesce(priority, 0), _flags, _queue,
            now(), now())
    returning id, serial, task, payload, priority, run_at, attempts, max_attempts, last_error, created_at, updated_at, key,
      null::timestamptz, worker, revision, flags, lease_until, state, coalesce(queue, 'default') as work_queue, resets, max_resets, started_at, finished_at, coalesce(worker, last_worker) as last_worker, cancel_requested, progress, progress_text, parent_id, waits_for
    into _job;
  else
    _keyed := "stowhand".enqueue_keyed(
      identifier, _payload, _run_at, job_key, _mode, null, null, null, now(), _serial => queue_name,
      _max_attempts => _max_attempts, _priority => coalesce(priority, 0), _flags => _flags,
      _queue => _queue);
    _job := "stowhand".shown(_keyed);
  end if;
  _notified := pg_notify('stowhand:wake', '');
  return _job;
end $$;

CREATE FUNCTION stowhand.add_job(identifier text, payload text, queue_name text DEFAULT NULL::text, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, max_attempts integer DEFAULT NULL::integer, job_key text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, flags text[] DEFAULT NULL::text[], job_key_mode text DEFAULT 'replace'::text, work_queue text DEFAULT NULL::text, limit_key text DEFAULT NULL::text) RETURNS stowhand.jobs
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _payload json := coalesce(payload::json, '{}');
  _text text := _payload;
  _run_at timestamptz := coalesce(run_at, now());
  _max_attempts int := coalesce(max_attempts, 25);
  _flags text[] := flags;
  _mode text := coalesce(job_key_mode, 'replace');
  _queue text := work_queue;
  _notified text;
  _keyed "stowhand".live;
  _job "stowhand".jobs;
begin
  if limit_key is not null then queue_name := "stowhand".key_of_task(identifier, queue_name, limit_key); end if;
  if "stowhand".is_usual(identifier, _text, queue_name, _max_attempts, job_key, _flags, _queue) is not true then
    perform "stowhand".refuse_reserved(identifier);
    perform "stowhand".check_job(
      identifier, _payload, "stowhand".is_suspicious(_text), queue_name, _max_attempts, job_key, _flags, null, _queue);
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe', 'unique') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at, unsafe_dedupe or unique.', _mode
      using errcode = 'GWBKM';
  end if;
  if _queue is null then
    select q.queue into _queue from "stowhand".task_queues q where q.task = identifier;
  elsif _queue = 'default' then
    _queue := null;
  end if;
  if job_key is null then
    insert into "stowhand".live (task, payload, serial, run_at, max_attempts, priority, flags, queue, created_at, updated_at)
    values (identifier, _payload, queue_name, _run_at, _max_attempts, coalesce(priority, 0), _flags, _queue,
            now(), now())
    returning id, serial, task, payload, priority, run_at, attempts, max_attempts, last_error, created_at, updated_at, key,
      null::timestamptz, worker, revision, flags, lease_until, state, coalesce(queue, 'default') as work_queue, resets, max_resets, started_at, finished_at, coalesce(worker, last_worker) as last_worker, cancel_requested, progress, progress_text, parent_id, waits_for
    into _job;
  else
    _keyed := "stowhand".enqueue_keyed(
      identifier, _payload, _run_at, job_key, _mode, null, null, null, now(), _serial => queue_name,
      _max_attempts => _max_attempts, _priority => coalesce(priority, 0), _flags => _flags,
      _queue => _queue);
    _job := "stowhand".shown(_keyed);
  end if;
  _notified := pg_notify('stowhand:wake', '');
  return _job;
end $$;

CREATE FUNCTION stowhand.add_jobs(specs stowhand.job_spec[], job_key_preserve_run_at boolean DEFAULT false) RETURNS SETOF stowhand.jobs
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _twice text;
begin
  select s.job_key into _twice from unnest(specs) s where s.job_key is not null
    group by s.job_key having count(*) > 1 limit 1;
  if _twice is not null then
    raise exception 'Duplicate job key % in one call.', to_json(_twice) using errcode = '21000';
  end if;
  return query
    select ("stowhand".shown(added.job)).* from (
      select j.n, "stowhand".enqueue(
        j.identifier, j.payload, j.queue_name, j.run_at, null, j.max_attempts, j.job_key, j.priority, j.flags,
        case when job_key_preserve_run_at then 'preserve_run_at' end, _queue => j.work_queue) as job
      from (
        -- The columns have the names of the type. A list of names here would be wrong after a new field of job_spec.
        select s.*, row_number() over () as n from unnest(specs) s
        order by s.job_key collate "C" nulls first, n offset 0
      ) j offset 0
    ) added order by added.n;
end $$;

CREATE FUNCTION stowhand.admit(_picked bigint[], _tasks text[], _free integer, _rooms jsonb, _at timestamp with time zone, OUT ids bigint[], OUT limited bigint[], OUT slots integer[], OUT is_locked boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
  _names text[];
  _locked text[];
  _room int[];
  _ahead int[];
  _starts int[];
  _one "stowhand".task_limits;
  _is_rated boolean;
  _count int;
begin
  _names := array(
    select distinct n.name
    from (select distinct u.task from unnest(_tasks) as u(task)) as u
      join "stowhand".task_limits t on t.task = u.task
      cross join lateral (values (t.concurrency), (t.rate)) as n(name)
    where n.name is not null);
  _locked := array(select l.name from "stowhand".limits l where l.name = any(_names) order by l.name for update skip locked);
  is_locked := cardinality(_locked) < cardinality(_names);
  -- A new statement, now that the rows are locked: it sees the slots and starts of all claims before this one.
  select array_agg(case when l.held_until > _at then 0 else greatest(l.concurrency - u.used, 0) end order by n.place),
      array_agg(greatest(l.concurrency / 2 - u.used, 0) order by n.place),
      array_agg(case when l.held_until > _at then 0 else "stowhand".starts_allowed(
        l.next_start, l.rate, l.rate_seconds, l.burst, _at) end order by n.place)
    into _room, _ahead, _starts
    from unnest(_locked) with ordinality as n(name, place)
      join "stowhand".limits l on l.name = n.name
      cross join lateral (select count(*)::int as used from "stowhand".used_slots(n.name)) u;
  if array_position(_tasks, _tasks[1]) = 1 and cardinality(array_remove(_tasks, _tasks[1])) = 0 then
    -- All jobs are of one task, which is usual in a large batch.
    select t.* into _one from "stowhand".task_limits t where t.task = _tasks[1];
    _is_rated := _one.rate is not null or exists (
      select from "stowhand".limits l where l.name = _one.key_limit and l.key_rate is not null);
    _count := least(cardinality(_picked), (_rooms->>_tasks[1])::int);
    if _one.concurrency is not null then
      _count := least(_count, case when _one.concurrency = any(_locked) then _room[array_position(_locked, _one.concurrency)] else 0 end);
    end if;
    if _one.rate is not null then
      _count := least(_count, case when _one.rate = any(_locked) then _starts[array_position(_locked, _one.rate)] else 0 end);
    end if;
    if _is_rated then
      _count := least(_count, _free);
    elsif _one.concurrency is not null then
      _count := least(_count, greatest(_free, _ahead[array_position(_locked, _one.concurrency)]));
    end if;
    ids := _picked[:_count];
    if _one.concurrency is not null then
      limited := ids;
      slots := "stowhand".free_slots(_one.concurrency, _count);
    end if;
    return;
  end if;
  with picked as (
    select p.id, p.place, t.concurrency, t.rate,
      t.rate is not null or exists (
        select from "stowhand".limits l where l.name = t.key_limit and l.key_rate is not null) as is_rated,
      array_position(_locked, t.concurrency) as c, array_position(_locked, t.rate) as r,
      row_number() over (partition by t.concurrency order by p.place) as c_number,
      row_number() over (partition by t.rate order by p.place) as r_number,
      row_number() over (partition by p.task order by p.place) as task_number, (_rooms->>p.task)::int as task_room
    from unnest(_picked, _tasks) with ordinality as p(id, task, place)
      left join "stowhand".task_limits t on t.task = p.task
  ), fitting as (
    select f.*, row_number() over (order by f.place) as number from picked f
    where (f.concurrency is null or f.c is not null and coalesce(f.c_number <= _room[f.c], true))
      and (f.rate is null or f.r is not null and coalesce(f.r_number <= _starts[f.r], true))
      and coalesce(f.task_number <= f.task_room, true)
  ), admitted as (
    select a.*, row_number() over (partition by a.c order by a.place) as slot_number from fitting a
    where a.number <= _free or not a.is_rated and coalesce(a.c_number <= _ahead[a.c], true)
  ), free as materialized (
    select a.c, "stowhand".free_slots(_locked[a.c], count(*)::int) as slots from admitted a where a.c is not null group by a.c
  )
  select array_agg(a.id order by a.place), array_agg(a.id) filter (where a.c is not null),
      array_agg(f.slots[a.slot_number]) filter (where a.c is not null)
    into ids, limited, slots
    from admitted a left join free f on f.c = a.c;
  ids := coalesce(ids, '{}');
end $$;

CREATE FUNCTION stowhand.admit_keys(_picked bigint[], _tasks text[], _held text[], _at timestamp with time zone, OUT ids bigint[], OUT keyed bigint[], OUT names text[], OUT is_changed boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
  _ids bigint[];
  _names text[];
  _locked text[];
  _rooms int[];
  _parked bigint[];
  _parked_names text[];
  _firsts "stowhand".place[];
begin
  ids := _picked; is_changed := false;
  if not exists (select from "stowhand".task_limits t where t.key_limit is not null and t.task = any(_tasks)) then return; end if;
  select array_agg(k.id order by k.place), array_agg(k.name order by k.place) into _ids, _names from (
    select p.id, p.place, "stowhand".key_name(t.key_limit, j.payload #>> t.key_path) as name
    from unnest(_picked, _tasks) with ordinality as p(id, task, place)
      join "stowhand".task_limits t on t.task = p.task and t.key_limit is not null
      cross join lateral (
        select l.payload from "stowhand".live l where l.id = p.id and l.serial is null offset 0) j) k;
  if _ids is null then return; end if;
  _locked := "stowhand".lock_keys(array(select distinct n.name from unnest(_names) as n(name)));
  -- A new statement under the locks. A picked job that has its key already takes a place of it.
  _rooms := array(
    select s.room - coalesce(cardinality(array_positions(_held, s.name)), 0) from "stowhand".key_states(_locked, _at) s);
  with numbered as (
    select u.id, u.name, u.place, array_position(_locked, u.name) as k,
      row_number() over (partition by u.name order by u.place) as number
    from unnest(_ids, _names) with ordinality as u(id, name, place)
  )
  select array_agg(n.id order by n.place) filter (where n.number <= _rooms[n.k]),
      array_agg(n.name order by n.place) filter (where n.number <= _rooms[n.k]),
      array_agg(n.id) filter (where n.number > _rooms[n.k])
    into keyed, names, _parked from numbered n;
  if _parked is not null then
    with parked as (
      update "stowhand".live l set serial = _names[array_position(_ids, l.id)], absorbed = true where l.id = any(_parked)
        returning l.id, l.serial, l.priority, l.run_at
    ), first as (
      select distinct on (p.serial) p.serial, row(p.priority, p.run_at, p.id)::"stowhand".place as place
      from parked p order by p.serial, p.priority, p.run_at, p.id
    )
    select array_agg(f.serial), array_agg(f.place) into _parked_names, _firsts from first f;
    -- An open key needs a hint because `admit` may refuse its kept jobs, and then no claim of them computes the hint.
    perform "stowhand".hint_parked(_parked_names, _firsts, _at);
  end if;
  is_changed := cardinality(_ids) > coalesce(cardinality(keyed), 0);
  if is_changed then
    ids := array(
      select p.id from unnest(_picked) with ordinality as p(id, place)
      where p.id <> all(_ids) or p.id = any(keyed) order by p.place);
  end if;
end $$;

CREATE FUNCTION stowhand.adopt(_parent bigint, _step text, _places integer[], _ids bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  update "stowhand".live j set parent_id = _parent, parent_step = _step, parent_place = c.place
    from unnest(_ids, _places) as c(id, place) where j.id = c.id and j.parent_id is null
$$;

CREATE FUNCTION stowhand.aftermath(_jobs stowhand.live[], _verdicts stowhand.verdict[], _at timestamp with time zone) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _job "stowhand".live;
  _one "stowhand".verdict;
  _stayed bigint[] := '{}';
begin
  for _n in 1..cardinality(_verdicts) loop
    _one := _verdicts[_n];
    if _one.state in ('completed', 'canceled') then
      _job := _jobs[_n];
      _job.state := _one.state;
      _job.attempts := _one.attempts;
      _job.resets := _one.resets;
      _job.last_error := coalesce(_one.error, _job.last_error);
      _job.finished_at := _at;
      _job.last_worker := coalesce(_job.worker, _job.last_worker);
      _job.progress := null; _job.progress_text := null;
      _job.token := null; _job.settled_token := null; _job.worker := null; _job.lease_until := null;
      return next _job;
    else
      _stayed := _stayed || _one.id;
    end if;
  end loop;
  return query select * from "stowhand".without_tokens(_stayed);
end $$;

CREATE FUNCTION stowhand.append_json(_old json, _new json) RETURNS json
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
  _head text := btrim(_old::text, E' \t\n\r');
  _tail text := btrim(_new::text, E' \t\n\r');
begin
  if json_array_length(_old) = 0 then return _new; end if;
  if json_array_length(_new) = 0 then return _old; end if;
  return (left(_head, -1) || ',' || substr(_tail, 2))::json;
end $$;

CREATE FUNCTION stowhand.as_completed(_id bigint, _enqueued_at timestamp with time zone, _new stowhand.live) RETURNS stowhand.live
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _old "stowhand".history;
  _job "stowhand".live := _new;
begin
  select h.* into _old from "stowhand".history h where h.id = _id order by h.finished_at desc limit 1;
  _job.id := _id;
  _job.state := 'completed';
  if _old.id is null then
    _job.run_at := _enqueued_at; _job.created_at := _enqueued_at; _job.updated_at := _enqueued_at;
    return _job;
  end if;
  select _old.task, _old.payload, _old.queue, _old.serial, _old.priority, _old.max_attempts, _old.max_resets, _old.flags into _job.task, _job.payload, _job.queue, _job.serial, _job.priority, _job.max_attempts, _job.max_resets, _job.flags;
  _job.run_at := _old.run_at; _job.attempts := _old.attempts; _job.resets := _old.resets;
  _job.last_error := _old.last_error; _job.revision := _old.revision; _job.created_at := _old.created_at;
  _job.updated_at := _old.updated_at; _job.started_at := _old.started_at; _job.finished_at := _old.finished_at;
  _job.last_worker := _old.worker; _job.cancel_requested := _old.cancel_requested; _job.epoch := _old.epoch;
  return _job;
end $$;

CREATE FUNCTION stowhand.at(_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql
    AS $$
  select case when _now is null then clock_timestamp() else "stowhand".pinned(_now) end
$$;

CREATE FUNCTION stowhand.beat(_ids bigint[], _tokens uuid[], _lease double precision, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(id bigint, token uuid, found text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _mine bigint[];
  _beaten bigint;
begin
  _mine := array(
    select j.id from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id from "stowhand".live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  update "stowhand".live j set lease_until = _at + _lease * interval '1 second' where j.id = any(_mine);
  get diagnostics _beaten = row_count;
  if _beaten < cardinality(_mine) then perform "stowhand".check_written(_beaten, cardinality(_mine)); end if;
  return query
    select f.id, f.token,
      case when j.token is distinct from f.token then 'lost' when j.id = any(_mine) then 'canceled' else 'busy' end
    from unnest(_ids, _tokens) as f(id, token) left join lateral (
      select l.id, l.token, l.cancel_requested from "stowhand".live l where l.id = f.id offset 0) j on true
    where j.token is distinct from f.token or not j.id = any(_mine) or j.cancel_requested;
end $$;

CREATE FUNCTION stowhand.bury(_verdicts stowhand.verdict[], _keep boolean, _at timestamp with time zone) RETURNS void
    LANGUAGE sql
    SET enable_hashjoin TO 'on'
    AS $$
  select "stowhand".end_children(array_agg(v.id),
    array_agg(case when v.state = 'completed' then coalesce(v.result, 'null')::json end), array_agg(v.error), _at)
  from unnest(_verdicts) as v where v.state in ('completed', 'canceled') and exists (
    select from "stowhand".live j where j.parent_id is not null)
  having count(*) > 0;
  -- Join verdicts and rows by hashing, whatever the settings of the caller: two lists of 250 are 62,500 comparisons.
  with gone as (
    delete from "stowhand".live j
      where j.id = any(array(select v.id from unnest(_verdicts) as v where v.state in ('completed', 'canceled')))
      returning j.*
  )
  insert into "stowhand".history (id, task, queue, serial, key, priority, run_at, max_attempts, max_resets, flags, revision, created_at, updated_at, started_at, cancel_requested, parent_id, payload, state, attempts, resets, last_error, settled_token, epoch, worker,
    finished_at, result, replaced, on_failure)
  select g.id, g.task, g.queue, g.serial, g.key, g.priority, g.run_at, g.max_attempts, g.max_resets, g.flags, g.revision, g.created_at, g.updated_at, g.started_at, g.cancel_requested, g.parent_id, coalesce(v.payload::json, g.payload), v.state, v.attempts, v.resets, coalesce(v.error, g.last_error),
    v.settled_token, v.epoch, coalesce(g.worker, g.last_worker), _at, v.result::json, g.replaced, g.on_failure
  from unnest(_verdicts) as v join gone g on g.id = v.id
  where _keep
$$;

CREATE FUNCTION stowhand.cancel(_id bigint, _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT done text, OUT why text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _state text;
begin
  why := '';
  perform "stowhand".cancel_children(array(
    select j.id from "stowhand".live j where j.id = _id and j.state in ('queued', 'errored', 'processing')), _keep, _at);
  select j.state into _state from "stowhand".live j where j.id = _id for update;
  if _state in ('queued', 'errored') then
    perform "stowhand".forget_periods(array[_id]);
    perform "stowhand".bury(
      array[row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, null, null, null,
                null, null)::"stowhand".verdict], _keep, _at)
      from "stowhand".live j where j.id = _id;
    done := 'done';
  elsif _state = 'processing' then
    update "stowhand".live j set cancel_requested = true where j.id = _id;
    perform "stowhand".wake();
    done := 'asked'; why := 'it is running; its worker will stop it';
  elsif _state = 'failed' then
    done := 'refused'; why := 'it has failed already; remove it, or retry it';
  else
    select h.state into _state from "stowhand".history h where h.id = _id;
    if _state = 'canceled' then
      done := 'unchanged'; why := 'it is canceled already';
    elsif _state = 'completed' then
      done := 'refused'; why := 'it has completed already';
    else
      done := 'missing';
    end if;
  end if;
end $$;

CREATE FUNCTION stowhand.cancel_children(_parents bigint[], _keep boolean, _at timestamp with time zone, _skips boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _ids bigint[];
  _waiting bigint[];
begin
  if not exists (select from "stowhand".live j where j.parent_id = any(_parents) and j.parent_id is not null) then return; end if;
  _ids := array(
    with recursive family as (
      select j.id from "stowhand".live j where j.parent_id = any(_parents) and j.parent_id is not null
      union
      select c.id from family f cross join lateral (
        select j.id from "stowhand".live j where j.parent_id = f.id and j.parent_id is not null offset 0) c)
    select f.id from family f);
  if _skips then
    _ids := array(select j.id from "stowhand".live j where j.id = any(_ids) order by j.id desc for update skip locked);
  else
    perform from "stowhand".live j where j.id = any(_ids) order by j.id desc for update;
  end if;
  update "stowhand".live j set cancel_requested = true where j.id = any(_ids) and j.state = 'processing';
  _waiting := array(select j.id from "stowhand".live j where j.id = any(_ids) and j.state in ('queued', 'errored'));
  perform "stowhand".forget_periods(_waiting);
  perform "stowhand".bury(array_agg(
      row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, 'its parent was canceled',
          null, null, null, null)::"stowhand".verdict), _keep, _at)
    from "stowhand".live j where j.id = any(_waiting) having count(*) > 0;
  perform "stowhand".wake();
end $$;

CREATE FUNCTION stowhand.cancel_expired(_ids bigint[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  perform "stowhand".forget_periods(array_agg(j.id)), "stowhand".bury(array_agg(
      row(j.id, null, null, 'canceled', j.attempts, j.resets, j.epoch, j.settled_token, null, 'it expired before its first attempt', null, null, null,
          null)::"stowhand".verdict), true, _at)
    from (select distinct u.id from unnest(_ids) as u(id) order by u.id) f cross join lateral (
      select l.* from "stowhand".live l where l.id = f.id and l.state = 'queued' and l.expires_at <= _at offset 0
      for update skip locked) j
    having count(*) > 0;
end $$;

CREATE FUNCTION stowhand.cancel_expired_holder(_key text, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  perform "stowhand".cancel_expired(array_agg(l.id), _at) from "stowhand".live l
    where l.key = _key and l.state = 'queued' and l.expires_at <= _at having count(*) > 0;
end $$;

CREATE FUNCTION stowhand.carry_out(_verdicts stowhand.verdict[], _keep boolean, _at timestamp with time zone, _tells boolean DEFAULT true) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _one "stowhand".verdict;
  _limits text[];
begin
  if exists (select from "stowhand".task_limits) then
    _limits := "stowhand".slots_held(array(select v.id from unnest(_verdicts) as v));
  end if;
  if exists (select from unnest(_verdicts) as v where v.outcome is not null) then
    perform "stowhand".keep_tries(_verdicts, _at);
  end if;
  foreach _one in array _verdicts loop
    if _one.state = 'canceled' then perform "stowhand".forget_periods(array[_one.id]); end if;
    continue when _one.state in ('completed', 'canceled');
    update "stowhand".live j
      set state = _one.state,
          attempts = case when _one.state = 'failed' and j.loses_retries is not null then j.max_attempts
                          else _one.attempts end,
          resets = _one.resets, epoch = _one.epoch,
          settled_token = _one.settled_token,
          token = null, worker = null, last_worker = coalesce(j.worker, j.last_worker), lease_until = null,
          last_error = coalesce(_one.error, j.last_error),
          payload = coalesce(_one.payload::json, j.payload),
          run_at = coalesce(_at + _one.delay * interval '1 second', j.run_at),
          finished_at = case when _one.state = 'failed' then _at end,
          waits_for = null,
          progress = case when _one.state <> 'failed' then j.progress end,
          progress_text = case when _one.state <> 'failed' then j.progress_text end,
          -- A released job was not begun, so it keeps its expiry. A settlement or a reset ends it.
          expires_at = case when _one.settled_token is null and _one.epoch = j.epoch then j.expires_at end
      where j.id = _one.id;
    if not found then perform "stowhand".check_written(0, 1); end if;
  end loop;
  if _tells and exists (select from unnest(_verdicts) as v where v.state = 'failed') then
    perform "stowhand".tell_of_failures(array_agg(v.id), array_agg(v.error_class), _at)
      from unnest(_verdicts) as v where v.state = 'failed';
  end if;
  if exists (select from unnest(_verdicts) as v where v.state = 'failed') then
    perform "stowhand".end_failed(array(select v.id from unnest(_verdicts) as v where v.state = 'failed'), _at);
  end if;
  if exists (select from unnest(_verdicts) as v where v.state = 'canceled') then
    perform "stowhand".cancel_children(
      array(select v.id from unnest(_verdicts) as v where v.state = 'canceled'), _keep, _at, true);
  end if;
  if exists (select from unnest(_verdicts) as v where v.state in ('completed', 'canceled')) then
    perform "stowhand".bury(_verdicts, _keep, _at);
    perform "stowhand".check_written(0, count(*)) from unnest(_verdicts) as v join "stowhand".live j on j.id = v.id
      where v.state in ('completed', 'canceled') having count(*) > 0;
  end if;
  perform "stowhand".free_serials(array_agg(v.serial), _at)
    from unnest(_verdicts) as v where v.serial is not null and v.token is not null having count(*) > 0;
  if _limits is not null then perform "stowhand".wake_for_limits(_limits, _at); end if;
end $$;

CREATE FUNCTION stowhand.check_handler(_handler json) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
  if json_typeof(_handler) <> 'object' or octet_length(_handler::text) > 16384
      or _handler->>'key' is not null or _handler->>'expires' is not null
      or _handler->>'payload' is not null or _handler->>'on_failure' is not null then
    raise exception 'on_failure is an object without key, expires, payload and on_failure, of 16 KiB at most.' using errcode = '22023';
  end if;
  perform "stowhand".check_name('A task identifier', coalesce(_handler->>'task', ''), 128, 'GWBID');
  perform "stowhand".check_serial(_handler->>'serial');
  perform "stowhand".check_queue(_handler->>'queue');
  perform "stowhand".refuse_reserved(_handler->>'task');
end $$;

CREATE FUNCTION stowhand.check_job(_task text, _payload json, _suspicious boolean, _serial text, _max_attempts integer, _key text, _flags text[], _max_resets integer, _queue text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
  _flag text;
begin
  perform "stowhand".check_name('A task identifier', coalesce(_task, ''), 128, 'GWBID');
  perform "stowhand".check_serial(_serial);
  perform "stowhand".check_name('A job key', _key, 512, 'GWBJK');
  perform "stowhand".check_queue(_queue);
  if _max_attempts < 1 then
    raise exception 'max_attempts is at least 1 (here it is %).', _max_attempts using errcode = 'GWBMA';
  elsif _max_resets < 0 then
    raise exception 'max_resets is at least 0 (here it is %).', _max_resets using errcode = '22023';
  elsif cardinality(_flags) > 64 then
    raise exception 'A job has at most 64 flags (this one has %).', cardinality(_flags) using errcode = '22023';
  elsif array_position(_flags, null) is not null then
    raise exception 'A flag is 1 to 128 characters and never NULL.' using errcode = '22023';
  end if;
  foreach _flag in array coalesce(_flags, '{}') loop
    perform "stowhand".check_name('A flag', _flag, 128, '22023');
  end loop;
  perform "stowhand".check_size(_payload);
  if _suspicious then perform "stowhand".check_suspicious(_payload); end if;
end $$;

CREATE FUNCTION stowhand.check_name(_what text, _name text, _limit integer, _code text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
  if length(_name) not between 1 and _limit then
    raise exception '% has 1 to % characters (this one has %).', _what, _limit, length(_name) using errcode = _code;
  elsif _name ~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028\\u2029]' then
    raise exception '% is one line of text (this one has a control character: %).', _what, to_json(left(_name, 200))
      using errcode = _code;
  end if;
end $$;

CREATE FUNCTION stowhand.check_queue(_queue text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
begin
  perform "stowhand".check_name('The name of a queue', _queue, 128, 'GWBQN');
  if _queue ~ '^ |,| $' then
    raise exception 'The name of a queue has no comma and no blank at its ends (this one is %).', to_json(_queue)
      using errcode = 'GWBQN';
  end if;
end $_$;

CREATE FUNCTION stowhand.check_rules(_on_failure json, _expires double precision, _unique_period double precision, _mode text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
  if _expires <= 0 or _expires > 3155760000 then
    raise exception 'expires is more than 0 seconds, and at most 100 years.' using errcode = '22023';
  end if;
  if _unique_period <= 0 or _unique_period > 3155760000 or _unique_period is not null and _mode <> 'unique' then
    raise exception 'unique_period is more than 0 seconds, at most 100 years, and of the job_key_mode unique.'
      using errcode = '22023';
  end if;
  if _on_failure is not null then perform "stowhand".check_handler(_on_failure); end if;
end $$;

CREATE FUNCTION stowhand.check_serial(_name text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
  _tab constant int := position(E'\t' in _name);
begin
  if _tab > 0 then
    perform "stowhand".check_name('The name of a limit', left(_name, _tab - 1), 128, 'GWBQN');
    if length(_name) > _tab then perform "stowhand".check_name('The key of a limit', substr(_name, _tab + 1), 128, 'GWBQN'); end if;
  else
    perform "stowhand".check_name('A serial key', _name, 128, 'GWBQN');
  end if;
end $$;

CREATE FUNCTION stowhand.check_size(_payload json) RETURNS json
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
  if octet_length(_payload::text) > 1048576 then
    raise exception 'The payload would take % bytes; the limit is 1 MiB (1048576 bytes).', octet_length(_payload::text)
      using errcode = '54000', hint = 'Store large data elsewhere and put its address into the payload.';
  end if;
  return _payload;
end $$;

CREATE FUNCTION stowhand.check_suspicious(_payload json) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
declare
  _text text := _payload::text;
  _bare text;
begin
  if position(E'\\u' in _text) > 0 then
    perform _payload::jsonb;
  end if;
  if _text ~ '[eE][-+]?[0-9]{3}|[0-9]{20}' then
    _bare := regexp_replace(_text, E'"(?:[^"\\\\]|\\\\.)*"', '""', 'g');
    if _bare ~ '[eE][-+]?0*(?:309|3[1-9][0-9]|[4-9][0-9]{2}|[1-9][0-9]{3})' then
      raise exception 'A number in the payload has an exponent beyond the limit of 308.' using errcode = '54000';
    elsif _bare ~ '(?:^|[^0-9.])[0-9]{150}[0-9]{151}' then
      raise exception 'A number in the payload has more than 300 digits.' using errcode = '54000';
    end if;
  end if;
  if jsonb_path_exists(_payload::jsonb, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")') then
    raise exception 'The payload is nested deeper than 64.' using errcode = '54000';
  end if;
end $_$;

CREATE FUNCTION stowhand.check_written(_written bigint, _wanted bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  if _written < _wanted then
    raise exception 'A trigger leaves % of % jobs unchanged.', _wanted - _written, _wanted using errcode = 'GWTRG';
  end if;
end $$;

CREATE FUNCTION stowhand.claim(_worker text, _token uuid, _limit integer, _lease double precision, _tasks text[], _forbidden text[], _suspects boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _after_priority integer DEFAULT NULL::integer, _after_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, _after_id bigint DEFAULT NULL::bigint, _passed bigint[] DEFAULT NULL::bigint[], _apart boolean DEFAULT false, _queues text[] DEFAULT NULL::text[], _excluded text[] DEFAULT NULL::text[], _free integer DEFAULT NULL::integer, _rooms jsonb DEFAULT NULL::jsonb) RETURNS TABLE(id bigint, task text, payload text, serial text, priority integer, run_at timestamp with time zone, attempts integer, max_attempts integer, resets integer, max_resets integer, key text, flags text[], last_error text, revision integer, created_at timestamp with time zone, updated_at timestamp with time zone, started_at timestamp with time zone, queue text, parent_id bigint, epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _until timestamptz := _at + _lease * interval '1 second';
  _most int := _limit;
  _picked bigint[] := '{}';
  _refused bigint[] := '{}';
  _changed bigint;
  _in_serials "stowhand".serial_heads;
  _last record;
  _expires boolean := false;
  -- While no task has a limit, this query is the only cost of limits.
  _limited_tasks text[] := array(select t.task from "stowhand".task_limits t);
  _is_limited boolean := cardinality(_limited_tasks) > 0 or _rooms is not null;
  _fair text[];
  _is_any_fair boolean := false;
  _free_tasks text[];
  _without text[];
  _is_parking boolean := false;
  _task_names text[];
  _admitted record;
  _keyed record;
  _held text[];
  _key_slots int[];
begin
  -- This lock is shared by claims and exclusive for `abandon` of this token. So either `abandon` sees these jobs, or
  -- this claim sees the dead token.
  perform pg_advisory_xact_lock_shared(uuid_hash_extended(_token, 0));
  if exists (select from "stowhand".dead_tokens d where d.token = _token) then return; end if;
  -- While nothing is paused and nothing has expired, this query is the only cost of pauses and expiry.
  if exists (select from "stowhand".pauses) or exists (select from "stowhand".expiring e where e.expires_at <= _at) then
    if "stowhand".expire(_at) then
      id := 0;
      return next;
      return;
    end if;
    _expires := exists (select from "stowhand".expiring e where e.expires_at <= _at);
    _tasks := "stowhand".unpaused(_tasks);
    _excluded := "stowhand".with_paused(_excluded);
    if cardinality(_tasks) = 0 then return; end if;
  end if;
  if _is_limited then
    _tasks := "stowhand".open_tasks(_tasks, _at);
    if cardinality(_tasks) = 0 then return; end if;
    select array_agg(t.task) filter (where _tasks is null or t.task = any(_tasks)), count(*) > 0
      into _fair, _is_any_fair from "stowhand".task_limits t where t.is_fair;
  end if;
  _free_tasks := _tasks;
  if _fair is not null and not _suspects then
    _is_parking := "stowhand".park_due(_fair, _queues, _excluded, _at);
    _free_tasks := array(
      select t.task from unnest(coalesce(_tasks, "stowhand".waiting_tasks())) with ordinality as t(task, place)
      where t.task <> all(_fair) order by t.place);
    -- Some keys may have no parked job yet, so no job of these tasks starts: their turns would be missed.
    if _is_parking then
      _tasks := _free_tasks;
      _fair := null;
    end if;
  end if;
  if _is_limited and _tasks is not null then
    -- Many keys may wait for tasks that this claim leaves out, for example for a full limit of all keys.
    _without := (select array_agg(n.name) from (
      select t.key_limit as name from "stowhand".task_limits t where t.key_limit is not null
      group by t.key_limit having not bool_or(t.task = any(_tasks))) n);
  end if;
  if _passed is not null then _limit := _limit + cardinality(_passed); end if;
  if _suspects then
    select p.heads, p.names, false into _in_serials
      from "stowhand".pick_suspects(_limit, _tasks, _forbidden, _queues, _excluded, _at) p;
    _picked := _in_serials.heads;
  else
    if _free_tasks is null or cardinality(_free_tasks) > 0 then
      _picked := "stowhand".pick_free(
        _limit, _free_tasks, _forbidden, _queues, _excluded, _at, _after_priority, _after_run_at, _after_id);
    end if;
    -- While no job has a serial key, this query is the only cost of serial keys.
    if exists (select from "stowhand".live j where j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2)
       or exists (select from "stowhand".limit_keys q where q.hint_run_at is not null) then
      select null::int as priority, null::timestamptz as run_at, null::bigint as id into _last;
      if cardinality(_picked) >= _limit then
        select j.priority, j.run_at, j.id into _last from "stowhand".live j where j.id = _picked[_limit];
      end if;
      select p.heads, p.names, p.unfinished into _in_serials from "stowhand".pick_heads(
        _limit, _tasks, _forbidden, _queues, _excluded, _at, _last.priority, _last.run_at, _last.id, _fair, _without) p;
      if cardinality(_in_serials.heads) > 0 then
        _picked := array(
          select j.id from "stowhand".live j where j.id = any(_picked || _in_serials.heads)
          order by case when _fair is null or j.serial is null then row(j.priority, j.run_at, j.id)::"stowhand".place
            else "stowhand".key_place(j.serial, row(j.priority, j.run_at, j.id)::"stowhand".place, _at) end
          limit _limit);
      elsif _in_serials.unfinished and cardinality(_picked) = 0 then
        id := 0;
        return next;
        return;
      end if;
    end if;
  end if;
  if _expires then  -- an expired job whose row another transaction had locked
    _picked := array(
      select p.id from unnest(_picked) with ordinality as p(id, place) where not exists (
        select from "stowhand".live j where j.id = p.id and j.expires_at <= _at) order by p.place);
  end if;
  if _passed is not null then
    _picked := array(
      select p.id from unnest(_picked) with ordinality as p(id, place)
      where p.id <> all(_passed) order by p.place limit _most);
  end if;
  if _apart then
    foreach id in array _picked loop
      last_error := "stowhand".claim_refusal(id, _worker, _token, _until, _at);
      continue when last_error is null;
      _refused := _refused || id;
      id := -id;
      return next;
    end loop;
    _picked := array(
      select p.id from unnest(_picked) with ordinality as p(id, place) where p.id <> all(_refused) order by p.place);
  end if;
  select null::bigint[] as limited, null::int[] as slots into _admitted;
  select null::bigint[] as keyed, null::text[] as names into _keyed;
  if cardinality(_in_serials.heads) > 0 then
    _held := array(select j.serial from "stowhand".live j
                   where j.id = any(_in_serials.heads) and j.id = any(_picked) and position(E'\t' in j.serial) > 0);
  end if;
  if _is_limited and cardinality(_picked) > 0 then
    _task_names := array(
      select j.task from unnest(_picked) with ordinality as p(id, place)
        cross join lateral (select l.task from "stowhand".live l where l.id = p.id offset 0) j
      order by p.place);
    _is_limited := _rooms is not null or _limited_tasks && _task_names;
  end if;
  if _is_limited and cardinality(_picked) > 0 then
    _keyed := "stowhand".admit_keys(_picked, _task_names, _held, _at);
    if cardinality(_keyed.ids) < cardinality(_picked) then
      _task_names := array(select _task_names[array_position(_picked, p.id)]
                           from unnest(_keyed.ids) with ordinality as p(id, place) order by p.place);
    end if;
    _admitted := "stowhand".admit(_keyed.ids, _task_names, coalesce(_free, _most), _rooms, _at);
    _picked := _admitted.ids;
    if cardinality(_picked) = 0 and (_admitted.is_locked or _keyed.is_changed) then
      perform set_config('synchronous_commit', 'off', true);  -- a job whose parking is lost in a crash is parked again
      id := 0;
      return next;
    end if;
  end if;
  if _keyed.keyed is not null or cardinality(_held) > 0 then
    if _keyed.keyed = _picked then
      _key_slots := "stowhand".slots_of_keys(_keyed.names);
    else
      _key_slots := "stowhand".slots_of_keys(array(
        select coalesce(_keyed.names[array_position(_keyed.keyed, p.id)], j.serial)
        from unnest(_picked) with ordinality as p(id, place)
          cross join lateral (select l.serial from "stowhand".live l where l.id = p.id offset 0) j
        order by p.place));
    end if;
  end if;
  if cardinality(_picked) = 0 then
    if _is_parking or _fair is not null and "stowhand".show_hidden_keys(_at) then
      perform set_config('synchronous_commit', 'off', true);  -- as above
      id := 0;
      return next;
    end if;
    return;
  end if;

  return query
  update "stowhand".live j
    set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
        token = _token, settled_token = null, worker = _worker,
        lease_until = _until, started_at = _at, absorbed = false,
        serial = case when j.serial is null and _keyed.keyed is not null
          then _keyed.names[array_position(_keyed.keyed, j.id)] else j.serial end,
        key_slot = case when _key_slots is not null then _key_slots[array_position(_picked, j.id)]
                        when j.serial is not null then 1 end,
        limit_name = case when _admitted.limited is not null then (
          select t.concurrency from "stowhand".task_limits t where t.task = j.task) end,
        limit_slot = _admitted.slots[array_position(_admitted.limited, j.id)]
    where j.id = any(_picked)
    returning j.id, j.task, j.payload::text, j.serial, j.priority, j.run_at, j.attempts, j.max_attempts, j.resets, j.max_resets, j.key, j.flags, j.last_error, j.revision, j.created_at, j.updated_at, j.started_at, coalesce(j.queue, 'default'), j.parent_id, j.epoch;
  get diagnostics _changed = row_count;
  if _changed < cardinality(_picked) then perform "stowhand".check_written(_changed, cardinality(_picked)); end if;

  if _is_limited then perform "stowhand".note_starts(_picked, _task_names, _at); end if;
  if _is_any_fair then
    -- Keys of one claim have had their turns in its order.
    update "stowhand".limit_keys q set served_at = _at, turn = s.turn from (
      select k.serial, nextval('"stowhand".turns') as turn from (
        select j.serial from unnest(_picked) with ordinality as p(id, place) cross join lateral (
            select l.task, l.serial from "stowhand".live l where l.id = p.id offset 0) j
          join "stowhand".task_limits t on t.task = j.task and t.is_fair
        order by p.place) k) s
    where q.name = s.serial;
  end if;
  if cardinality(_in_serials.names) > 0 or _keyed.keyed is not null then
    perform "stowhand".clear_hints(_in_serials.heads, _picked, _at);
  end if;
  if _admitted.limited is null and _keyed.keyed is null and not exists (
    select from "stowhand".live j where j.id = any(_in_serials.heads) and j.serial is not null and j.token = _token)
  then
    -- A claim that is lost in a crash of the server leaves its jobs queued, which is safe. A serial key or a slot that is
    -- held twice is not.
    perform set_config('synchronous_commit', 'off', true);
  end if;
end $$;

CREATE FUNCTION stowhand.claim_refusal(_id bigint, _worker text, _token uuid, _lease_until timestamp with time zone, _at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    AS $$
begin
  update "stowhand".live j
    set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
        token = _token, settled_token = null, worker = _worker,
        lease_until = _lease_until, started_at = _at, absorbed = false
    where j.id = _id;
  if not found then return 'a trigger keeps it unchanged'; end if;
  raise exception using errcode = 'GWDRY';
exception
  when sqlstate 'GWDRY' then return null;
  when others then return sqlerrm;
end $$;

CREATE FUNCTION stowhand.clear_hints(_heads bigint[], _picked bigint[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _left text;
begin
  update "stowhand".limit_keys q set hint_priority = null, hint_run_at = null, hint_id = null
    where q.hint_run_at is not null and position(E'\t' in q.name) = 0 and q.name = any(array(
      select j.serial from "stowhand".live j where j.id = any(_heads) and j.id = any(_picked) and j.serial is not null));
  for _left in
    select q.name from "stowhand".limit_keys q
    where position(E'\t' in q.name) > 0 and q.absorbed and q.name = any(array(
      select j.serial from "stowhand".live j where j.id = any(_picked) and j.serial is not null))
  loop
    perform "stowhand".refresh_hint(_left, _at);
  end loop;
  for _left in
    select q.name from "stowhand".live j cross join lateral (
      select w.name, w.absorbed from "stowhand".limit_keys w where w.name = j.serial offset 0) q
    where j.id = any(_heads) and not j.id = any(_picked) and q.absorbed
  loop
    perform "stowhand".refresh_hint(_left, _at);
  end loop;
end $$;

CREATE FUNCTION stowhand.closed_serials(_names text[]) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
declare
  _patience text := current_setting('lock_timeout');
  _open text[] := array(
    select q.name from "stowhand".limit_keys q where q.name = any(_names) order by q.name for update skip locked);
  _closed text[] := '{}';
begin
  if cardinality(_open) < cardinality(_names) then
    _closed := array(select q.name from "stowhand".limit_keys q where q.name = any(_names) and not q.name = any(_open));
    begin
      perform set_config('lock_timeout', '50ms', true);
      perform from "stowhand".limit_keys q where q.name = any(_closed) order by q.name for update;
      perform set_config('lock_timeout', _patience, true);
      _closed := '{}';
    exception when lock_not_available then
      _open := array(
        select q.name from "stowhand".limit_keys q where q.name = any(_closed) order by q.name for update skip locked);
      _closed := array(select c.name from unnest(_closed) as c(name) where not c.name = any(_open));
    end;
  end if;
  return _closed;
end $$;

CREATE FUNCTION stowhand.closed_tasks(_at timestamp with time zone) RETURNS TABLE(task text, opens_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
  with state as materialized (
    select l.name, l.held_until,
      case when l.concurrency <= (select count(*) from "stowhand".used_slots(l.name))
        then 'infinity'::timestamptz end as slot_at,
      "stowhand".rate_opens_at(l.next_start, l.rate, l.rate_seconds, l.burst, _at) as rate_at
    from "stowhand".limits l
  )
  select t.task, o.opens_at
  from "stowhand".task_limits t
    left join state c on c.name = t.concurrency
    left join state r on r.name = t.rate
    cross join lateral (select greatest(c.held_until, c.slot_at, r.held_until, r.rate_at) as opens_at) o
  where o.opens_at > _at
$$;

CREATE FUNCTION stowhand.complete(_ids bigint[], _tokens uuid[], _keep boolean, _at timestamp with time zone, OUT mine bigint[], OUT names text[], OUT limits text[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
  _closed text[];
  _places tid[];
  _gone bigint;
begin
  select array_agg(j.id), array_agg(j.ctid), array_agg(j.serial) filter (where j.serial is not null),
      array_agg(j.limit_name) filter (where j.limit_slot is not null)
    into mine, _places, names, limits
    from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.ctid, l.id, l.serial, l.limit_name, l.limit_slot from "stowhand".live l
      where l.id = f.id and l.token = f.token offset 0
      for update skip locked) j;
  if names is not null then
    _closed := "stowhand".closed_serials(names);
    if cardinality(_closed) > 0 then
      select array_agg(l.id), array_agg(l.ctid), array_agg(l.serial) filter (where l.serial is not null)
        into mine, _places, names
        from "stowhand".live l where l.ctid = any(_places) and (l.serial = any(_closed)) is not true;
    end if;
  end if;
  if exists (select from "stowhand".live j where j.parent_id is not null) and mine is not null then
    perform "stowhand".end_children(mine, array_fill('null'::json, array[cardinality(mine)]), null, _at);
  end if;
  if _keep then
    with gone as (
      delete from "stowhand".live j where j.ctid = any(_places) returning j.*
    )
    insert into "stowhand".history (id, task, queue, serial, key, priority, run_at, max_attempts, max_resets, flags, revision, created_at, updated_at, started_at, cancel_requested, parent_id, payload, state, attempts, resets, last_error, settled_token, epoch, worker,
        finished_at, replaced)
      select g.id, g.task, g.queue, g.serial, g.key, g.priority, g.run_at, g.max_attempts, g.max_resets, g.flags, g.revision, g.created_at, g.updated_at, g.started_at, g.cancel_requested, g.parent_id, g.payload, 'completed', g.attempts, 0, g.last_error, g.token, g.epoch, g.worker, _at, g.replaced
      from gone g;
  else
    delete from "stowhand".live j where j.ctid = any(_places);
  end if;
  get diagnostics _gone = row_count;
  if _gone < cardinality(mine) then perform "stowhand".check_written(_gone, cardinality(mine)); end if;
end $$;

CREATE FUNCTION stowhand.complete_all(_ids bigint[], _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _jobs "stowhand".live[] := array(
    select j from unnest("stowhand".lock_idle(_ids, _at)) as j
    where (j.key like 'flow:%' and j.task like '%/%') is not true order by j.id);
  _verdicts "stowhand".verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, 'completed', j.attempts, j.resets, j.epoch + (j.token is not null)::int,
      j.settled_token, null, null, null, null, null, null)::"stowhand".verdict
    from unnest(_jobs) as j order by j.id);
  perform "stowhand".carry_out(_verdicts, _keep, _at);
  return query select * from "stowhand".aftermath(_jobs, _verdicts, _at) order by id;
end $$;

CREATE FUNCTION stowhand.complete_jobs(job_ids bigint[]) RETURNS SETOF stowhand.jobs
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select s.* from "stowhand".complete_all(job_ids, true) j cross join lateral "stowhand".shown(j) s
$$;

CREATE FUNCTION stowhand.completed_within(_key text, _at timestamp with time zone, OUT job_id bigint, OUT enqueued_at timestamp with time zone) RETURNS record
    LANGUAGE sql STABLE
    AS $$
  select u.job_id, u.enqueued_at from "stowhand".uniques u
  where u.key = _key and u.until > _at and not exists (select from "stowhand".live l where l.id = u.job_id)
$$;

CREATE FUNCTION stowhand.cron_enter(_identifiers text[], _ticks timestamp with time zone[], _specs text[], _backfilled boolean[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(mine boolean, job_id bigint, spec text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _one record;
begin
  insert into "stowhand".crontab as known (identifier, known_since, last_tick, spec)
    select u.name, _at, max(u.tick), (array_agg(u.spec order by u.place))[1]
    from unnest(_identifiers, _ticks, _specs) with ordinality as u(name, tick, spec, place)
    group by u.name order by u.name collate "C"
    on conflict (identifier) do update set last_tick = greatest(known.last_tick, excluded.last_tick);
  for _one in
    select u.* from unnest(_identifiers, _ticks, _specs, _backfilled) with ordinality
      as u(name, tick, spec, backfilled, place) order by u.place
  loop
    insert into "stowhand".ticks (identifier, tick, job_id, backfilled, spec, scheduled_at)
      values (_one.name, _one.tick, 0, _one.backfilled, _one.spec, _at) on conflict do nothing;
    mine := found;
    select t.job_id, t.spec into job_id, spec from "stowhand".ticks t
      where t.identifier = _one.name and t.tick = _one.tick;
    return next;
  end loop;
end $$;

CREATE FUNCTION stowhand.cron_forget(_identifier text, _scheduled_for interval, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  delete from "stowhand".crontab c
    where c.identifier = _identifier
      and (c.scheduled_at is null or c.scheduled_at <= "stowhand".at(_now) - _scheduled_for);
  return found;
end $$;

CREATE TABLE stowhand.crontab (
    identifier text NOT NULL,
    known_since timestamp with time zone NOT NULL,
    last_tick timestamp with time zone,
    spec text DEFAULT ''::text NOT NULL,
    scheduled_by text,
    scheduled_at timestamp with time zone,
    spec_since timestamp with time zone,
    CONSTRAINT identifier_length CHECK (((length(identifier) >= 1) AND (length(identifier) <= 256)))
);

CREATE FUNCTION stowhand.cron_known() RETURNS SETOF stowhand.crontab
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select c.* from "stowhand".crontab c order by c.identifier collate "C"
$$;

CREATE FUNCTION stowhand.cron_note(_identifiers text[], _ticks timestamp with time zone[], _job_ids bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  update "stowhand".ticks t set job_id = n.job_id
    from unnest(_identifiers, _ticks, _job_ids) as n(name, tick, job_id)
    where t.identifier = n.name and t.tick = n.tick and t.job_id = 0
$$;

CREATE FUNCTION stowhand.cron_register(_identifiers text[], _specs text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF stowhand.crontab
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _items "stowhand".crontab[];
  _item "stowhand".crontab;
  _one record;
begin
  for _one in
    select u.name, u.spec, u.place from unnest(_identifiers, _specs) with ordinality as u(name, spec, place)
    order by u.name collate "C", u.place
  loop
    insert into "stowhand".crontab (identifier, known_since, spec) values (_one.name, _at, _one.spec)
      on conflict (identifier) do nothing returning * into _item;
    if not found then
      select c.* into _item from "stowhand".crontab c where c.identifier = _one.name for update;
      update "stowhand".crontab c set spec = _one.spec, spec_since = _at
        where c.identifier = _one.name and c.spec <> _one.spec;
    end if;
    _items[_one.place] := _item;
  end loop;
  foreach _item in array coalesce(_items, '{}') loop
    return next _item;
  end loop;
end $$;

CREATE FUNCTION stowhand.cron_report(_identifiers text[], _scheduler text, _interval interval, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
begin
  update "stowhand".crontab c set scheduled_by = _scheduler, scheduled_at = _at
    where c.ctid = any(array(
      select k.ctid from "stowhand".crontab k
      where k.identifier = any(_identifiers)
        and (k.scheduled_at is null or k.scheduled_at <= _at - _interval or k.scheduled_at > _at)
      for update skip locked));
end $$;

CREATE FUNCTION stowhand.declare_limits(_tasks json, _limits json, _all text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _changed text[];
  _moved text[];
  _fair text[];
begin
  if not exists (select from json_each(_limits)) and not exists (select from "stowhand".limits) then return; end if;
  perform pg_advisory_xact_lock(hashtextextended('stowhand:wake', 6));
  _changed := array(
    select d.key from json_each(_limits) d
    where not exists (select from "stowhand".limits l where l.name = d.key and l.declared = d.value::jsonb) order by d.key);
  insert into "stowhand".limits as known (name, declared)
    select d.key, d.value::jsonb from json_each(_limits) d where d.key = any(_changed) order by d.key
    on conflict (name) do update set declared = excluded.declared;
  select array_agg(t.task) into _moved from "stowhand".task_limits t
    where t.task = any(_all) and t.key_limit is not null and not exists (
      select from json_each(_tasks) d where d.key = t.task and d.value->>'key_limit' = t.key_limit
        and string_to_array(d.value->>'key', '.') = t.key_path);
  select array_agg(t.key_limit) into _fair from "stowhand".task_limits t where t.is_fair;
  insert into "stowhand".task_limits as known (task, concurrency, rate, key_limit, key_path, is_fair)
    select d.key, d.value->>'concurrency', d.value->>'rate', d.value->>'key_limit',
      string_to_array(d.value->>'key', '.'), coalesce((d.value->>'fair')::boolean, false)
    from json_each(_tasks) d
    on conflict (task) do update
      set concurrency = excluded.concurrency, rate = excluded.rate, key_limit = excluded.key_limit,
        key_path = excluded.key_path, is_fair = excluded.is_fair
      where (known.concurrency, known.rate, known.key_limit, known.key_path, known.is_fair) is distinct from
        (excluded.concurrency, excluded.rate, excluded.key_limit, excluded.key_path, excluded.is_fair);
  delete from "stowhand".task_limits t
    where t.task = any(_all) and not exists (select from json_each(_tasks) d where d.key = t.task);
  -- A row that a settlement has locked stays until the next declaration.
  delete from "stowhand".limits l where l.name = any(array(
    select o.name from "stowhand".limits o
    where o.override = '{}' and not exists (
      select from "stowhand".task_limits t where o.name in (t.concurrency, t.rate, t.key_limit))
    for update skip locked));
  if _moved is not null then
    perform "stowhand".take_keys(_moved);
    perform "stowhand".wake();
  end if;
  perform "stowhand".end_turns(f.name) from unnest(_fair) as f(name)
    where not exists (select from "stowhand".task_limits t where t.key_limit = f.name and t.is_fair);
  perform "stowhand".refresh_keys(c.name) from unnest(_changed) as c(name);
end $$;

CREATE FUNCTION stowhand.declare_tasks(_declarations json) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _queues json := _declarations->'queues';
begin
  delete from "stowhand".task_queues t where t.task = any(array(
    select o.task from "stowhand".task_queues o
    where o.task in (select d.key from json_each_text(_queues) d where d.value = 'default')
    order by o.task for update));
  insert into "stowhand".task_queues as known (task, queue)
    select d.key, d.value from json_each_text(_queues) d
    where d.value <> 'default' and not exists (
      select from "stowhand".task_queues o where o.task = d.key and o.queue = d.value)
    order by d.key
    on conflict (task) do update set queue = excluded.queue;
  perform "stowhand".declare_limits(
    _declarations->'tasks', _declarations->'limits', array(select d.key from json_each(_queues) d));
end $$;

CREATE FUNCTION stowhand.declared_queue(_task text) RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
begin
  return (select q.queue from "stowhand".task_queues q where q.task = _task);
end $$;

CREATE FUNCTION stowhand.drop_key(_key text) RETURNS stowhand.live
    LANGUAGE plpgsql
    AS $$
declare
  _job "stowhand".live;
begin
  loop
    select j.* into _job from "stowhand".live j where j.key = _key for update;
    exit when found or not exists (select from "stowhand".live j where j.key = _key);
  end loop;
  if _job.id is not null then perform "stowhand".forget_periods(array[_job.id]); end if;
  if _job.state = 'processing' then
    update "stowhand".live j set key = null, loses_retries = 'removed' where j.id = _job.id returning j.* into _job;
  else
    perform "stowhand".cancel_children(array[_job.id], true, "stowhand".at(null), true);
    perform "stowhand".end_children(array[_job.id], null, array['it was removed'], "stowhand".at(null));
    delete from "stowhand".live j where j.id = _job.id;
    delete from "stowhand".tries t where t.job_id = _job.id;
  end if;
  return _job;
end $$;

CREATE FUNCTION stowhand.earliest_due(_tasks text[], _queues text[], _excluded text[], _at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    AS $$
declare
  _earliest timestamptz := "stowhand".free_due(_tasks, _queues, _excluded, _at);
begin
  if _earliest <= _at then return _earliest; end if;
  return least(_earliest, "stowhand".serial_due(_tasks, _queues, _excluded, _at),
    (select min(j.run_at) from "stowhand".live j
      where j.state in ('queued', 'errored') and j.resets >= 2 and (_tasks is null or j.task = any(_tasks))
        and "stowhand".takes(_queues, _excluded, j.queue)));
end $$;

CREATE FUNCTION stowhand.emit_event(name text, payload json DEFAULT NULL::json, job_id bigint DEFAULT NULL::bigint, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
  perform "stowhand".check_name('The name of an event', coalesce(emit_event.name, ''), 200, '22023');
  if octet_length(payload::text) > 1048576 then
    raise exception 'The payload of an event has at most 1 MiB.' using errcode = '22023';
  end if;
  insert into "stowhand".events (name, job_id, payload, at)
    values (emit_event.name, coalesce(emit_event.job_id, 0), coalesce(emit_event.payload, 'null'), "stowhand".at(_now))
    on conflict do nothing;
  return found;
end $$;

CREATE FUNCTION stowhand.emit_text(_event text) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select "stowhand".emit_event(e->>'name', (e->>'payload')::json, (e->>'job_id')::bigint, (e->>'now')::timestamptz)::text
  from (select _event::json as e) given
$$;

CREATE FUNCTION stowhand.end_children(_ids bigint[], _values json[], _errors text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _parents bigint[];
  _names text[];
  _awake bigint[];
begin
  -- While no job has a parent, this query is the only cost of children.
  if not exists (select from "stowhand".live j where j.parent_id is not null) then return; end if;
  select array_agg(p.parent_id), array_agg(p.parent_step) into _parents, _names from (
    select distinct j.parent_id, j.parent_step
    from unnest(_ids) as u(id) cross join lateral (
      select l.parent_id, l.parent_step from "stowhand".live l where l.id = u.id offset 0) j  -- not by live_children
    where j.parent_step is not null order by 1, 2) p;
  if _parents is null then return; end if;
  perform from "stowhand".steps s
    where s.place = -1 and (s.job_id, s.name) in (select p.id, p.name from unnest(_parents, _names) as p(id, name))
    order by s.job_id, s.name for update;
  -- A new statement under the locks.
  with ended as (
    insert into "stowhand".steps as known (job_id, name, place, value, error, at)
      select j.parent_id, j.parent_step, j.parent_place, u.value, case when u.value is null then coalesce(u.error, 'canceled') end,
        _at
      from unnest(_ids, _values, _errors) as u(id, value, error) cross join lateral (
        select l.parent_id, l.parent_step, l.parent_place from "stowhand".live l where l.id = u.id offset 0) j
      where j.parent_step is not null and exists (
        select from "stowhand".steps h where h.job_id = j.parent_id and h.name = j.parent_step and h.place = -1)
      on conflict (job_id, name, place) do update set value = excluded.value, error = null
        where known.value is null and excluded.value is not null
      returning job_id, name, xmax = 0 as is_new
  ), counted as (
    select e.job_id, e.name, count(*) filter (where e.is_new)::int as number from ended e group by e.job_id, e.name
  )
  update "stowhand".steps s set remaining = s.remaining - c.number
    from counted c where s.job_id = c.job_id and s.name = c.name and s.place = -1 and c.number > 0;
  _awake := array(
    select j.id from "stowhand".live j
    where j.id = any(_parents) and j.state = 'queued' and exists (
      select from unnest(_parents, _names) as p(id, name) join "stowhand".steps s
        on s.job_id = p.id and s.name = p.name and s.place = -1 and s.remaining = 0
      where p.id = j.id and j.waits_for = 'children:' || p.name)
    order by j.id for update);
  update "stowhand".live j set run_at = _at where j.id = any(_awake) and j.run_at > _at;
  if cardinality(_awake) > 0 then perform "stowhand".wake(); end if;
end $$;

CREATE FUNCTION stowhand.end_failed(_ids bigint[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  if not exists (select from "stowhand".live j where j.parent_id is not null) then return; end if;
  perform "stowhand".end_children(array_agg(j.id), null, array_agg(coalesce(nullif(j.last_error, ''), 'failed')), _at)
    from "stowhand".live j where j.id = any(_ids) and j.state = 'failed' having count(*) > 0;
end $$;

CREATE FUNCTION stowhand.end_of_try(_state text, _error_class text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select case
    when _state = 'canceled' then 'canceled'
    when _state in ('errored', 'failed') then case _error_class when 'TimedOut' then 'timeout' else 'error' end end
$$;

CREATE FUNCTION stowhand.end_turns(_limit text) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  update "stowhand".limit_keys q set served_at = null where q.name = any(array(
    select k.name from "stowhand".limit_keys k
    where starts_with(k.name, _limit || E'\t') and k.served_at is not null order by k.name for update));
  perform "stowhand".refresh_keys(_limit);
end $$;

CREATE FUNCTION stowhand.enqueue(_task text, _payload json DEFAULT NULL::json, _serial text DEFAULT NULL::text, _run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, _delay double precision DEFAULT NULL::double precision, _max_attempts integer DEFAULT NULL::integer, _key text DEFAULT NULL::text, _priority integer DEFAULT NULL::integer, _flags text[] DEFAULT NULL::text[], _mode text DEFAULT NULL::text, _max_resets integer DEFAULT NULL::integer, _on_failure json DEFAULT NULL::json, _expires double precision DEFAULT NULL::double precision, _unique_period double precision DEFAULT NULL::double precision, _queue text DEFAULT NULL::text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _at timestamptz := case when _now is null then now() else "stowhand".pinned(_now) end;
  _text text;
  _notified text;
  _job "stowhand".live;
begin
  _payload := coalesce(_payload, '{}');
  _text := _payload;
  _run_at := coalesce(_run_at, _at + _delay * interval '1 second', _at);
  _max_attempts := coalesce(_max_attempts, 25);
  _priority := coalesce(_priority, 0);
  _mode := coalesce(_mode, 'replace');
  if ("stowhand".is_usual(_task, _text, _serial, _max_attempts, _key, _flags, _queue) and _max_resets is null) is not true then
    perform "stowhand".refuse_reserved(_task);
    perform "stowhand".check_job(
      _task, _payload, "stowhand".is_suspicious(_text), _serial, _max_attempts, _key, _flags, _max_resets, _queue);
  end if;
  if _queue is null then
    select q.queue into _queue from "stowhand".task_queues q where q.task = _task;
  elsif _queue = 'default' then
    _queue := null;
  end if;
  if _flags is not null then
    _flags := nullif(array(select f.flag from unnest(_flags) with ordinality as f(flag, n)
                           group by f.flag order by min(f.n)), '{}');
  end if;
  if _mode not in ('replace', 'preserve_run_at', 'unsafe_dedupe', 'unique') then
    raise exception 'Unknown job_key_mode "%": it is replace, preserve_run_at, unsafe_dedupe or unique.', _mode
      using errcode = 'GWBKM';
  end if;
  if (_on_failure is null and _expires is null and _unique_period is null) is not true then
    perform "stowhand".check_rules(_on_failure, _expires, _unique_period, _mode);
  end if;
  if _key is null then
    insert into "stowhand".live (task, payload, run_at, queue, serial, priority, max_attempts, max_resets, flags, on_failure, expires_at, created_at, updated_at)
    values (_task, _payload, _run_at, _queue, _serial, _priority, _max_attempts, _max_resets, _flags, _on_failure,
            _run_at + _expires * interval '1 second', _at, _at)
    returning * into _job;
  else
    _job := "stowhand".enqueue_keyed(_task, _payload, _run_at, _key, _mode, _on_failure, _expires, _unique_period, _at,
                                   _queue, _serial, _priority, _max_attempts, _max_resets, _flags);
    -- It may be running, or have run: who may enqueue is not to learn the proof of somebody's lease.
    _job.token := null; _job.settled_token := null;
  end if;
  if _job.expires_at is not null then
    insert into "stowhand".expiring (expires_at, id) values (_job.expires_at, _job.id) on conflict do nothing;
  end if;
  _notified := pg_notify('stowhand:wake', '');  -- PERFORM would be a statement, which costs ten times as much
  return _job;
end $$;

CREATE FUNCTION stowhand.enqueue_built_in(_task text, _payload json DEFAULT NULL::json, _serial text DEFAULT NULL::text, _run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, _delay double precision DEFAULT NULL::double precision, _max_attempts integer DEFAULT NULL::integer, _key text DEFAULT NULL::text, _priority integer DEFAULT NULL::integer, _flags text[] DEFAULT NULL::text[], _mode text DEFAULT NULL::text, _max_resets integer DEFAULT NULL::integer, _queue text DEFAULT NULL::text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _at timestamptz := case when _now is null then now() else "stowhand".pinned(_now) end;
  _job "stowhand".live;
begin
  if (_task = any(array['jobs:purge_completed'])) is not true then
    raise exception 'Task identifier % is not built in: enqueue it as usual.', _task using errcode = 'GWBID';
  elsif _mode not in ('replace', 'preserve_run_at') then
    raise exception 'The job_key_mode of a built-in task is replace or preserve_run_at, not "%".', _mode
      using errcode = 'GWBKM';
  end if;
  _payload := coalesce(_payload, '{}');
  _run_at := coalesce(_run_at, _at + _delay * interval '1 second', _at);
  _max_attempts := coalesce(_max_attempts, 25);
  _priority := coalesce(_priority, 0);
  _flags := nullif(_flags, '{}');
  perform "stowhand".check_job(
    _task, _payload, "stowhand".is_suspicious(_payload::text), _serial, _max_attempts, _key, _flags, _max_resets, _queue);
  _queue := nullif(_queue, 'default');
  _job := "stowhand".enqueue_keyed(
    _task, _payload, _run_at, _key, coalesce(_mode, 'replace'), null, null, null, _at, _queue, _serial, _priority, _max_attempts, _max_resets, _flags);
  _job.token := null; _job.settled_token := null;
  perform pg_notify('stowhand:wake', '');
  return _job;
end $$;

CREATE FUNCTION stowhand.enqueue_children(_parent bigint, _step text, _places integer[], _tasks text[], _payloads json[], _serials text[], _run_ats timestamp with time zone[], _delays double precision[], _max_attempts integer[], _priorities integer[], _flags json[], _max_resets integer[], _queues text[] DEFAULT NULL::text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _at timestamptz := case when _now is null then now() else "stowhand".pinned(_now) end;
  _are_declared boolean := exists (select from "stowhand".task_queues);
begin
  perform "stowhand".refuse_reserved(r.task) from unnest(array['jobs:purge_completed']) as r(task) where r.task = any(_tasks);
  insert into "stowhand".live (task, payload, serial, run_at, max_attempts, priority, flags, max_resets, queue,
                             created_at, updated_at, parent_id, parent_step, parent_place)
  select j.task, j.payload, j.serial, coalesce(j.run_at, _at + j.delay * interval '1 second', _at),
         coalesce(j.max_attempts, 25), coalesce(j.priority, 0),
         case when j.flags is not null then array(select json_array_elements_text(j.flags)) end,
         j.max_resets,
         nullif(coalesce(j.queue, case when _are_declared then "stowhand".declared_queue(j.task) end), 'default'),
         _at, _at, _parent, _step, j.place
  from unnest(_places, _tasks, _payloads, _serials, _run_ats, _delays, _max_attempts, _priorities, _flags, _max_resets, _queues)
    as j(place, task, payload, serial, run_at, delay, max_attempts, priority, flags, max_resets, queue);
  perform "stowhand".wake();
end $$;

CREATE FUNCTION stowhand.enqueue_jobs(_jobs json, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return query
  select (added.job).* from (
    select _new.ordinality as place, "stowhand".enqueue(_task => _new.task, _payload => _new.payload::json, _serial => _new.serial, _queue => _new.queue, _run_at => _new.run_at, _delay => _new.delay, _priority => _new.priority, _max_attempts => _new.max_attempts, _max_resets => _new.max_resets, _key => _new.key, _mode => _new.key_mode, _flags => _new.flags, _on_failure => _new.on_failure, _expires => _new.expires, _unique_period => _new.unique_period, _now => _now) as job
    from (
      select * from rows from (json_populate_recordset(null::"stowhand".new_job, _jobs)) with ordinality as u
      order by u.key collate "C" nulls first, u.ordinality offset 0
    ) _new offset 0
  ) added order by added.place;
end $$;

CREATE FUNCTION stowhand.enqueue_keyed(_task text, _payload json, _run_at timestamp with time zone, _key text, _mode text, _on_failure json, _expires double precision, _period double precision, _at timestamp with time zone, _queue text DEFAULT NULL::text, _serial text DEFAULT NULL::text, _priority integer DEFAULT NULL::integer, _max_attempts integer DEFAULT NULL::integer, _max_resets integer DEFAULT NULL::integer, _flags text[] DEFAULT NULL::text[]) RETURNS stowhand.live
    LANGUAGE plpgsql
    AS $$
declare
  _taken record;
  _job "stowhand".live;
begin
  loop
    if _mode = 'unsafe_dedupe' then
      insert into "stowhand".live as old (task, payload, run_at, queue, serial, priority, max_attempts, max_resets, flags, on_failure, expires_at, key, created_at,
                                        updated_at)
      values (_task, _payload, _run_at, _queue, _serial, _priority, _max_attempts, _max_resets, _flags, _on_failure,
              _run_at + _expires * interval '1 second', _key, _at, _at)
      on conflict (key) where key is not null do update set revision = old.revision + 1, updated_at = _at
        where (old.state = 'queued' and old.expires_at <= _at) is not true
      returning * into _job;
      if found then return _job; end if;
      perform "stowhand".cancel_expired_holder(_key, _at);
      continue;
    end if;
    if _mode = 'unique' then
      select * into _job from "stowhand".live l where l.key = _key and l.state <> 'failed';
      if found and (_job.state = 'queued' and _job.expires_at <= _at) is not true then return _job; end if;
      if _period is not null and _job.id is null then
        select t.job_id, t.enqueued_at into _taken from "stowhand".completed_within(_key, _at) t;
        if _taken.job_id is not null then
          select _queue, _serial, _priority, _max_attempts, _max_resets, _flags into _job.queue, _job.serial, _job.priority, _job.max_attempts, _job.max_resets, _job.flags;
          _job.key := _key; _job.task := _task; _job.payload := _payload; _job.attempts := 0; _job.resets := 0;
          _job.revision := 0; _job.epoch := 0; _job.cancel_requested := false; _job.absorbed := false;
          return "stowhand".as_completed(_taken.job_id, _taken.enqueued_at, _job);
        end if;
      end if;
    end if;
    insert into "stowhand".live as old (task, payload, run_at, queue, serial, priority, max_attempts, max_resets, flags, on_failure, expires_at, key, created_at,
                                      updated_at)
    values (_task, _payload, _run_at, _queue, _serial, _priority, _max_attempts, _max_resets, _flags, _on_failure,
            _run_at + _expires * interval '1 second', _key, _at, _at)
    on conflict (key) where key is not null do update set
      task = _task,
      payload = case
        when old.state <> 'failed' and json_typeof(old.payload) = 'array' and json_typeof(_payload) = 'array'
          then "stowhand".check_size("stowhand".append_json(old.payload, _payload))
        else _payload end,
      queue = _queue, serial = _serial, priority = _priority, max_attempts = _max_attempts, max_resets = _max_resets, flags = _flags,
      run_at = case
        when _mode = 'preserve_run_at' and old.state = 'queued' and old.attempts = 0 then old.run_at
        else _run_at end,
      absorbed = false, on_failure = _on_failure, waits_for = null,
      expires_at = _expires * interval '1 second' + case
        when _mode = 'preserve_run_at' and old.state = 'queued' and old.attempts = 0 then old.run_at
        else _run_at end,
      state = 'queued', attempts = 0, resets = case when old.state = 'failed' then 0 else old.resets end,
      last_error = null, finished_at = null, cancel_requested = false, progress = null,
      progress_text = null,
      round = case when old.last_worker is not null or old.round is not null or old.state = 'failed'
                   then "stowhand".next_round(old.id) end,
      revision = old.revision + 1, updated_at = _at,
      replaced = case _mode when 'unique' then old.replaced else old.revision + 1 end
    where case _mode when 'unique' then old.state = 'failed' else old.state <> 'processing' end
      and (old.state = 'queued' and old.expires_at <= _at) is not true
    returning * into _job;
    if found then
      if _job.revision > 0 and exists (select from "stowhand".steps s where s.job_id = _job.id) then
        perform "stowhand".cancel_children(array[_job.id], true, _at, true);
        update "stowhand".live c set parent_step = null, parent_place = null
          where c.parent_id = _job.id and c.parent_id is not null;
        delete from "stowhand".steps s where s.job_id = _job.id;
      end if;
      if _period is not null and not "stowhand".take_for_period(_job, _period, _at) then
        -- Since it was looked for, another one was made, has run and has completed.
        delete from "stowhand".live l where l.id = _job.id;
        continue;
      end if;
      return _job;
    end if;
    if _mode <> 'unique' then
      -- It is running: it loses its key, and with it its retries. A job with another state is left to the next round.
      update "stowhand".live set key = null, loses_retries = 'replaced' where key = _key and state = 'processing';
    end if;
    perform "stowhand".cancel_expired_holder(_key, _at);
  end loop;
end $$;

CREATE FUNCTION stowhand.enqueue_many(_tasks text[], _payloads json[], _serials text[], _run_ats timestamp with time zone[], _delays double precision[], _max_attempts integer[], _priorities integer[], _flags json[], _max_resets integer[], _queues text[] DEFAULT NULL::text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(id bigint, run_at timestamp with time zone, created_at timestamp with time zone, max_attempts integer, queue text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := case when _now is null then now() else "stowhand".pinned(_now) end;
  _are_declared boolean := false;
begin
  -- An `exists` in one expression with the first test would be a statement of its own, even where that test fails.
  if _queues is null or array_position(_queues, null) is not null then
    _are_declared := exists (select from "stowhand".task_queues);
  end if;
  if _tasks && array['jobs:purge_completed'] then
    perform "stowhand".refuse_reserved(r.task) from unnest(array['jobs:purge_completed']) as r(task) where r.task = any(_tasks);
  end if;
  return query
  insert into "stowhand".live (task, payload, serial, run_at, max_attempts, priority, flags, max_resets, queue,
                             created_at, updated_at)
  select j.task, j.payload, j.serial, coalesce(j.run_at, _at + j.delay * interval '1 second', _at),
         coalesce(j.max_attempts, 25), coalesce(j.priority, 0),
         case when j.flags is not null then array(select json_array_elements_text(j.flags)) end,
         j.max_resets,
         nullif(coalesce(j.queue, case when _are_declared then "stowhand".declared_queue(j.task) end), 'default'),
         _at, _at
  from unnest(_tasks, _payloads, _serials, _run_ats, _delays, _max_attempts, _priorities, _flags, _max_resets, _queues)
    as j(task, payload, serial, run_at, delay, max_attempts, priority, flags, max_resets, queue)
  returning id, run_at, created_at, max_attempts, queue;
end $$;

CREATE FUNCTION stowhand.enqueue_text(_job text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
  _given jsonb := _job;
  _new "stowhand".new_job;
  _live "stowhand".live;
begin
  _given := _given - array['task', 'payload', 'serial', 'queue', 'run_at', 'delay', 'priority', 'max_attempts', 'max_resets', 'key', 'key_mode', 'flags', 'on_failure', 'expires', 'unique_period'];
  if _given - 'now' <> '{}' then
    raise exception 'This schema does not know %: it is older than the program. Run stowhand migrate.',
      to_json((select k from jsonb_object_keys(_given - 'now') k limit 1)) using errcode = '42883';
  end if;
  _new := json_populate_record(_new, _job::json);
  _live := "stowhand".enqueue(_task => _new.task, _payload => _new.payload::json, _serial => _new.serial, _queue => _new.queue, _run_at => _new.run_at, _delay => _new.delay, _priority => _new.priority, _max_attempts => _new.max_attempts, _max_resets => _new.max_resets, _key => _new.key, _mode => _new.key_mode, _flags => _new.flags, _on_failure => _new.on_failure, _expires => _new.expires, _unique_period => _new.unique_period, _now => (_given->>'now')::timestamptz);
  -- A run time may be infinite, or in a year that its reader does not know.
  _live.run_at := greatest(least(_live.run_at, timestamptz '9999-12-31 23:59:59.999999+00'),
                           timestamptz '0001-01-01 00:00:00+00');
  _live.flags := coalesce(_live.flags, '{}');
  return row_to_json(j) from (select id, task, payload::text as payload, state, coalesce(queue, 'default') as queue, serial, key, priority, run_at, attempts, max_attempts, resets, max_resets, flags, last_error, revision, created_at, updated_at, started_at, finished_at, worker, coalesce(worker, last_worker) as last_worker, cancel_requested, progress, progress_text, parent_id, waits_for from (select _live.*) live) j;
end $$;

CREATE FUNCTION stowhand.event_lock(_event text) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
  select hashtextextended('stowhand:wake' || _event, 4)
$$;

CREATE FUNCTION stowhand.expire(_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _due bigint[] := array(
    select e.id from "stowhand".expiring e where e.expires_at <= _at order by e.expires_at, e.id limit 1000
    for update skip locked);
begin
  perform "stowhand".cancel_expired(_due, _at);
  delete from "stowhand".expiring e where e.id = any(_due) and e.expires_at <= _at and not exists (
    select from "stowhand".live l where l.id = e.id and l.state = 'queued' and l.expires_at = e.expires_at);
  return cardinality(_due) = 1000;
end $$;

CREATE FUNCTION stowhand.fail_all(_ids bigint[], _reason text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _jobs "stowhand".live[];
  _locked bigint[];
  _why text := left(coalesce(_reason, 'Manually marked as failed'), 16384);
begin
  perform "stowhand".cancel_children(array(
    select j.id from "stowhand".live j where j.id = any(_ids) and j.state in ('queued', 'errored')), true, _at);
  _jobs := "stowhand".lock_idle(_ids, _at);
  _locked := array(select j.id from unnest(_jobs) as j);
  perform "stowhand".keep_ends_by_hand(_locked, _why, _at);
  update "stowhand".live j
    set state = 'failed', attempts = j.max_attempts, epoch = j.epoch + (j.token is not null)::int, token = null,
        worker = null, last_worker = coalesce(j.worker, j.last_worker), lease_until = null, last_error = _why,
        finished_at = coalesce(j.finished_at, _at), absorbed = false, updated_at = _at, progress = null,
        progress_text = null, waits_for = null, round = coalesce(j.round, 1)  -- a repeat of its key sees by the round that there are entries
    where j.id = any(_locked);
  perform "stowhand".end_failed(_locked, _at);
  perform "stowhand".tell_of_failures(array_agg(j.id), array_agg('by hand'::text), _at) from unnest(_jobs) as j
    where j.state <> 'failed' and j.on_failure is not null having count(*) > 0;
  perform "stowhand".free_serials(array_agg(j.serial), _at)
    from unnest(_jobs) as j where j.serial is not null and j.token is not null having count(*) > 0;
  return query select * from "stowhand".without_tokens(_locked);
end $$;

CREATE FUNCTION stowhand.failure_payload(_job stowhand.live, _error_class text) RETURNS json
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
declare
  _arguments text := _job.payload;
  _size int := octet_length(_arguments);
  _error text := coalesce(_job.last_error, '');
begin
  if _size > 1040000 or length(_arguments) - length(replace(replace(_arguments, '[', ''), '{', '')) > 63
      and jsonb_path_exists(_arguments::jsonb, 'strict $.**{63} ? (@.type() == "array" || @.type() == "object")') then
    _arguments := 'null';
  end if;
  if _size > 900000 then _error := left(_error, 1000); end if;
  return concat('{"job_id":', _job.id, ',"task":', to_json(_job.task), ',"arguments":', _arguments,
    ',"error_class":', coalesce(to_json(_error_class)::text, 'null'), ',"error":', to_json(_error), '}')::json;
end $_$;

CREATE FUNCTION stowhand.find_canceled(_ids bigint[], _tokens uuid[]) RETURNS TABLE(id bigint, token uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
  return query select f.id, f.token from unnest(_ids, _tokens) as f(id, token) cross join lateral (
    select from "stowhand".live l where l.id = f.id and l.token = f.token and l.cancel_requested offset 0) j;
end $$;

CREATE FUNCTION stowhand.find_stalled(_slack double precision, _worker text, _id bigint, _token uuid, _limit integer, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(id bigint, token text, task text, worker text, resets integer, max_resets integer, max_attempts integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
begin
  return query
    select j.id, j.token::text, j.task, j.worker, j.resets, j.max_resets, j.max_attempts from "stowhand".live j
    where j.state = 'processing'
      and (_slack is null or j.lease_until + _slack * interval '1 second' < _at)
      and (_worker is null or j.worker = _worker)
      and (_id is null or (j.id = _id and j.token = _token))
    order by j.id limit _limit;
end $$;

CREATE FUNCTION stowhand.flow_create(_flow text, _ids text[], _found_ids text[], _attributes text[], _values text[], _tasks text[], _payloads json[], _serials text[], _run_ats timestamp with time zone[], _delays double precision[], _max_attempts integer[], _keys text[], _priorities integer[], _flags json[], _modes text[], _max_resets integer[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _new int;
begin
  insert into "stowhand".flow_jobs (id, flow, created_at, looked_at)
    select u.id, _flow, _at, _at from unnest(_ids) as u(id) order by u.id collate "C" on conflict do nothing;
  get diagnostics _new = row_count;
  if _new = 0 then
    return false;
  elsif _new < cardinality(_ids) then
    raise exception 'Some of these flow jobs exist already.' using errcode = '23505';
  end if;
  insert into "stowhand".flow_lookups (flow, attribute, value, id)
    select distinct _flow, u.attribute, u.value, u.id from unnest(_found_ids, _attributes, _values)
      as u(id, attribute, value);
  -- In the order of enqueue_jobs.
  perform "stowhand".enqueue(
    j.task, j.payload, j.serial, j.run_at, j.delay, j.max_attempts, j.key, j.priority,
    case when j.flags is not null then array(select json_array_elements_text(j.flags)) end, j.mode, j.max_resets, _now => _now)
    from (
      select * from unnest(_tasks, _payloads, _serials, _run_ats, _delays, _max_attempts, _keys, _priorities, _flags,
                           _modes, _max_resets) with ordinality
        as u(task, payload, serial, run_at, delay, max_attempts, key, priority, flags, mode, max_resets, place)
      order by u.key collate "C" nulls first, u.place offset 0) j;
  return true;
end $$;

CREATE FUNCTION stowhand.flow_delete(_flow text, _id text, _keys text[]) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _found boolean;
  _key text;
begin
  delete from "stowhand".flow_jobs f where f.id = _id and f.flow = _flow;
  _found := found;
  for _key in select distinct u.key from unnest(_keys) as u(key) order by u.key loop
    perform "stowhand".drop_key(_key);
    delete from "stowhand".history h where h.key = _key and h.key like 'flow:%';
  end loop;
  return _found;
end $$;

CREATE FUNCTION stowhand.flow_exists(_ids text[]) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
  select f.id from "stowhand".flow_jobs f where f.id = any(_ids)
$$;

CREATE FUNCTION stowhand.flow_hold_key(_flow text, _key text, _id text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
begin
  perform pg_advisory_xact_lock(hashtextextended('stowhand:wake' || _flow || ':' || _key, 3));
  return coalesce((
    select f.id from "stowhand".flow_lookups f
      where f.flow = _flow and f.attribute = '' and f.value = _key
        and exists (select from "stowhand".live j where j.key = 'flow:' || _flow || ':' || f.id and j.state <> 'failed')
      limit 1), _id);
end $$;

CREATE FUNCTION stowhand.flow_ids(_flow text, _attribute text, _value text) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select f.id from "stowhand".flow_lookups f
    where f.flow = _flow and f.attribute = _attribute and f.value = _value order by f.id collate "C"
$$;

CREATE FUNCTION stowhand.flow_keep(_ids text[], _jobs text[], _contents text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  insert into "stowhand".flow_lists (id, job, content)
    select u.id, f.id, u.content from unnest(_ids, _jobs, _contents) as u(id, job, content)
      join "stowhand".flow_jobs f on f.id = u.job for key share of f
    on conflict do nothing
$$;

CREATE FUNCTION stowhand.flow_kept(_id text) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select l.content from "stowhand".flow_lists l where l.id = _id
$$;

CREATE TABLE stowhand.history (
    id bigint NOT NULL,
    task text NOT NULL,
    payload json NOT NULL,
    serial text,
    queue text,
    priority integer NOT NULL,
    run_at timestamp with time zone NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    resets integer NOT NULL,
    max_resets integer,
    key text,
    flags text[],
    last_error text,
    revision integer NOT NULL,
    settled_token uuid,
    epoch bigint NOT NULL,
    worker text,
    started_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    cancel_requested boolean NOT NULL,
    result json,
    replaced integer,
    on_failure json,
    parent_id bigint,
    CONSTRAINT over CHECK ((state = ANY (ARRAY['completed'::text, 'canceled'::text])))
)
PARTITION BY RANGE (finished_at);

CREATE VIEW stowhand.everything AS
 SELECT live.id,
    live.task,
    live.payload,
    live.state,
    COALESCE(live.queue, 'default'::text) AS queue,
    live.serial,
    live.key,
    live.priority,
    live.run_at,
    live.attempts,
    live.max_attempts,
    live.resets,
    live.max_resets,
    live.flags,
    live.last_error,
    live.revision,
    live.created_at,
    live.updated_at,
    live.started_at,
    live.finished_at,
    live.worker,
    COALESCE(live.worker, live.last_worker) AS last_worker,
    live.cancel_requested,
    NULL::json AS result,
    live.progress,
    live.progress_text,
    live.parent_id,
    live.waits_for
   FROM stowhand.live
UNION ALL
 SELECT history.id,
    history.task,
    history.payload,
    history.state,
    COALESCE(history.queue, 'default'::text) AS queue,
    history.serial,
    history.key,
    history.priority,
    history.run_at,
    history.attempts,
    history.max_attempts,
    history.resets,
    history.max_resets,
    history.flags,
    history.last_error,
    history.revision,
    history.created_at,
    history.updated_at,
    history.started_at,
    history.finished_at,
    NULL::text AS worker,
    history.worker AS last_worker,
    history.cancel_requested,
    history.result,
    NULL::double precision AS progress,
    NULL::text AS progress_text,
    history.parent_id,
    NULL::text AS waits_for
   FROM stowhand.history;

CREATE FUNCTION stowhand.flow_latest(_keys text[]) RETURNS SETOF stowhand.everything
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
  select s.* from (select distinct u.key from unnest(_keys) as u(key)) k cross join lateral (
    select e.* from "stowhand".everything e where e.key = k.key and e.key like 'flow:%'
      order by e.key, e.id desc limit 1) s
$$;

CREATE FUNCTION stowhand.flow_spend(_limiter text, _part text, _holder text, _reservoir bigint, _interval double precision, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS double precision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _epoch double precision := extract(epoch from _at);
  _limit "stowhand".flow_limits;
  _came_back boolean;
  _later bigint;
  _ready double precision;
begin
  -- Write this row first, so that the next caller waits for it.
  insert into "stowhand".flow_limits as l (limiter, part, slot, calls, waiting, used_at)
    values (_limiter, _part, floor(_epoch / _interval)::bigint, 0, 0, _at)
    on conflict (limiter, part) do update
      set calls = case when l.slot >= excluded.slot then l.calls else 0 end,
          slot = greatest(l.slot, excluded.slot), used_at = _at
    returning l.* into _limit;
  with gone as (
    delete from "stowhand".flow_waits w where w.limiter = _limiter and w.part = _part
      and (w.holder = _holder or w.ready_at < _at - (_interval + 60) * interval '1 second')
    returning w.holder)
  select coalesce(bool_or(g.holder = _holder), false) into _came_back from gone g;
  _later := (_limit.slot + 1) * _reservoir;
  if _limit.calls < _reservoir and (_came_back or _limit.waiting <= _later) then
    update "stowhand".flow_limits l set calls = _limit.calls + 1 where l.limiter = _limiter and l.part = _part;
    return 0;
  end if;
  _later := greatest(_limit.waiting, _later);
  _ready := _later / _reservoir * _interval;
  insert into "stowhand".flow_waits (limiter, part, holder, ready_at)
    values (_limiter, _part, _holder, to_timestamp(_ready));
  update "stowhand".flow_limits l set waiting = _later + 1 where l.limiter = _limiter and l.part = _part;
  return greatest(_ready - _epoch, 0.001);
end $$;

CREATE FUNCTION stowhand.flow_wake(_key text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _waits_for json;
  _state text;
begin
  select j.payload->'waits_for' into _waits_for from "stowhand".live j where j.key = _key;
  if json_typeof(_waits_for) is distinct from 'array' then return 'gone'; end if;
  -- Each name is the beginning of the ids of many children; hexadecimal digits follow. Check the last child first:
  -- children end in their order, and ended ones are in the index until it is vacuumed.
  if exists (
    select from json_array_elements_text(_waits_for) as c(name) cross join lateral (
      select from "stowhand".live j
        where j.key >= 'flow:' || c.name and j.key <= 'flow:' || c.name || 'ffffff' and j.state <> 'failed'
        order by j.key desc limit 1) o)
  then
    return 'open';
  end if;
  update "stowhand".live j set run_at = least(j.run_at, _at), absorbed = false
    where j.key = _key and j.state in ('queued', 'errored') returning j.state into _state;
  if found then
    perform "stowhand".wake();
    return 'woken';
  end if;
  select j.state into _state from "stowhand".live j where j.key = _key;
  return case when _state = 'processing' then 'running' else 'gone' end;
end $$;

CREATE FUNCTION stowhand.fold_throughput(_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _at timestamptz;
  _begins timestamptz[];
begin
  perform pg_advisory_xact_lock(hashtextextended('stowhand:wake', 3));
  _at := "stowhand".at(_now);
  _begins := array(
    select distinct t.begins from "stowhand".throughput t
    where t.writer <> '' and t.begins <= _at - interval '11 minutes' order by t.begins limit 120);
  perform "stowhand".regroup_throughput(_begins, 60);
  perform "stowhand".total_throughput(_begins, 60);
  _begins := array(
    select distinct to_timestamp(floor(extract(epoch from t.begins) / 3600) * 3600) from "stowhand".throughput t
    where t.seconds = 60 and t.begins < to_timestamp(floor(extract(epoch from _at - interval '2 days') / 3600) * 3600)
    order by 1 limit 24);
  perform "stowhand".regroup_throughput(_begins, 3600);
  perform "stowhand".total_throughput(_begins, 3600);
  delete from "stowhand".throughput t where t.seconds in (3600, -3600) and t.begins < _at - interval '90 days';
end $$;

CREATE FUNCTION stowhand.force_unlock_workers(worker_ids text[]) RETURNS SETOF stowhand.jobs
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select s.* from "stowhand".unlock_all(worker_ids, true) j cross join lateral "stowhand".shown(j) s
$$;

CREATE FUNCTION stowhand.foreign_leases(_ours bigint[], _slack double precision, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT late boolean, OUT ends_in double precision) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
begin
  select coalesce(bool_or(j.lease_until + _slack * interval '1 second' < _at), false),
      extract(epoch from min(j.lease_until) filter (where j.lease_until + _slack * interval '1 second' >= _at) - _at)
        + _slack
    into late, ends_in
    from "stowhand".live j
    -- Use a subquery, which is hashed. An array parameter is not.
    where j.state = 'processing' and j.id not in (select u.id from unnest(_ours) as u(id));
end $$;

CREATE FUNCTION stowhand.forget_periods(_ids bigint[]) RETURNS void
    LANGUAGE sql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
  delete from "stowhand".uniques u where u.job_id = any(_ids)
$$;

CREATE FUNCTION stowhand.fork_job(_id bigint, _step text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _first bigint;
  _fork bigint;
begin
  if not exists (select from "stowhand".live j where j.id = _id) and not exists (
    select from "stowhand".history h where h.id = _id) then return null; end if;
  select min(s.seq) into _first from "stowhand".steps s where s.job_id = _id and s.name = _step;
  if _first is null then
    raise exception 'Job % has recorded no step %.', _id, to_json(_step) using errcode = '22023';
  end if;
  insert into "stowhand".live (task, payload, queue, serial, priority, max_attempts, max_resets, flags, run_at, epoch, created_at, updated_at)
    select o.* from (
      select j.task, j.payload, j.queue, j.serial, j.priority, j.max_attempts, j.max_resets, j.flags, _at, 1, _at, _at from "stowhand".live j where j.id = _id
      union all
      select h.task, h.payload, h.queue, h.serial, h.priority, h.max_attempts, h.max_resets, h.flags, _at, 1, _at, _at from "stowhand".history h where h.id = _id) o limit 1
    returning id into _fork;
  insert into "stowhand".steps (job_id, name, place, value, error, until, remaining, epoch, at)
    select _fork, s.name, s.place, s.value, s.error, s.until, s.remaining, s.epoch, s.at from "stowhand".steps s
    where s.job_id = _id and (s.value is not null or s.error is not null or s.until <= _at) and s.name in (
      select f.name from "stowhand".steps f where f.job_id = _id
      group by f.name having min(f.seq) < _first and coalesce(max(f.remaining), 0) = 0)
    order by s.seq;
  perform "stowhand".wake();
  return _fork;
end $$;

CREATE FUNCTION stowhand.free_due(_tasks text[], _queues text[], _excluded text[], _at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    AS $$
declare
  _any boolean := _tasks is null and _queues is null and _excluded is null;
  _earliest timestamptz;
  _next record;
  _after int;
  _from record;
begin
  if not _any then
    _tasks := coalesce(_tasks, "stowhand".waiting_tasks());
    _queues := "stowhand".queues_of_claim(_queues, _excluded);
  end if;
  for _from in
    select null::text as queue, null::text as task where _any
    union all
    select q.queue, t.task from unnest(_queues) as q(queue) cross join unnest(_tasks) as t(task)
  loop
    _after := -2147483648;
    loop
      if _any then
        select j.priority, j.run_at into _next from "stowhand".live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2 and j.priority >= _after
          order by j.priority, j.run_at, j.id limit 1;
      elsif _from.queue = 'default' then
        select j.priority, j.run_at into _next from "stowhand".live j
          where j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.task = _from.task and j.priority >= _after
          order by j.task, j.priority, j.run_at, j.id limit 1;
      else
        select j.priority, j.run_at into _next from "stowhand".live j
          where j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.queue = _from.queue and j.task = _from.task and j.priority >= _after
          order by j.queue, j.task, j.priority, j.run_at, j.id limit 1;
      end if;
      exit when not found;
      _earliest := least(_earliest, _next.run_at);
      if _earliest <= _at then return _earliest; end if;
      exit when _next.priority = 2147483647;
      _after := _next.priority + 1;
    end loop;
  end loop;
  return _earliest;
end $$;

CREATE FUNCTION stowhand.free_if_unlocked(_names text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _locked text[] := array(
    select q.name from "stowhand".limit_keys q where q.name = any(_names) order by q.name for update skip locked);
begin
  if cardinality(_locked) > 0 then perform "stowhand".free_serials(_locked, _at); end if;
end $$;

CREATE FUNCTION stowhand.free_serials(_names text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _freed text[];
  _absorbed text[];
  _name text;
begin
  perform from "stowhand".limit_keys q where q.name = any(_names) order by q.name for update;
  -- Use new statements now that the rows are locked, so that every running job and every scout that a claim has absorbed
  -- is visible. A single statement that waited for a lock would see the jobs as they were before.
  select array_agg(q.name), array_agg(q.name) filter (where q.absorbed) into _freed, _absorbed from "stowhand".limit_keys q
    where q.name = any(_names) and q.paused_at is null
      -- This is `is_held` inline: a call for each serial key was a fifth of the cost of a settlement.
      and (position(E'\t' in q.name) > 0 or not exists (
        select from "stowhand".live j where j.serial = q.name and j.key_slot is not null and j.worker is not null));
  if _absorbed is not null then
    foreach _name in array _absorbed loop
      perform "stowhand".refresh_hint(_name, _at);
    end loop;
  end if;
  if exists (
    select from (
      -- Most keys of a limit have no waiting job, which one step in an index tells.
      select n.name, position(E'\t' in n.name) > 0 as of_limit from unnest(_freed) as n(name)
      where position(E'\t' in n.name) = 0 or exists (
        select from "stowhand".live j where j.serial = n.name and j.state in ('queued', 'errored') and j.serial is not null
          and j.resets < 2)
      offset 0) f cross join lateral "stowhand".serial_head(f.name, null, null, null, null, _at) h
    where case when h.run_at <= _at then not f.of_limit or "stowhand".key_opens_at(f.name, _at) is null end)
  then
    perform "stowhand".wake();
  end if;
end $$;

CREATE FUNCTION stowhand.free_slots(_name text, _count integer) RETURNS integer[]
    LANGUAGE sql STABLE
    AS $$
  with used as materialized (select u.slot from "stowhand".used_slots(_name) u)
  select array(
    select g.slot from generate_series(1, (select count(*)::int from used) + _count) as g(slot)
    except select u.slot from used u
    order by 1 limit _count)
$$;

CREATE FUNCTION stowhand.hint_parked(_names text[], _firsts stowhand.place[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  update "stowhand".limit_keys q set absorbed = true where q.name = any(_names) and not q.absorbed;
  -- As `refresh_hint`, for all keys at once: these jobs may be the first of their keys.
  update "stowhand".limit_keys q set hint_priority = p.priority, hint_run_at = p.run_at, hint_id = p.id
    from (
      select s.name, (h.place).* from unnest(_names, _firsts) as f(name, priority, run_at, id)
        cross join lateral "stowhand".key_states(array[f.name], _at) s
        cross join lateral (select "stowhand".key_place(
          s.name, row(f.priority, greatest(f.run_at, s.opens_at), f.id)::"stowhand".place, _at) as place offset 0) h
      where s.slots > 0) p
    where q.name = p.name and (q.hint_id is null
      or (p.priority, p.run_at, p.id) < (q.hint_priority, q.hint_run_at, q.hint_id));
end $$;

CREATE FUNCTION stowhand.hold_limits(_tasks text[], _names text[], _seconds double precision[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  update "stowhand".limit_keys q
    set held_until = greatest(q.held_until, h.until)
    from (
      select s.name, max(_at + s.seconds * interval '1 second') as until from unnest(_names, _seconds) as s(name, seconds)
      where position(E'\t' in s.name) > 0 group by s.name) h
    where q.name = h.name;
  update "stowhand".limits l
    set held_until = greatest(l.held_until, h.until)
    from (
      select n.name, max(_at + s.seconds * interval '1 second') as until
      from unnest(_tasks, _names, _seconds) as s(task, name, seconds)
        join "stowhand".task_limits t on t.task = s.task and t.key_limit is null
        cross join lateral (values (t.concurrency), (t.rate)) as n(name)
      where n.name is not null
      group by n.name) h
    where l.name = h.name;
  perform "stowhand".refresh_hint(q.name, _at) from "stowhand".limit_keys q
    where q.name = any(_names) and position(E'\t' in q.name) > 0 and q.absorbed;
end $$;

CREATE FUNCTION stowhand.is_held(_name text) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  select exists (select from "stowhand".live j where j.serial = _name and j.key_slot is not null and j.worker is not null)
    or exists (select from "stowhand".limit_keys q where q.name = _name and q.paused_at is not null)
$$;

CREATE FUNCTION stowhand.is_overtaken(_priority integer, _at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
declare
  _next record;
  _after int := -2147483648;
begin
  loop
    select j.priority, j.run_at into _next from "stowhand".live j
      where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
        and j.priority >= _after and j.priority < _priority
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found;
    if _next.run_at <= _at then return true; end if;
    _after := _next.priority + 1;
  end loop;
  _after := -2147483648;
  loop
    select j.priority, j.run_at into _next from "stowhand".live j
      where j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2
        and j.priority >= _after and j.priority < _priority
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found;
    if _next.run_at <= _at then return true; end if;
    _after := _next.priority + 1;
  end loop;
  return exists (
    select from "stowhand".limit_keys q
    where q.hint_run_at is not null and q.hint_priority < _priority and q.hint_run_at <= _at);
end $$;

CREATE FUNCTION stowhand.is_suspicious(_text text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
  select _text ~ E'\\\\u|[eE][-+]?[0-9]{3}|[0-9]{20}'
    or length(_text) > 128 and length(_text) - length(replace(replace(_text, '[', ''), '{', '')) > 64
$$;

CREATE FUNCTION stowhand.is_usual(_task text, _payload text, _serial text, _max_attempts integer, _key text, _flags text[], _queue text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $_$
  select length(_task) between 1 and 128 and _max_attempts > 0 and length(_payload) < 8192
    and not "stowhand".is_suspicious(_payload)
    and (_serial is null or length(_serial) between 1 and 128) and (_key is null or length(_key) between 1 and 512)
    and (_queue is null or length(_queue) between 1 and 128 and _queue !~ '^ |,| $')
    and concat(_task, _serial, _key, _queue) !~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028\\u2029]'
    and _task <> all(array['jobs:purge_completed']) and _flags is null
$_$;

CREATE FUNCTION stowhand.job_ends(_ids bigint[]) RETURNS TABLE(id bigint, state text, attempts integer, resets integer, last_error text, result text, started_at timestamp with time zone, finished_at timestamp with time zone, revision integer, replaced integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
begin
  return query
    select f.id,
      case when h.state is not null then h.state
           when l.state is not null then l.state
           when f.id > coalesce(pg_sequence_last_value('"stowhand".live_id_seq'), 0) then 'unknown'
           else 'gone' end,
      coalesce(l.attempts, h.attempts), coalesce(l.resets, h.resets),
      case when l.id is null then h.last_error else l.last_error end, h.result,
      case when l.id is null then h.started_at else l.started_at end,
      case when l.id is null then h.finished_at else l.finished_at end,
      coalesce(l.revision, h.revision), case when l.id is null then h.replaced else l.replaced end
    from unnest(_ids) as f(id)
      left join lateral (
        select j.id, j.state, j.attempts, j.resets, j.last_error, j.started_at, j.finished_at, j.revision,
          j.replaced
        from "stowhand".live j where j.id = f.id offset 0) l on true
      left join lateral (
        select p.state, p.attempts, p.resets, p.last_error, p.result::text, p.started_at, p.finished_at, p.revision,
          p.replaced
        from "stowhand".history p where p.id = f.id and l.id is null order by p.finished_at desc limit 1) h on true
    where l.id is null or l.state = 'failed' or l.replaced is not null;
end $$;

CREATE FUNCTION stowhand.judge_reset(_resets integer, _max_resets integer, _max_attempts integer, OUT state text, OUT error text) RETURNS record
    LANGUAGE sql IMMUTABLE
    AS $$
  select case when lives then 'queued' else 'failed' end,
    case when not lives then
      format('its worker died %s while running it', case _resets when 0 then '1 time' else (_resets + 1) || ' times' end)
    end
  from (values (_resets < coalesce(_max_resets, case _max_attempts when 1 then 0 else 5 end))) as judged(lives)
$$;

CREATE FUNCTION stowhand.keep_ends_by_hand(_ids bigint[], _why text, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  if cardinality(_ids) = 0 then return; end if;
  perform "stowhand".keep_tries(
    array(select row(i.id, null, null, 'failed', null, null, null, null, null, _why, null, null, 'by hand', 'by hand')
                 ::"stowhand".verdict from unnest(_ids) as i(id)), _at);
end $$;

CREATE FUNCTION stowhand.keep_progress(_ids bigint[], _tokens uuid[], _progress double precision[], _texts text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  perform set_config('synchronous_commit', 'off', true);
  for _n in 1..cardinality(_ids) loop
    perform from "stowhand".live l where l.id = _ids[_n] and l.token = _tokens[_n] for update skip locked;
    if found then
      update "stowhand".live l set progress = _progress[_n], progress_text = _texts[_n] where l.id = _ids[_n];
    end if;
  end loop;
end $$;

CREATE FUNCTION stowhand.keep_tries(_verdicts stowhand.verdict[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _crowded bigint[];
begin
  with written as (
    insert into "stowhand".tries (job_id, place, round, number, worker, started_at, ended_at, outcome, error_class, error)
    select j.id, coalesce(t.place, 0) + 1, coalesce(j.round, 1), j.attempts, j.worker,
      case when j.worker is not null then j.started_at end, _at, v.outcome, left(v.error_class, 200),
      "stowhand".last_frames(v.error)
    from unnest(_verdicts) as v
      cross join lateral (
        select l.id, l.round, l.attempts, l.worker, l.started_at from "stowhand".live l where l.id = v.id offset 0) j
      cross join lateral (
        select max(o.place) as place from "stowhand".tries o where o.job_id = v.id offset 0) t
    where v.outcome is not null
    returning job_id, place
  )
  select array_agg(w.job_id) into _crowded from written w where w.place > 10;
  if _crowded is not null then
    delete from "stowhand".tries t where t.job_id = any(_crowded)
      and t.place <= (select max(m.place) - 10 from "stowhand".tries m where m.job_id = t.job_id);
  end if;
end $$;

CREATE FUNCTION stowhand.key_name(_limit text, _key text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select _limit || E'\t' || case when length(_key) > 128 then left(_key, 96) || md5(_key) else coalesce(_key, '') end
$$;

CREATE FUNCTION stowhand.key_of_task(_task text, _serial text, _key text) RETURNS text
    LANGUAGE plpgsql
    AS $$
declare
  _limit text := (select t.key_limit from "stowhand".task_limits t where t.task = _task);
begin
  if _limit is null then
    raise exception 'limit_key: task % has no limit with a key: a worker declares limits when it starts.', to_json(_task)
      using errcode = '22023';
  elsif _serial is not null then
    raise exception 'A job has one key: use limit_key, or queue_name (the serial key), not both.' using errcode = '22023';
  end if;
  return "stowhand".key_name(_limit, _key);
end $$;

CREATE FUNCTION stowhand.key_opens_at(_name text, _at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    AS $$
declare
  _limit "stowhand".limits;
  _key "stowhand".limit_keys;
  _opens_at timestamptz;
begin
  if position(E'\t' in _name) = 0 then return case when "stowhand".is_held(_name) then 'infinity'::timestamptz end; end if;
  select q.* into _key from "stowhand".limit_keys q where q.name = _name;
  select l.* into _limit from "stowhand".limits l where l.name = split_part(_name, E'\t', 1);
  if _key.paused_at is not null or _limit.key_concurrency <= "stowhand".key_slots_used(_name) then return 'infinity'; end if;
  _opens_at := greatest(_key.held_until,
    "stowhand".rate_opens_at(_key.next_start, _limit.key_rate, _limit.key_rate_seconds, _limit.key_burst, _at));
  return case when _opens_at > _at then _opens_at end;
end $$;

CREATE FUNCTION stowhand.key_place(_name text, _first stowhand.place, _at timestamp with time zone) RETURNS stowhand.place
    LANGUAGE sql STABLE
    AS $$
  select coalesce((
    select row(_first.priority, least(q.served_at, _at), q.turn)::"stowhand".place from "stowhand".limit_keys q
    where q.name = _name and q.served_at >= _first.run_at and _at >= _first.run_at), _first)
$$;

CREATE FUNCTION stowhand.key_slots_used(_name text) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
  select count(*) from "stowhand".live j where j.serial = _name and j.key_slot is not null and j.worker is not null
$$;

CREATE FUNCTION stowhand.key_states(_names text[], _at timestamp with time zone) RETURNS TABLE(name text, slots integer, room integer, opens_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
  select q.name, s.free, case when o.at > _at then 0 else least(s.free, "stowhand".starts_allowed(
      q.next_start, l.key_rate, l.key_rate_seconds, l.key_burst, _at)) end,
    case when o.at > _at then o.at end
  from unnest(_names) with ordinality as n(name, place)
    cross join lateral (select k.* from "stowhand".limit_keys k where k.name = n.name offset 0) q
    left join lateral (select k.* from "stowhand".limits k where k.name = split_part(n.name, E'\t', 1) offset 0) l on true
    cross join lateral (select greatest(q.held_until, "stowhand".rate_opens_at(
      q.next_start, l.key_rate, l.key_rate_seconds, l.key_burst, _at)) as at) o
    cross join lateral (select case
      when q.paused_at is not null then 0
      when l.key_concurrency is null then 2147483647
      else (
        select greatest(l.key_concurrency - count(*), 0)::int from "stowhand".live j
        where j.serial = q.name and j.key_slot is not null and j.worker is not null) end as free) s
  order by n.place
$$;

CREATE FUNCTION stowhand.last_frames(_error text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    AS $$
  select case
    when octet_length(_error) <= 1024 then _error
    else concat(left(split_part(_error, E'\n', 1), f.head), E'\n[...]\n', right(_error, f.tail)) end
  from (select case when octet_length(_error) = length(_error) then 160 else 40 end as head,
               case when octet_length(_error) = length(_error) then 800 else 200 end as tail) f
$$;

CREATE FUNCTION stowhand.lock_idle(_ids bigint[], _at timestamp with time zone) RETURNS stowhand.live[]
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  return array(
    select j from "stowhand".live j
    where j.id = any(_ids) and (j.state <> 'processing' or j.lease_until < _at)
    order by j.id for update);
end $$;

CREATE FUNCTION stowhand.lock_keys(_names text[]) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
begin
  -- An insert would wait for another claim that has inserted the same row. Two claims could wait for each other, in a
  -- deadlock. With the try-lock, no claim waits.
  insert into "stowhand".limit_keys (name)
    select n.name from unnest(_names) as n(name)
    where not exists (select from "stowhand".limit_keys q where q.name = n.name)
      and pg_try_advisory_xact_lock(hashtextextended('stowhand:wake' || n.name, 1))
    on conflict do nothing;
  return array(
    select q.name from "stowhand".limit_keys q where q.name = any(_names) order by q.name for update skip locked);
end $$;

CREATE FUNCTION stowhand.lock_limits(_ids bigint[]) RETURNS void
    LANGUAGE sql
    AS $$
  select from "stowhand".limits l where l.name = any(array(
    select n.name from unnest(_ids) as f(id)
      cross join lateral (select j.task from "stowhand".live j where j.id = f.id offset 0) j
      join "stowhand".task_limits t on t.task = j.task and t.key_limit is null
      cross join lateral (values (t.concurrency), (t.rate)) as n(name)
    where n.name is not null))
  order by l.name for update
$$;

CREATE FUNCTION stowhand.lock_waits(_ids bigint[], _waits json[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  perform from "stowhand".steps s
    where s.place = -1 and (s.job_id, s.name) in (
      select w.id, w.wait->>'step' from unnest(_ids, _waits) as w(id, wait) where w.wait->>'value' is not null)
    order by s.job_id, s.name for update;
  perform pg_advisory_xact_lock_shared(k.key) from (
    select distinct "stowhand".event_lock(w.wait->>'event') as key from unnest(_waits) as w(wait)
    where w.wait->>'event' is not null order by 1) k;
end $$;

CREATE FUNCTION stowhand.look(_ids bigint[], _tokens uuid[]) RETURNS TABLE(id bigint, token uuid, found text, state text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
  select f.id, f.token,
    case
      when j.token = f.token then 'busy'
      when j.settled_token = f.token or h.settled_token = f.token then 'settled'
      when j.id is not null or h.id is not null then 'lost'
      else 'gone' end,
    coalesce(j.state, h.state)
  from unnest(_ids, _tokens) as f(id, token)
    left join lateral (
      select l.id, l.token, l.settled_token, l.state from "stowhand".live l where l.id = f.id offset 0) j on true
    left join lateral (
      select p.id, p.settled_token, p.state from "stowhand".history p where p.id = f.id
      order by p.settled_token = f.token desc nulls last limit 1) h on j.id is null
$$;

CREATE FUNCTION stowhand.maintain(_retention double precision, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _failed double precision DEFAULT NULL::double precision) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '200ms'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _before timestamptz := _at - coalesce(_retention, 0) * interval '1 second';
  _duty text;
  _trouble text;
begin
  -- One call at a time is enough.
  if not pg_try_advisory_xact_lock(hashtextextended('stowhand:wake', 2)) then return null; end if;
  foreach _duty in array array['days ahead', 'days behind', 'the history without a day', 'hints', 'serials', 'ticks', 'flows',
                               'failed jobs', 'attempts', 'expired jobs', 'periods', 'workers', 'tokens', 'steps', 'times', 'throughput'] loop
    begin
      case _duty
        when 'days ahead' then perform "stowhand".make_days(_at, 3);
        when 'days behind' then perform "stowhand".prune_days(_before, _at);
        when 'the history without a day' then
          delete from "stowhand".history_default h where h.ctid = any(array(
            select d.ctid from "stowhand".history_default d where d.finished_at < _before
            order by d.finished_at limit 50000 for update skip locked));
        when 'hints' then perform "stowhand".restore_hints(_at);
        when 'serials' then perform "stowhand".prune_serials(1000, _at);
        when 'ticks' then perform "stowhand".prune_ticks(_at);
        when 'flows' then perform "stowhand".prune_flows(_before, _at, 20000);
        when 'failed jobs' then
          if _failed is not null then perform "stowhand".purge_failed(_failed, 20000, _now); end if;
        when 'expired jobs' then perform "stowhand".expire(_at);
        when 'steps' then perform "stowhand".prune_steps(5000, _at);
        when 'periods' then
          delete from "stowhand".uniques u where u.ctid = any(array(
            select o.ctid from "stowhand".uniques o where o.until <= _at order by o.until limit 20000
            for update skip locked));
        when 'attempts' then perform "stowhand".prune_tries();
        when 'workers' then
          delete from "stowhand".workers w where w.seen_at < _at - interval '1 day';
          delete from "stowhand".app_versions v where v.seen_at < _at - interval '90 days';
        when 'times' then  -- autovacuum does this too, but seldom
          perform brin_summarize_new_values(i.inhrelid) from pg_inherits i
            where i.inhparent = to_regclass('"stowhand"' || '.history_ended');
        when 'throughput' then perform "stowhand".fold_throughput(_now);  -- last, because workers wait for its lock
        when 'tokens' then delete from "stowhand".dead_tokens d where d.at < _at - interval '1 hour';
      end case;
    exception
      when lock_not_available then
        null;  -- the next call does it
      when others then
        _trouble := concat_ws('; ', _trouble, _duty || ': ' || sqlerrm);
    end;
  end loop;
  return _trouble;
end $$;

CREATE FUNCTION stowhand.make_days(_at timestamp with time zone, _ahead integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _day date;
  _name text;
begin
  for _step in 0.._ahead loop
    _day := (_at at time zone 'UTC')::date + _step;
    _name := 'history_' || to_char(_day, 'YYYYMMDD');
    continue when exists (
      select from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = 'stowhand' and c.relname = _name);
    begin
      execute format('create table %I.%I partition of %I.history for values from (%L) to (%L)',
        'stowhand', _name, 'stowhand', _day || ' 00:00+00', (_day + 1) || ' 00:00+00');
    exception when check_violation or lock_not_available or duplicate_table then
      null;
    end;
  end loop;
end $$;

CREATE FUNCTION stowhand.next_due(_tasks text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _queues text[] DEFAULT NULL::text[], _excluded text[] DEFAULT NULL::text[]) RETURNS double precision
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _earliest timestamptz;
  _closed record;
begin
  if exists (select from "stowhand".pauses) then
    _tasks := "stowhand".unpaused(_tasks);
    _excluded := "stowhand".with_paused(_excluded);
  end if;
  if exists (select from "stowhand".task_limits) then
    for _closed in
      select c.opens_at, array_agg(c.task) as tasks from "stowhand".closed_tasks(_at) c
      where c.opens_at < 'infinity' and (_tasks is null or c.task = any(_tasks)) group by c.opens_at
    loop
      _earliest := least(_earliest, (
        select greatest(d.due, _closed.opens_at)
        from "stowhand".earliest_due(_closed.tasks, _queues, _excluded, _at) as d(due) where d.due is not null));
    end loop;
    _tasks := "stowhand".open_tasks(_tasks, _at);
  end if;
  if cardinality(_tasks) > 0 or _tasks is null then
    _earliest := least(_earliest, "stowhand".earliest_due(_tasks, _queues, _excluded, _at));
  end if;
  if (_earliest is null or _earliest > _at) and exists (select from "stowhand".expiring) then
    _earliest := least(_earliest, "stowhand".next_expiry());
  end if;
  return case when _earliest is not null then greatest(extract(epoch from _earliest - _at), 0)::double precision end;
end $$;

CREATE FUNCTION stowhand.next_expiry() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
  with first as materialized (
    select e.expires_at, e.id from "stowhand".expiring e order by e.expires_at, e.id limit 100
  )
  select coalesce(
    (select f.expires_at from first f
      where exists (select from "stowhand".live l where l.id = f.id and l.state = 'queued' and l.expires_at = f.expires_at)
      order by f.expires_at limit 1),
    case when (select count(*) from first) = 100 then (select max(f.expires_at) from first f) end)
$$;

CREATE FUNCTION stowhand.next_name(_name text) RETURNS text
    LANGUAGE plpgsql
    AS $$
begin
  if _name is null then
    return (select j.serial from "stowhand".live j
      where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
      order by j.serial, j.task, j.priority, j.run_at, j.id limit 1);
  end if;
  return (select j.serial from "stowhand".live j
    where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2 and j.serial > _name
    order by j.serial, j.task, j.priority, j.run_at, j.id limit 1);
end $$;

CREATE FUNCTION stowhand.next_round(_id bigint) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
  select max(t.round) + 1 from "stowhand".tries t where t.job_id = _id
$$;

CREATE FUNCTION stowhand.next_start(_stored timestamp with time zone, _rate integer, _seconds double precision, _burst integer, _at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$
  select case
    when _rate is null then null
    when _stored > _at + (coalesce(_burst, 1) * _seconds / _rate + 5) * interval '1 second' then _at
    else greatest(_stored, _at) end
$$;

CREATE FUNCTION stowhand.note_app_version(_version text, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _gone constant timestamptz := _at - interval '15 minutes';
begin
  if not exists (select from "stowhand".app_versions v where v.version = _version and v.seen_at >= _gone) then
    perform pg_advisory_xact_lock(hashtextextended('stowhand:wake', 5));
    insert into "stowhand".app_versions (version, since, seen_at)
      select _version, _at, _at where not exists (
        select from "stowhand".app_versions v where v.version = _version and v.seen_at >= _gone)
      on conflict do nothing;
    return;
  end if;
  update "stowhand".app_versions v set seen_at = _at where v.ctid = any(array(
    select o.ctid from "stowhand".app_versions o
    where o.version = _version and o.seen_at >= _gone and o.seen_at < _at - interval '5 minutes' for update skip locked));
end $$;

CREATE FUNCTION stowhand.note_expiry(_ids bigint[]) RETURNS void
    LANGUAGE sql
    AS $$
  insert into "stowhand".expiring (expires_at, id)
  select j.expires_at, j.id from "stowhand".live j where j.id = any(_ids) and j.expires_at is not null
  on conflict do nothing
$$;

CREATE FUNCTION stowhand.note_starts(_ids bigint[], _tasks text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _rates text[];
  _keys text[];
begin
  if not exists (
    select from "stowhand".task_limits t left join "stowhand".limits l on l.name = t.key_limit
    where t.task = any(_tasks) and (t.rate is not null or l.key_rate is not null))
  then
    return;
  end if;
  select array_agg(t.rate) filter (where t.rate is not null), array_agg(j.serial) filter (where t.key_limit is not null)
    into _rates, _keys
    from unnest(_ids) as f(id)
      cross join lateral (select l.task, l.serial from "stowhand".live l where l.id = f.id offset 0) j
      join "stowhand".task_limits t on t.task = j.task;
  update "stowhand".limits l
    set next_start = "stowhand".next_start(l.next_start, l.rate, l.rate_seconds, l.burst, _at)
      + (select count(*) from unnest(_rates) as s(rate) where s.rate = l.name) * l.rate_seconds / l.rate * interval '1 second'
    where l.name = any(_rates) and l.rate is not null;
  update "stowhand".limit_keys q
    set next_start = "stowhand".next_start(q.next_start, k.key_rate, k.key_rate_seconds, k.key_burst, _at)
      + k.starts * k.key_rate_seconds / k.key_rate * interval '1 second'
    from (
      select u.name, count(*) as starts, l.key_rate, l.key_rate_seconds, l.key_burst
      from unnest(_keys) as u(name) join "stowhand".limits l on l.name = split_part(u.name, E'\t', 1)
      where l.key_rate is not null
      group by u.name, l.key_rate, l.key_rate_seconds, l.key_burst) k
    where q.name = k.name;
end $$;

CREATE FUNCTION stowhand.open_serial(_name text, _at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    AS $$
begin
  -- A key that is held is not locked, since a claim may meet a hundred of them.
  if "stowhand".key_opens_at(_name, _at) is not null then return 'held'; end if;
  perform from "stowhand".limit_keys q where q.name = _name for update skip locked;
  if not found and cardinality("stowhand".lock_keys(array[_name])) = 0 then return 'locked'; end if;
  -- A new statement under the lock: it sees every claim that has held the lock before.
  return case when "stowhand".key_opens_at(_name, _at) is null then 'free' else 'held' end;
end $$;

CREATE FUNCTION stowhand.open_tasks(_tasks text[], _at timestamp with time zone) RETURNS text[]
    LANGUAGE plpgsql STABLE
    AS $$
declare
  _closed text[] := array(select c.task from "stowhand".closed_tasks(_at) c);
begin
  if cardinality(_closed) = 0 then return _tasks; end if;
  return array(select t.task from unnest(coalesce(_tasks, "stowhand".waiting_tasks())) with ordinality as t(task, place)
               where t.task <> all(_closed) order by t.place);
end $$;

CREATE FUNCTION stowhand.park(_ids bigint[], _at timestamp with time zone) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
  _names text[];
  _locked text[];
  _parked bigint[];
  _firsts "stowhand".place[];
  _all bigint[] := _ids;
begin
  select array_agg(k.id), array_agg(k.name) into _ids, _names from (
    select j.id, coalesce(j.serial, "stowhand".key_name(t.key_limit, j.payload #>> t.key_path)) as name
    from unnest(_ids) as f(id)
      cross join lateral (
        select l.id, l.task, l.serial, l.payload from "stowhand".live l where l.id = f.id and l.state in ('queued', 'errored')
          and not l.absorbed and l.resets + 0 < 2 offset 0 for update skip locked) j
      join "stowhand".task_limits t on t.task = j.task and t.key_limit is not null) k;
  if _ids is null then return _all; end if;
  _locked := "stowhand".lock_keys(array(select distinct n.name from unnest(_names) as n(name)));
  with parked as (
    update "stowhand".live l
      set serial = _names[array_position(_ids, l.id)], absorbed = _names[array_position(_ids, l.id)] = any(_locked)
      where l.id = any(_ids)
      returning l.id, l.serial, l.absorbed, l.priority, l.run_at
  ), first as (
    select distinct on (p.serial) p.serial, row(p.priority, p.run_at, p.id)::"stowhand".place as place
    from parked p where p.absorbed order by p.serial, p.priority, p.run_at, p.id
  )
  select (select array_agg(p.id) from parked p where p.absorbed), array_agg(f.serial), array_agg(f.place)
    into _parked, _names, _firsts from first f;
  perform "stowhand".hint_parked(_names, _firsts, _at);
  return array(select a.id from unnest(_all) as a(id) where a.id = any(_parked) is not true);
end $$;

CREATE FUNCTION stowhand.park_due(_tasks text[], _queues text[], _excluded text[], _at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
  _most constant int := 400;
  _ids bigint[] := "stowhand".pick_free(_most, _tasks, null, _queues, _excluded, _at, null, null, null);
begin
  if cardinality(_ids) > 0 then perform "stowhand".park(_ids, _at); end if;
  return cardinality(_ids) = _most;
end $$;

CREATE FUNCTION stowhand.pause_queue(queue text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
begin
  perform "stowhand".check_queue(coalesce(queue, ''));
  return "stowhand".write_pause('queue', queue, true, _now);
end $$;

CREATE FUNCTION stowhand.pause_serial(serial_key text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
begin
  perform "stowhand".check_serial(coalesce(serial_key, ''));
  -- As for the first use of a key (open_serial): a claim must not wait for a row that this transaction has inserted.
  perform pg_advisory_xact_lock(hashtextextended('stowhand:wake' || serial_key, 1));
  loop
    perform from "stowhand".limit_keys q where q.name = serial_key for update;
    exit when found;
    insert into "stowhand".limit_keys (name) values (serial_key) on conflict do nothing;
  end loop;
  update "stowhand".limit_keys q
    set paused_at = _at, hint_priority = null, hint_run_at = null, hint_id = null
    where q.name = serial_key and q.paused_at is null;
  return found;
end $$;

CREATE FUNCTION stowhand.pause_task(task_identifier text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
begin
  perform "stowhand".check_name('A task identifier', coalesce(task_identifier, ''), 128, 'GWBID');
  return "stowhand".write_pause('task', task_identifier, true, _now);
end $$;

CREATE FUNCTION stowhand.permanently_fail_jobs(job_ids bigint[], error_message text DEFAULT NULL::text) RETURNS SETOF stowhand.jobs
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select s.* from "stowhand".fail_all(job_ids, error_message) j cross join lateral "stowhand".shown(j) s
$$;

CREATE FUNCTION stowhand.pick_free(_limit integer, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone, _after_priority integer, _after_run_at timestamp with time zone, _after_id bigint) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
  _task text := case when cardinality(_tasks) = 1 then _tasks[1] end;
  _first "stowhand".place;
  _last "stowhand".place;
  _wanted int := _limit;
  _picked bigint[] := '{}';
begin
  if _after_id is null then
    _after_priority := -2147483648; _after_run_at := '-infinity'; _after_id := 0;
  end if;
  if cardinality(_tasks) = 2 then
    -- The second task is a built-in one that every worker has, and that hardly ever has a job.
    perform from "stowhand".live j
      where j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.task = _tasks[2]
      order by j.task, j.priority, j.run_at, j.id limit 1;
    if not found then _task := _tasks[1]; end if;
  end if;
  -- While no job of another queue waits, this query is the only cost of queues.
  if _queues is not null or _excluded is not null or _task is not null and exists (
    select from "stowhand".live j
      where j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2)
  then
    return "stowhand".pick_of_queues(
      _limit, _tasks, _forbidden, "stowhand".queues_of_claim(_queues, _excluded), _at, _after_priority, _after_run_at, _after_id);
  end if;
  while _wanted > 0 loop
    if _task is not null then
      -- The state is expressed as in the index live_by_task, not as in live_ready: see the baseline.
      select j.priority, j.run_at, j.id into _first from "stowhand".live j
        where j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.task = _task
          and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
        order by j.task, j.priority, j.run_at, j.id limit 1;
    else
      select j.priority, j.run_at, j.id into _first from "stowhand".live j
        where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
          and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
        order by j.priority, j.run_at, j.id limit 1;
    end if;
    exit when not found;
    if _first.run_at > _at then
      null;
    elsif _task is not null then
      _picked := _picked || array(
        select j.id from "stowhand".live j
        where j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.task = _task
          and j.priority = _first.priority and j.run_at <= _at and (j.run_at, j.id) >= (_first.run_at, _first.id)
          and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
        order by j.task, j.priority, j.run_at, j.id limit _wanted for update skip locked);
    else
      _last := null;
      if _tasks is not null then
        select j.priority, j.run_at, j.id into _last from "stowhand".live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
            and j.priority = _first.priority and j.run_at <= _at and (j.run_at, j.id) >= (_first.run_at, _first.id)
          order by j.priority, j.run_at, j.id offset 50 + 2 * _wanted limit 1;
      end if;
      if _last.run_at = _first.run_at then
        -- An index scan does not end at a position within the same run_at unless the condition compares run_at by
        -- equality.
        _picked := _picked || array(
          select j.id from "stowhand".live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
            and j.priority = _first.priority and j.run_at = _first.run_at and j.id >= _first.id and j.id < _last.id
            and j.task = any(_tasks) and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.priority, j.run_at, j.id limit _wanted for update skip locked);
      else
        _last.id := 0;
        _picked := _picked || array(
          select j.id from "stowhand".live j
          where j.state in ('queued', 'errored') and j.serial is null and j.resets < 2
            and j.priority = _first.priority and j.run_at <= _at and (j.run_at, j.id) >= (_first.run_at, _first.id)
            and j.run_at < coalesce(_last.run_at, 'infinity')
            and (_tasks is null or j.task = any(_tasks))
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.priority, j.run_at, j.id limit _wanted for update skip locked);
      end if;
      if _last.run_at is not null and cardinality(_picked) < _limit then
        _queues := coalesce(_queues, "stowhand".queues_of_claim(null, null));
        _picked := _picked || "stowhand".pick_merged(
          _limit - cardinality(_picked), _tasks, _forbidden, _queues, _at, _first.priority, _last.run_at, _last.id);
      end if;
    end if;
    _wanted := _limit - cardinality(_picked);
    _after_priority := _first.priority; _after_run_at := 'infinity'; _after_id := 9223372036854775807;
  end loop;
  return _picked;
end $$;

CREATE FUNCTION stowhand.pick_heads(_limit integer, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone, _bound_priority integer, _bound_run_at timestamp with time zone, _bound_id bigint, _fair text[], _without text[], OUT heads bigint[], OUT names text[], OUT unfinished boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
      (select j.priority, j.run_at, j.id from "stowhand".live j
        where j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2
          and (j.priority, j.run_at, j.id) > (_place.priority, _place.run_at, _place.id)
        order by j.priority, j.run_at, j.id limit 1)
      union all
      (select q.hint_priority, q.hint_run_at, q.hint_id from "stowhand".limit_keys q
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
              and "stowhand".takes(_queues, _excluded, j.queue) as ours, j.task = any(_fair) as fair from "stowhand".live j
            where j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2
              and j.priority = _next.priority and j.run_at <= _at and (j.run_at, j.id) >= (_next.run_at, _next.id)
            order by j.priority, j.run_at, j.id limit _page)
          union all
          (select q.hint_priority, q.hint_run_at, q.hint_id, q.name, false, true, false from "stowhand".limit_keys q
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
          case "stowhand".open_serial(_place.serial, _at)
          when 'held' then
            _held := _held || _place.serial;
          when 'locked' then
            _dull := _dull || _place.serial;
            continue;
          else
            -- Since this round was read, another claim may have given the key its turn.
            if _fair is not null and not _place.scout and not exists (
              select from "stowhand".limit_keys q where q.name = _place.serial
                and (q.hint_priority, q.hint_run_at, q.hint_id) = (_place.priority, _place.run_at, _place.id))
            then
              _dull := _dull || _place.serial;
              _has_missed := true;
              continue;
            end if;
            _head := "stowhand".take_head(_place.serial, _tasks, _forbidden, _queues, _excluded, _at);
            if _head is not null then
              heads := heads || _head;
              names := names || _place.serial;
              exit walk when cardinality(heads) >= _limit;
              _vain := _vain - 1;
            else
              _dull := _dull || _place.serial;
              -- The hint has led to no job. It may be outdated, and later claims would follow it again.
              if not _place.scout then perform "stowhand".refresh_hint(_place.serial, _at); end if;
            end if;
            continue;
          end case;
        end if;
        if _place.scout then _passed := _passed || _place.id; end if;
      end loop;
    end if;
    if _is_parking then
      -- Then read again from this place: the hints of the keys are there or behind it.
      _unparked := _unparked || "stowhand".park(array(
        select s.id from (
          select j.id, j.task from "stowhand".live j
          where j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2
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
      _few := "stowhand".walk_names(_tasks, _forbidden, _queues, _excluded, _at, names || _held || _dull, 100,
                                  _bound_priority, _bound_run_at, _bound_id);
      if _few is not null then
        foreach _name in array _few loop
          continue when "stowhand".open_serial(_name, _at) <> 'free';
          _head := "stowhand".take_head(_name, _tasks, _forbidden, _queues, _excluded, _at);
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
      perform "stowhand".absorb(_passed, names, _at);
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

CREATE FUNCTION stowhand.pick_merged(_limit integer, _tasks text[], _forbidden text[], _queues text[], _at timestamp with time zone, _priority integer, _from_run_at timestamp with time zone, _from_id bigint) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
  _ids bigint[];
  _run_ats timestamptz[];
  _picked bigint[] := '{}';
  _wanted int := _limit;
begin
  _tasks := array(select distinct u.task from unnest(_tasks) as u(task));
  while _wanted > 0 loop
    select array_agg(f.id), array_agg(f.run_at) into _ids, _run_ats from (
      select c.id, c.run_at from unnest(_queues) as q(queue) cross join unnest(_tasks) as t(task) cross join lateral (
        (select j.id, j.run_at from "stowhand".live j
          where q.queue = 'default' and j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2
            and j.task = t.task and j.priority = _priority and j.run_at <= _at
            and (j.run_at, j.id) >= (_from_run_at, _from_id)
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.task, j.priority, j.run_at, j.id limit _wanted)
        union all
        (select j.id, j.run_at from "stowhand".live j
          where q.queue <> 'default' and j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.queue = q.queue
            and j.task = t.task and j.priority = _priority and j.run_at <= _at
            and (j.run_at, j.id) >= (_from_run_at, _from_id)
            and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          order by j.queue, j.task, j.priority, j.run_at, j.id limit _wanted)
      ) c order by c.run_at, c.id limit _wanted) f;
    _picked := _picked || array(
      select j.id from unnest(_ids) as f(id) cross join lateral (
        select l.id from "stowhand".live l
          where l.id = f.id and l.state in ('queued', 'errored') and l.serial is null and l.resets + 0 < 2
            and l.priority = _priority and l.run_at <= _at and l.task = any(_tasks)
            and coalesce(l.queue, 'default') = any(_queues)
            and (_forbidden is null or l.flags is null or not l.flags && _forbidden)
          offset 0 for update skip locked) j);
    exit when _ids is null or cardinality(_ids) < _wanted;
    _from_run_at := _run_ats[_wanted];
    _from_id := _ids[_wanted] + 1;
    _wanted := _limit - cardinality(_picked);
  end loop;
  return _picked;
end $$;

CREATE FUNCTION stowhand.pick_of_queues(_limit integer, _tasks text[], _forbidden text[], _queues text[], _at timestamp with time zone, _after_priority integer, _after_run_at timestamp with time zone, _after_id bigint) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
  _first "stowhand".place;
  _picked bigint[] := '{}';
begin
  _tasks := coalesce(_tasks, "stowhand".waiting_tasks());
  while cardinality(_picked) < _limit loop
    select f.priority, f.run_at, f.id into _first
      from unnest(_queues) as q(queue) cross join unnest(_tasks) as t(task) cross join lateral (
        (select j.priority, j.run_at, j.id from "stowhand".live j
          where q.queue = 'default' and j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.task = t.task
            and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
          order by j.task, j.priority, j.run_at, j.id limit 1)
        union all
        (select j.priority, j.run_at, j.id from "stowhand".live j
          where q.queue <> 'default' and j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.queue = q.queue and j.task = t.task
            and (j.priority, j.run_at, j.id) > (_after_priority, _after_run_at, _after_id)
          order by j.queue, j.task, j.priority, j.run_at, j.id limit 1)
      ) f order by f.priority, f.run_at, f.id limit 1;
    exit when not found;
    if _first.run_at <= _at then
      _picked := _picked || "stowhand".pick_merged(
        _limit - cardinality(_picked), _tasks, _forbidden, _queues, _at, _first.priority, _first.run_at, _first.id);
    end if;
    _after_priority := _first.priority; _after_run_at := 'infinity'; _after_id := 9223372036854775807;
  end loop;
  return _picked;
end $$;

CREATE FUNCTION stowhand.pick_suspects(_limit integer, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone, OUT heads bigint[], OUT names text[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
  _job record;
begin
  heads := '{}'; names := '{}';
  for _job in
    select j.id, j.serial from "stowhand".live j
    where j.state in ('queued', 'errored') and j.resets >= 2 and j.run_at <= _at
      and (_tasks is null or j.task = any(_tasks)) and "stowhand".takes(_queues, _excluded, j.queue)
      and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
    order by j.priority, j.run_at, j.id
  loop
    continue when _job.serial is not null
      and (_job.serial = any(names) or "stowhand".open_serial(_job.serial, _at) <> 'free');
    perform from "stowhand".live j where j.id = _job.id and j.state in ('queued', 'errored') for update skip locked;
    continue when not found;
    heads := heads || _job.id;
    if _job.serial is not null then names := names || _job.serial; end if;
    exit when cardinality(heads) >= _limit;
  end loop;
end $$;

CREATE FUNCTION stowhand.pinned(_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    AS $$
begin
  if _now is not null and not pg_has_role(session_user, (
      select n.nspowner from pg_namespace n where n.nspname = 'stowhand'), 'member') then
    raise exception 'Only the owner of schema % may set the time.', 'stowhand' using errcode = '42501';
  end if;
  return _now;
end $$;

CREATE FUNCTION stowhand.poll(_worker text, _token uuid, _limit integer, _lease double precision, _tasks text[], _forbidden text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _queues text[] DEFAULT NULL::text[], _excluded text[] DEFAULT NULL::text[], _free integer DEFAULT NULL::integer, _rooms jsonb DEFAULT NULL::jsonb) RETURNS TABLE(id bigint, task text, payload text, serial text, priority integer, run_at timestamp with time zone, attempts integer, max_attempts integer, resets integer, max_resets integer, key text, flags text[], last_error text, revision integer, created_at timestamp with time zone, updated_at timestamp with time zone, started_at timestamp with time zone, queue text, parent_id bigint, epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _due double precision;
begin
  return query select * from "stowhand".claim(
    _worker, _token, _limit, _lease, _tasks, _forbidden, false, _now, _queues => _queues, _excluded => _excluded,
    _free => _free, _rooms => _rooms);
  if found then return; end if;
  _due := "stowhand".next_due(_tasks, _now, _queues, _excluded);
  id := -1;
  started_at := _at;
  run_at := _at + least(_due, 86400) * interval '1 second';
  resets := exists (
    select from "stowhand".live j where j.state in ('queued', 'errored') and j.resets >= 2 and j.run_at <= _at)::int;
  return next;
end $$;

CREATE FUNCTION stowhand.possible(_verdicts stowhand.verdict[]) RETURNS stowhand.verdict[]
    LANGUAGE plpgsql
    AS $$
declare
  _names text[] := array(select v.serial from unnest(_verdicts) as v where v.serial is not null);
  _closed text[];
begin
  if cardinality(_names) = 0 then return _verdicts; end if;
  _closed := "stowhand".closed_serials(_names);
  if cardinality(_closed) = 0 then return _verdicts; end if;
  return array(select v from unnest(_verdicts) as v where (v.serial = any(_closed)) is not true);
end $$;

CREATE FUNCTION stowhand.prune_days(_before timestamp with time zone, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $_$
declare
  _window constant bigint := 1024;
  _part record;
  _ends timestamptz;
  _first bigint;
begin
  for _part in
    select c.oid, c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = '"stowhand".history'::regclass and c.relname ~ '^history_[0-9]{8}$' order by c.relname
  loop
    _ends := ((to_date(right(_part.relname, 8), 'YYYYMMDD') + 1)::text || ' 00:00+00')::timestamptz;
    exit when _ends - interval '1 day' > _before;
    begin
      if _ends <= _before then
        execute format('drop table %I.%I', 'stowhand', _part.relname);
      else
        _first := floor(extract(epoch from _at) / 600)::bigint
          % (1 + pg_relation_size(_part.oid) / (_window * current_setting('block_size')::bigint)) * _window;
        execute format(
          'delete from %1$I.%2$I where ctid = any(array(select ctid from %1$I.%2$I
             where ctid >= ''(%3$s,0)''::tid and ctid < ''(%4$s,0)''::tid and finished_at < $1 for update skip locked))',
          'stowhand', _part.relname, _first, _first + _window) using _before;
      end if;
    exception when lock_not_available then
      null;
    end;
  end loop;
end $_$;

CREATE FUNCTION stowhand.prune_flows(_before timestamp with time zone, _at timestamp with time zone, _limit integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _page text[];
begin
  _page := array(select f.id from "stowhand".flow_jobs f where f.looked_at < _before
                 order by f.looked_at limit _limit for update skip locked);
  delete from "stowhand".flow_jobs f where f.id = any(_page)
    and not exists (select from "stowhand".live l where l.key = 'flow:' || f.flow || ':' || f.id)
    and not exists (select from "stowhand".history h
                    where h.key = 'flow:' || f.flow || ':' || f.id and h.key like 'flow:%');
  update "stowhand".flow_jobs f set looked_at = _at where f.id = any(_page);
  delete from "stowhand".flow_waits w where w.ready_at < _at - interval '1 day';
  delete from "stowhand".flow_limits l where l.used_at < _at - interval '1 day';
end $$;

CREATE FUNCTION stowhand.prune_serials(_limit integer, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _name text;
begin
  for _name in
    select q.name from "stowhand".limit_keys q
    where not "stowhand".is_held(q.name) and not coalesce(greatest(q.next_start, q.held_until) > _at, false) and not exists (
      select from "stowhand".live j where j.serial = q.name and j.state in ('queued', 'errored') and j.serial is not null
        and j.resets < 2)
    limit _limit for update skip locked
  loop
    delete from "stowhand".limit_keys q where q.name = _name and not exists (
      select from "stowhand".live j where j.serial = q.name and j.state in ('queued', 'errored') and j.serial is not null
        and j.resets < 2);
  end loop;
end $$;

CREATE FUNCTION stowhand.prune_steps(_limit integer, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _from bigint := 0;
  _known bigint[];
begin
  delete from "stowhand".events e where e.ctid = any(array(
    select o.ctid from "stowhand".events o where o.at < _at - interval '30 days' order by o.at limit 20000
    for update skip locked));
  if (select count(*) from (select from "stowhand".steps s limit _limit) s) = _limit then
    select min(s.job_id) + (random() * (max(s.job_id) - min(s.job_id)))::bigint - 1 into _from from "stowhand".steps s;
  end if;
  with recursive known as (
    (select s.job_id from "stowhand".steps s where s.job_id > _from order by s.job_id limit 1)
    union all
    select n.job_id from known k cross join lateral (
      select s.job_id from "stowhand".steps s where s.job_id > k.job_id order by s.job_id limit 1) n
  )
  select array_agg(k.job_id) into _known from (select w.job_id from known w limit _limit) k
    where not exists (select from "stowhand".live j where j.id = k.job_id)
      and not exists (select from "stowhand".history h where h.id = k.job_id);
  delete from "stowhand".steps s where s.job_id = any(_known);
end $$;

CREATE FUNCTION stowhand.prune_ticks(_at timestamp with time zone) RETURNS void
    LANGUAGE sql
    AS $$
  delete from "stowhand".ticks t where t.ctid = any(array(
    select o.ctid from "stowhand".ticks o where o.tick < _at - interval '401 days'
    order by o.tick limit 5000 for update skip locked))
$$;

CREATE FUNCTION stowhand.prune_tries() RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _window constant bigint := 128;
  _until timestamptz := clock_timestamp() + interval '500 milliseconds';
  _windows bigint := 1 + pg_relation_size('"stowhand".tries'::regclass) / (_window * current_setting('block_size')::bigint);
  _first bigint := floor(random() * _windows);
begin
  for _step in 0.._windows - 1 loop
    delete from "stowhand".tries t where t.ctid = any(array(
      select o.ctid from "stowhand".tries o
      where o.ctid >= format('(%s,0)', (_first + _step) % _windows * _window)::tid
        and o.ctid < format('(%s,0)', ((_first + _step) % _windows + 1) * _window)::tid
        and not exists (select from "stowhand".live l where l.id = o.job_id)
        and not exists (select from "stowhand".history h where h.id = o.job_id)
      for update skip locked));
    exit when clock_timestamp() > _until;
  end loop;
end $$;

CREATE FUNCTION stowhand.purge_failed(_age double precision, _limit integer, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _before timestamptz := "stowhand".at(_now) - _age * interval '1 second';
  _old bigint[];
  _gone bigint;
begin
  _old := array(
    select l.id from "stowhand".live l where l.state = 'failed' and l.finished_at < _before
    order by l.finished_at limit _limit for update skip locked);
  -- Their ends were recorded when they failed.
  delete from "stowhand".live j where j.id = any(_old);
  get diagnostics _gone = row_count;
  perform "stowhand".forget_periods(_old);
  delete from "stowhand".tries t where t.job_id = any(_old);
  return _gone;
end $$;

CREATE FUNCTION stowhand.purge_history(_completed double precision, _canceled double precision, _after bigint, _limit integer, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT completed bigint, OUT canceled bigint, OUT _next bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _completed_before timestamptz := _at - _completed * interval '1 second';
  _canceled_before timestamptz := _at - _canceled * interval '1 second';
  _latest timestamptz := greatest(_completed_before, _canceled_before);
  _ids bigint[];
begin
  _ids := array(
    select h.id from "stowhand".history h where h.id > _after and h.finished_at < _latest order by h.id limit _limit);
  if cardinality(_ids) = _limit then _next := _ids[_limit]; end if;
  with gone as (
    delete from "stowhand".history h
      where h.finished_at < _latest and h.id = any(array(
        select o.id from "stowhand".history o
        where o.id = any(_ids) and o.finished_at < _latest
          and o.finished_at < case o.state when 'completed' then _completed_before else _canceled_before end
        for update skip locked))
      returning h.id, h.state
  )
  select count(*) filter (where g.state = 'completed'), count(*) filter (where g.state = 'canceled'), array_agg(g.id)
    into completed, canceled, _ids from gone g;
  delete from "stowhand".tries t where t.job_id = any(_ids);
end $$;

CREATE FUNCTION stowhand.queues_of_claim(_queues text[], _excluded text[]) RETURNS text[]
    LANGUAGE plpgsql STABLE
    AS $$
begin
  if _queues is null then
    with recursive waiting as (
      (select j.queue from "stowhand".live j where j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2
       order by j.queue, j.task, j.priority, j.run_at, j.id limit 1)
      union all
      select n.queue from waiting w cross join lateral (
        select j.queue from "stowhand".live j where j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.queue > w.queue
        order by j.queue, j.task, j.priority, j.run_at, j.id limit 1) n
    )
    select array_agg(w.queue) || 'default'::text into _queues from waiting w;
  end if;
  return array(select distinct q.queue from unnest(_queues) as q(queue) where _excluded is null or q.queue <> all(_excluded));
end $$;

CREATE FUNCTION stowhand.rate_opens_at(_stored timestamp with time zone, _rate integer, _seconds double precision, _burst integer, _at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$
  select "stowhand".next_start(_stored, _rate, _seconds, _burst, _at)
    - (coalesce(_burst, 1) - 1) * _seconds / _rate * interval '1 second'
$$;

CREATE FUNCTION stowhand.record_steps(_ids bigint[], _tokens uuid[], _names text[], _values text[], _errors text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _held bigint[];
  _epochs bigint[];
begin
  select array_agg(h.id), array_agg(h.epoch) into _held, _epochs
    from (select distinct u.id, u.token from unnest(_ids, _tokens) as u(id, token) order by u.id) f cross join lateral (
      select l.id, l.epoch from "stowhand".live l
      where l.id = f.id and l.token = f.token offset 0 for share) h;
  insert into "stowhand".steps as known (job_id, name, place, value, error, epoch, at)
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

CREATE FUNCTION stowhand.record_text(_step text) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select "stowhand".record_steps(
    array[(s->>'id')::bigint], array[(s->>'token')::uuid], array[s->>'name'], array[s->>'value'], array[s->>'error'],
    (s->>'now')::timestamptz)::text
  from (select _step::json as s) given
$$;

CREATE FUNCTION stowhand.refresh_hint(_name text, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _opens_at timestamptz := "stowhand".key_opens_at(_name, _at);
  _best "stowhand".place;
begin
  if _opens_at = 'infinity' then
    update "stowhand".limit_keys q set hint_priority = null, hint_run_at = null, hint_id = null
      where q.name = _name and q.hint_run_at is not null;
    return;
  end if;
  _best := "stowhand".serial_head(_name, null, null, null, null, _at);
  if _best.run_at < _opens_at then _best.run_at := _opens_at; end if;
  if position(E'\t' in _name) > 0 and _best.id is not null then _best := "stowhand".key_place(_name, _best, _at); end if;
  update "stowhand".limit_keys q
    set absorbed = _best.id is not null,
        hint_priority = _best.priority, hint_run_at = _best.run_at, hint_id = _best.id
    where q.name = _name
      and (q.hint_id is distinct from _best.id or q.hint_run_at is distinct from _best.run_at
           or q.hint_priority is distinct from _best.priority or q.absorbed <> (_best.id is not null));
end $$;

CREATE FUNCTION stowhand.refresh_keys(_limit text) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  perform from "stowhand".limit_keys q
    where starts_with(q.name, _limit || E'\t') and q.absorbed order by q.name for update;
  perform "stowhand".refresh_hint(q.name, clock_timestamp()) from "stowhand".limit_keys q
    where starts_with(q.name, _limit || E'\t') and q.absorbed;
  perform "stowhand".wake();
end $$;

CREATE FUNCTION stowhand.refuse_reserved(_task text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
  if _task = any(array['jobs:purge_completed']) then
    raise exception 'Task identifier % is built in, and may delete: its jobs come from a crontab, or from an administrator (enqueue_built_in).', _task
      using errcode = 'GWBID';
  end if;
end $$;

CREATE FUNCTION stowhand.regroup_throughput(_begins timestamp with time zone[], _seconds integer) RETURNS void
    LANGUAGE sql
    AS $$
  with gone as (
    delete from "stowhand".throughput t using unnest(_begins) as s(begins)
      where t.seconds between 1 and _seconds and t.begins >= s.begins and t.begins < s.begins + _seconds * interval '1 second'
      returning s.begins, t.task, t.tally
  ), numbers as (
    select g.begins, g.task, e.key, sum(e.value::bigint) as number
    from gone g cross join lateral jsonb_each_text(g.tally) as e(key, value) group by g.begins, g.task, e.key
  ), ranked as (
    select n.begins, n.task, row_number() over (partition by n.begins order by n.task = '', coalesce(sum(n.number) filter (
      where n.key in ('ok', 'retry', 'failed', 'poison', 'snoozed', 'canceled')), 0) desc, n.task collate "C") as place
    from numbers n group by n.begins, n.task
  ), named as (
    select n.begins, case when r.place <= 500 then n.task else '' end as task, n.key, sum(n.number) as number
    from numbers n join ranked r on r.begins = n.begins and r.task = n.task group by 1, 2, 3
  )
  insert into "stowhand".throughput (seconds, begins, task, writer, tally)
    select _seconds, n.begins, n.task, '', jsonb_object_agg(n.key, n.number) from named n group by n.begins, n.task
$$;

CREATE FUNCTION stowhand.release(_ids bigint[], _tokens uuid[], _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _verdicts "stowhand".verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, "stowhand".way_back('queued', j.cancel_requested, j.loses_retries),
      greatest(j.attempts - 1, 0), j.resets, j.epoch, null, null, null, null, null, null, null)::"stowhand".verdict
    from unnest(_ids, _tokens) as f(id, token) cross join lateral (
      select l.id, l.token, l.serial, l.attempts, l.resets, l.epoch, l.cancel_requested, l.loses_retries
      from "stowhand".live l where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  _verdicts := "stowhand".possible(_verdicts);
  perform "stowhand".carry_out(_verdicts, _keep, _at);
  if cardinality(_verdicts) > 0 then perform "stowhand".wake(); end if;
  return query select v.id from unnest(_verdicts) as v;
end $$;

CREATE FUNCTION stowhand.remove(_id bigint, OUT done text, OUT why text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _state text;
begin
  why := '';
  perform "stowhand".cancel_children(array(
    select j.id from "stowhand".live j where j.id = _id and j.state <> 'processing'), true, "stowhand".at(null));
  select j.state into _state from "stowhand".live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it instead';
  elsif _state is not null then
    perform "stowhand".end_children(array[_id], null, array['it was removed'], "stowhand".at(null));
    delete from "stowhand".live j where j.id = _id;
    delete from "stowhand".tries t where t.job_id = _id;
    perform "stowhand".forget_periods(array[_id]);
    done := 'done';
  else
    select h.state into _state from "stowhand".history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; the history is pruned by its age';
    else
      delete from "stowhand".history h where h.id = _id and h.state = 'canceled';
      done := case when found then 'done' else 'missing' end;
      if found then delete from "stowhand".tries t where t.job_id = _id; end if;
    end if;
  end if;
end $$;

CREATE FUNCTION stowhand.remove_job(job_key text) RETURNS stowhand.jobs
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _job "stowhand".live := "stowhand".drop_key(job_key);
begin
  return case when _job.id is not null then "stowhand".shown(_job) end;
end $$;

CREATE FUNCTION stowhand.remove_key(_key text, OUT id bigint, OUT done text, OUT why text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _job "stowhand".live := "stowhand".drop_key(_key);
begin
  id := _job.id;
  done := case when id is null then 'missing' else 'done' end;
  why := case when _job.state = 'processing' then 'it is running; it ends without its key and will not run again'
         else '' end;
end $$;

CREATE FUNCTION stowhand.reschedule_all(_ids bigint[], _run_at timestamp with time zone, _priority integer, _attempts integer, _max_attempts integer, _queue text, _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _gives boolean := _attempts is not null or _max_attempts is not null;
  _jobs "stowhand".live[];
  _held "stowhand".live[];
  _verdicts "stowhand".verdict[];
  _locked bigint[];
  _waiting bigint[];
  _by_hand bigint[];
begin
  if _max_attempts < 1 then
    raise exception 'max_attempts is at least 1 (here it is %).', _max_attempts using errcode = 'GWBMA';
  elsif _attempts < 0 then
    raise exception 'attempts is at least 0 (here it is %).', _attempts using errcode = '22023';
  end if;
  perform "stowhand".check_queue(_queue);
  _jobs := "stowhand".lock_idle(_ids, _at);
  _locked := array(select j.id from unnest(_jobs) as j);
  _held := array(select j from unnest(_jobs) as j where j.state = 'processing' order by j.id);
  _verdicts := "stowhand".take_back(_held, _keep, _at, false);
  _by_hand := array(
    select j.id from "stowhand".live j
    where j.id = any(_locked) and j.state <> 'failed'
      and coalesce(_attempts, j.attempts) >= coalesce(_max_attempts, j.max_attempts) order by j.id);
  perform "stowhand".keep_ends_by_hand(_by_hand, null, _at);
  _waiting := array(
    select j.id from "stowhand".live j
    where j.id = any(_locked) and j.on_failure is not null and j.state in ('queued', 'errored'));
  update "stowhand".live j
    set run_at = coalesce(_run_at, j.run_at), priority = coalesce(_priority, j.priority), updated_at = _at,
        queue = case when _queue is null then j.queue else nullif(_queue, 'default') end,
        round = case when j.id = any(_by_hand) then coalesce(j.round, 1) else j.round end,
        expires_at = case when j.state <> 'failed' then
          j.expires_at + (coalesce(_run_at, j.run_at) - j.run_at) end,
        (attempts, max_attempts, state, finished_at, resets, cancel_requested, loses_retries, absorbed, progress,
         progress_text) = (
          select n.attempts, n.most, n.state, case when n.state = 'failed' then coalesce(j.finished_at, _at) end,
            case when j.state = 'failed' and n.state <> 'failed' then 0 else j.resets end,
            j.cancel_requested and n.state = 'failed', case when not _gives then j.loses_retries end,
            false, case when n.state <> 'failed' then j.progress end,
            case when n.state <> 'failed' then j.progress_text end
          from (select m.attempts, m.most, "stowhand".rescheduled(j.state, _gives, m.attempts, m.most) as state
                from (select coalesce(_max_attempts, j.max_attempts) as most,
                        least(coalesce(_attempts, j.attempts), coalesce(_max_attempts, j.max_attempts)) as attempts
                     ) m) n)
    where j.id = any(_locked);
  perform "stowhand".note_expiry(_locked);
  if _gives then perform "stowhand".retry_children(_locked); end if;
  perform "stowhand".end_failed(_locked, _at);
  perform "stowhand".tell_of_failures(array_agg(j.id), array_agg('by hand'::text), _at) from "stowhand".live j
    where j.id = any(_waiting) and j.state = 'failed' having count(*) > 0;
  -- Report the jobs that have failed by too many resets, unless they were given attempts just now.
  perform "stowhand".tell_of_failures(array_agg(v.id), array_agg(v.error_class), _at) from unnest(_verdicts) as v
    where v.state = 'failed' and exists (select from "stowhand".live j where j.id = v.id and j.state = 'failed')
    having count(*) > 0;
  return query select * from (
    select a.* from "stowhand".aftermath(_held, _verdicts, _at) a where a.state = 'canceled'
    union all
    select l.* from "stowhand".without_tokens(_locked) l) changed order by id;
  if cardinality(_locked) > 0 then perform "stowhand".wake(); end if;
end $$;

CREATE FUNCTION stowhand.reschedule_jobs(job_ids bigint[], run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, priority integer DEFAULT NULL::integer, attempts integer DEFAULT NULL::integer, max_attempts integer DEFAULT NULL::integer, work_queue text DEFAULT NULL::text) RETURNS SETOF stowhand.jobs
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
  select s.* from "stowhand".reschedule_all(
    reschedule_jobs.job_ids, reschedule_jobs.run_at, reschedule_jobs.priority, reschedule_jobs.attempts,
    reschedule_jobs.max_attempts, reschedule_jobs.work_queue, true) j cross join lateral "stowhand".shown(j) s
$$;

CREATE FUNCTION stowhand.rescheduled(_state text, _gives boolean, _attempts integer, _max_attempts integer) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select case when _attempts >= _max_attempts then 'failed'
              when _state = 'failed' then case when _gives then 'queued' else 'failed' end
              else _state end
$$;

CREATE FUNCTION stowhand.reset(_ids bigint[], _tokens uuid[], _states text[], _errors text[], _slack double precision, _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(id bigint, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _verdicts "stowhand".verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, "stowhand".way_back(f.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - (f.state = 'queued')::int, 0), j.resets + 1, j.epoch + 1, null,
      null, f.error, null, null, 'reset', 'WorkerDied')::"stowhand".verdict
    from unnest(_ids, _tokens, _states, _errors) as f(id, token, state, error) cross join lateral (
      select l.id, l.token, l.serial, l.attempts, l.resets, l.epoch, l.cancel_requested, l.loses_retries
      from "stowhand".live l
      where l.id = f.id and l.token = f.token
        and (_slack is null or l.lease_until + _slack * interval '1 second' < _at)
      offset 0 for update skip locked) j);
  _verdicts := "stowhand".possible(_verdicts);
  perform "stowhand".carry_out(_verdicts, _keep, _at);
  if cardinality(_verdicts) > 0 then perform "stowhand".wake(); end if;
  return query select v.id, v.state from unnest(_verdicts) as v;
end $$;

CREATE FUNCTION stowhand.reset_absorbed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  new.absorbed := false;
  return new;
end $$;

CREATE FUNCTION stowhand.reset_limit(limit_name text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _changed boolean;
  _held text[];
begin
  -- A worker that starts may declare the limit at this moment.
  perform pg_advisory_xact_lock(hashtextextended('stowhand:wake', 6));
  if not exists (select from "stowhand".limits l where l.name = limit_name) then
    raise exception 'There is no limit %: a worker declares limits when it starts.', to_json(limit_name) using errcode = '22023';
  end if;
  update "stowhand".limits l set override = '{}', held_until = null
    where l.name = limit_name and (l.override <> '{}' or l.held_until is not null);
  _changed := found;
  _held := array(
    select q.name from "stowhand".limit_keys q
    where starts_with(q.name, limit_name || E'\t') and q.held_until is not null order by q.name for update);
  update "stowhand".limit_keys q set held_until = null where q.name = any(_held);
  _changed := _changed or cardinality(_held) > 0;
  delete from "stowhand".limits l
    where l.name = limit_name and not exists (
      select from "stowhand".task_limits t where l.name in (t.concurrency, t.rate, t.key_limit));
  if _changed then perform "stowhand".refresh_keys(limit_name); end if;
  return _changed;
end $$;

CREATE FUNCTION stowhand.restore_hints(_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  perform "stowhand".free_if_unlocked(array_agg(q.name), _at) from "stowhand".limit_keys q
    where q.absorbed and q.hint_run_at is null and "stowhand".key_opens_at(q.name, _at) is distinct from 'infinity'
    having count(*) > 0;
  perform "stowhand".show_hidden_keys(_at);
end $$;

CREATE FUNCTION stowhand.resume_queue(queue text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
begin
  perform "stowhand".check_queue(coalesce(queue, ''));
  return "stowhand".write_pause('queue', queue, false, _now);
end $$;

CREATE FUNCTION stowhand.resume_serial(serial_key text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
begin
  perform "stowhand".check_serial(coalesce(serial_key, ''));
  update "stowhand".limit_keys q set paused_at = null where q.name = serial_key and q.paused_at is not null;
  if not found then return false; end if;
  -- This frees the key unless a job of it is running. Then the settlement of that job does.
  perform "stowhand".free_serials(array[serial_key], _at);
  perform "stowhand".wake();  -- the only waiting job of the key may be a suspect
  return true;
end $$;

CREATE FUNCTION stowhand.resume_task(task_identifier text, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
begin
  perform "stowhand".check_name('A task identifier', coalesce(task_identifier, ''), 128, 'GWBID');
  return "stowhand".write_pause('task', task_identifier, false, _now);
end $$;

CREATE FUNCTION stowhand.retry(_id bigint, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, OUT done text, OUT why text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _state text;
  _old "stowhand".history;
begin
  select j.state into _state from "stowhand".live j where j.id = _id for update;
  if _state = 'processing' then
    done := 'refused'; why := 'it is running; cancel it first, or wait until it has ended';
  elsif _state is not null then
    update "stowhand".live j
      set state = 'queued', run_at = _at, expires_at = null, attempts = 0, resets = 0, finished_at = null, loses_retries = null,
          cancel_requested = false, round = "stowhand".next_round(_id)
      where j.id = _id;
    perform "stowhand".retry_children(array[_id]);
    perform "stowhand".wake();
    done := 'done'; why := '';
  else
    select h.state into _state from "stowhand".history h where h.id = _id;
    if _state = 'completed' then
      done := 'refused'; why := 'it completed; enqueue it again instead';
      return;
    end if;
    delete from "stowhand".history h where h.id = _id and h.state = 'canceled' returning h.* into _old;
    if not found then done := 'missing'; why := ''; return; end if;
    perform "stowhand".revive(_old, _at);
    done := 'done';
    why := case when _old.key is null or exists (
        select from "stowhand".live j where j.id = _id and j.key = _old.key) then ''
      else 'its key belongs to another job now, so it has none' end;
  end if;
end $$;

CREATE FUNCTION stowhand.retry_children(_ids bigint[]) RETURNS void
    LANGUAGE sql
    AS $$
  update "stowhand".steps s set value = (s.value::jsonb || '{"attempts": -1}')::json
    where s.job_id = any(_ids) and s.place = -1
$$;

CREATE FUNCTION stowhand.retry_failed(_ids bigint[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _failed bigint[];
begin
  _failed := array(
    select j.id from "stowhand".live j where j.id = any(_ids) and j.state = 'failed' order by j.id for update);
  update "stowhand".live j
    set state = 'queued', run_at = _at, expires_at = null, attempts = 0, resets = 0, finished_at = null, loses_retries = null,
        cancel_requested = false, round = "stowhand".next_round(j.id)
    where j.id = any(_failed);
  perform "stowhand".retry_children(_failed);
  if cardinality(_failed) > 0 then perform "stowhand".wake(); end if;
  return query select unnest(_failed);
end $$;

CREATE FUNCTION stowhand.revive(_old stowhand.history, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  insert into "stowhand".live (id, task, payload, key, queue, serial, priority, max_attempts, max_resets, flags, run_at, last_error, revision, epoch, settled_token,
                             created_at, updated_at, last_worker, round, replaced, on_failure)
    overriding system value
    values (_old.id, _old.task, _old.payload, _old.key, _old.queue, _old.serial, _old.priority, _old.max_attempts, _old.max_resets, _old.flags, _at, _old.last_error, _old.revision, _old.epoch,
            _old.settled_token, _old.created_at, _old.updated_at, _old.worker,
            "stowhand".next_round(_old.id), _old.replaced, _old.on_failure)
    on conflict (key) where key is not null do nothing;
  if not found then
    _old.key := null;
    perform "stowhand".revive(_old, _at);
  end if;
  perform "stowhand".wake();
end $$;

CREATE FUNCTION stowhand.serial_due(_tasks text[], _queues text[], _excluded text[], _at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    AS $$
declare
  _name text;
  _head "stowhand".place;
  _opens_at timestamptz;
  _earliest timestamptz;
  _next record;
  _after int := -2147483648;
begin
  for _ in 0..100 loop
    _name := "stowhand".next_name(_name);
    if _name is null then return _earliest; end if;
    continue when exists (select from "stowhand".limit_keys q where q.name = _name and q.paused_at is not null);
    _opens_at := case when position(E'\t' in _name) > 0 then "stowhand".key_opens_at(_name, _at) end;
    continue when _opens_at = 'infinity';
    _head := "stowhand".serial_head(_name, _tasks, null, _queues, _excluded, _at);
    if _head.id is not null then _earliest := least(_earliest, greatest(_head.run_at, _opens_at)); end if;
    if _earliest <= _at then return _earliest; end if;
  end loop;
  -- There are many keys, so use scouts and hints (serials.sql).
  loop
    select j.priority, j.run_at into _next from "stowhand".live j
      where j.serial is not null and not j.absorbed and j.worker is null and j.finished_at is null and j.resets < 2 and j.priority >= _after
        and (_tasks is null or j.task = any(_tasks)) and "stowhand".takes(_queues, _excluded, j.queue)
      order by j.priority, j.run_at, j.id limit 1;
    exit when not found or _earliest <= _at;
    _earliest := least(_earliest, _next.run_at);
    exit when _next.priority = 2147483647;
    _after := _next.priority + 1;
  end loop;
  return least(_earliest,
    (select min(q.hint_run_at) from "stowhand".limit_keys q where q.hint_run_at is not null),
    (select _at from "stowhand".limit_keys q where q.absorbed and q.hint_run_at is null and q.paused_at is null
        and position(E'\t' in q.name) = 0 and exists (
      select from "stowhand".live j where j.serial = q.name and j.serial is not null and j.resets < 2
        and j.state in ('queued', 'errored') and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))
        and "stowhand".takes(_queues, _excluded, j.queue)) limit 1));
end $$;

CREATE FUNCTION stowhand.serial_head(_name text, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone, _after stowhand.place DEFAULT NULL::stowhand.place) RETURNS stowhand.place
    LANGUAGE plpgsql
    AS $$
declare
  _task text := '';
  _only boolean := cardinality(_tasks) is not distinct from 1;
  _from "stowhand".place;
  _next "stowhand".place;
  _best "stowhand".place;
begin
  loop
    if _only then
      _task := _tasks[1];
    else
      select j.task into _task from "stowhand".live j
        where j.serial = _name and j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
          and j.task > _task
        order by j.serial, j.task, j.priority, j.run_at, j.id limit 1;
      exit when not found;
      continue when _tasks is not null and (_task = any(_tasks)) is not true;
    end if;
    _from := coalesce(_after, (-2147483648, '-infinity', 0)::"stowhand".place);
    loop
      select j.priority, j.run_at, j.id into _next from "stowhand".live j
        where j.serial = _name and j.task = _task
          and j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
          and (j.priority, j.run_at, j.id) > (_from.priority, _from.run_at, _from.id)
          and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
          and "stowhand".takes(_queues, _excluded, j.queue)
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
      _from := (_next.priority, 'infinity', 9223372036854775807)::"stowhand".place;
    end loop;
    exit when _only;
  end loop;
  return _best;
end $$;

CREATE FUNCTION stowhand.set_limit(limit_name text, concurrency integer DEFAULT NULL::integer, rate integer DEFAULT NULL::integer, per interval DEFAULT NULL::interval, burst integer DEFAULT NULL::integer, key_concurrency integer DEFAULT NULL::integer, key_rate integer DEFAULT NULL::integer, key_per interval DEFAULT NULL::interval, key_burst integer DEFAULT NULL::integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
  _new constant jsonb := jsonb_strip_nulls(jsonb_build_object(
    'concurrency', concurrency, 'rate', rate, 'rate_seconds', extract(epoch from per), 'burst', burst,
    'key_concurrency', key_concurrency, 'key_rate', key_rate, 'key_rate_seconds', extract(epoch from key_per),
    'key_burst', key_burst));
  _declared jsonb;
begin
  select l.declared into _declared from "stowhand".limits l where l.name = limit_name for update;
  if not found then
    raise exception 'There is no limit %: a worker declares limits when it starts.', to_json(limit_name) using errcode = '22023';
  elsif concurrency is not null and not _declared ? 'concurrency' then
    raise exception 'Limit % has no concurrency: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif (rate is not null or per is not null or burst is not null) and not _declared ? 'rate' then
    raise exception 'Limit % has no rate: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif key_concurrency is not null and not _declared ? 'key_concurrency' then
    raise exception 'Limit % has no concurrency per key: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif (key_rate is not null or key_per is not null or key_burst is not null) and not _declared ? 'key_rate' then
    raise exception 'Limit % has no rate per key: its tasks declare none.', to_json(limit_name) using errcode = '22023';
  elsif exists (select from unnest(array[concurrency, key_concurrency]) as v(n) where v.n not between 0 and 1000000)
    or exists (select from unnest(array[rate, burst, key_rate, key_burst]) as v(n) where v.n not between 1 and 1000000)
    or exists (select from unnest(array[per, key_per]) as v(n) where v.n not between '1 ms' and '366 days') then
    raise exception 'Limit %: use a concurrency of 0 to 1000000, a rate and a burst of 1 to 1000000, and a period of 1 ms '
      'to 366 days.', to_json(limit_name) using errcode = '22023';
  end if;
  update "stowhand".limits l set override = l.override || _new
    where l.name = limit_name and l.override <> l.override || _new;
  if not found then return false; end if;
  perform "stowhand".refresh_keys(limit_name);
  return true;
end $$;

CREATE FUNCTION stowhand.settle_and_claim(_ids bigint[], _tokens uuid[], _keep boolean, _worker text, _token uuid, _limit integer, _lease double precision, _tasks text[], _forbidden text[], _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _queues text[] DEFAULT NULL::text[], _excluded text[] DEFAULT NULL::text[]) RETURNS TABLE(settled bigint[], id bigint, task text, payload text, serial text, priority integer, run_at timestamp with time zone, attempts integer, max_attempts integer, resets integer, max_resets integer, key text, flags text[], last_error text, revision integer, created_at timestamp with time zone, updated_at timestamp with time zone, started_at timestamp with time zone, queue text, parent_id bigint, epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _done record;
  _heads bigint[];
  _taken text[];
begin
  -- As in `claim`, and before any row is locked, as `abandon` of this token takes its lock first and rows afterwards.
  perform pg_advisory_xact_lock_shared(uuid_hash_extended(_token, 0));
  _done := "stowhand".complete(_ids, _tokens, _keep, _at);
  settled := _done.mine;
  return next;
  if _done.limits is not null then perform "stowhand".wake_for_limits(_done.limits, _at); end if;
  if _done.names is null then return; end if;
  if not exists (select from "stowhand".dead_tokens d where d.token = _token) then
    _heads := "stowhand".successors(_done.names, _limit, _tasks, _forbidden, _queues, _excluded, _at);
  end if;
  if cardinality(_heads) > 0 then
    return query
    update "stowhand".live j
      set state = 'processing', attempts = least(j.attempts + 1, j.max_attempts), epoch = j.epoch + 1,
          token = _token, settled_token = null, worker = _worker,
          lease_until = _at + _lease * interval '1 second', started_at = _at, absorbed = false, key_slot = 1
      where j.id = any(_heads)
      returning null::bigint[], j.id, j.task, j.payload::text, j.serial, j.priority, j.run_at, j.attempts, j.max_attempts, j.resets, j.max_resets, j.key, j.flags, j.last_error, j.revision, j.created_at, j.updated_at, j.started_at, coalesce(j.queue, 'default'), j.parent_id, j.epoch;
    _taken := array(select j.serial from "stowhand".live j where j.id = any(_heads) and j.token = _token);
    update "stowhand".limit_keys q set hint_priority = null, hint_run_at = null, hint_id = null
      where q.name = any(_taken) and q.hint_run_at is not null;
  end if;
  -- This leaves keys with a new holder unchanged, and wakes no worker for them.
  if (_taken @> _done.names) is not true then
    perform "stowhand".free_serials(_done.names, _at);
  end if;
end $$;

CREATE FUNCTION stowhand.settle_attempts(_ids bigint[], _tokens uuid[], _states text[], _delays double precision[], _refunds boolean[], _errors text[], _error_classes text[], _results text[], _payloads text[], _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _holds boolean[] DEFAULT NULL::boolean[], _waits json[] DEFAULT NULL::json[]) RETURNS TABLE(id bigint, token uuid, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz := "stowhand".at(_now);
  _verdicts "stowhand".verdict[];
begin
  -- A declaration locks rows of limits before rows of keys.
  if true = any(_holds) then
    perform "stowhand".lock_limits(array(select h.id from unnest(_ids, _holds) as h(id, holds) where h.holds));
  end if;
  if _waits is not null then perform "stowhand".lock_waits(_ids, _waits); end if;
  _verdicts := array(
    select row(j.id, j.token, j.serial, "stowhand".way_back(f.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - f.refund::int, 0), 0, j.epoch, j.token,
      case when "stowhand".way_back(f.state, j.cancel_requested, j.loses_retries) in ('queued', 'errored')
        then f.delay end,
      f.error, f.result, case when f.state in ('errored', 'failed') then f.payload end,
      "stowhand".end_of_try(f.state, f.error_class), f.error_class)::"stowhand".verdict
    from unnest(_ids, _tokens, _states, _delays, _refunds, _errors, _error_classes, _results, _payloads)
        as f(id, token, state, delay, refund, error, error_class, result, payload)
      cross join lateral (
        select l.id, l.token, l.serial, l.attempts, l.epoch, l.cancel_requested, l.loses_retries from "stowhand".live l
        where l.id = f.id and l.token = f.token offset 0 for update skip locked) j);
  _verdicts := "stowhand".possible(_verdicts);
  perform "stowhand".carry_out(_verdicts, _keep, _at);
  if true = any(_holds) then
    perform "stowhand".hold_limits(array_agg(j.task), array_agg(j.serial), array_agg(h.delay), _at)
      from unnest(_ids, _holds, _delays) as h(id, holds, delay) cross join lateral (
        select l.task, l.serial from "stowhand".live l where l.id = h.id offset 0) j
      where h.holds and exists (select from unnest(_verdicts) as v where v.id = h.id) having count(*) > 0;
  end if;
  if _waits is not null then
    perform "stowhand".start_wait(v.id, w.wait, _at)
      from unnest(_ids, _waits) as w(id, wait) join unnest(_verdicts) as v on v.id = w.id
      where w.wait is not null and v.state = 'queued';
  end if;
  return query select v.id, v.token, v.state from unnest(_verdicts) as v;
end $$;

CREATE FUNCTION stowhand.settle_completed(_ids bigint[], _tokens uuid[], _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _done record;
begin
  _done := "stowhand".complete(_ids, _tokens, _keep, _at);
  if _done.names is not null then perform "stowhand".free_serials(_done.names, _at); end if;
  if _done.limits is not null then perform "stowhand".wake_for_limits(_done.limits, _at); end if;
  return query select unnest(_done.mine);
end $$;

CREATE FUNCTION stowhand.show_hidden_keys(_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
  _names text[] := array(
    select q.name from "stowhand".limit_keys q
    where q.hint_run_at is not null and q.hint_run_at > _at and q.served_at > _at limit 100 for update skip locked);
begin
  perform "stowhand".refresh_hint(n.name, _at) from unnest(_names) as n(name);
  return exists (select from "stowhand".limit_keys q where q.name = any(_names) and q.hint_run_at <= _at);
end $$;

CREATE FUNCTION stowhand.shown(_job stowhand.live) RETURNS stowhand.jobs
    LANGUAGE sql IMMUTABLE
    AS $$
  select row(_job.id, _job.serial, _job.task, _job.payload, _job.priority, _job.run_at, _job.attempts, _job.max_attempts,
    _job.last_error, _job.created_at, _job.updated_at, _job.key,
    case when _job.state = 'processing' then _job.started_at end, _job.worker, _job.revision, _job.flags,
    _job.lease_until, _job.state, coalesce(_job.queue, 'default'), _job.resets, _job.max_resets, _job.started_at, _job.finished_at, coalesce(_job.worker, _job.last_worker), _job.cancel_requested, _job.progress, _job.progress_text, _job.parent_id, _job.waits_for)::"stowhand".jobs
$$;

CREATE FUNCTION stowhand.slots_held(_ids bigint[]) RETURNS text[]
    LANGUAGE sql STABLE
    AS $$
  select array_agg(j.limit_name) from unnest(_ids) as f(id) cross join lateral (
    select l.limit_name from "stowhand".live l
    where l.id = f.id and l.limit_slot is not null and l.worker is not null offset 0) j
$$;

CREATE FUNCTION stowhand.slots_of_keys(_names text[]) RETURNS integer[]
    LANGUAGE sql STABLE
    AS $$
  select array_agg(s.slot order by s.place)
  from (
    select n.name, array_agg(n.place order by n.place) as places from unnest(_names) with ordinality as n(name, place)
    group by n.name) k
    cross join lateral (
      select array_agg(j.key_slot) as slots from "stowhand".live j
      where j.serial = k.name and j.key_slot is not null and j.worker is not null) used
    cross join lateral unnest(k.places, case when k.name is not null then array(
      select g.slot from generate_series(1, cardinality(k.places) + coalesce(cardinality(used.slots), 0)) as g(slot)
      where used.slots is null or g.slot <> all(used.slots) limit cardinality(k.places)) end) as s(place, slot)
$$;

CREATE FUNCTION stowhand.start_wait(_id bigint, _wait json, _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
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
    delete from "stowhand".steps s where s.job_id = _id and s.name = _step and s.place = any(_places);
    if found then
      -- These children failed, and are created anew: if one of the old ones is retried by hand, it records nothing.
      update "stowhand".live j set parent_step = null, parent_place = null
        where j.parent_id = _id and j.parent_id is not null and j.parent_step = _step and j.parent_place = any(_places);
    end if;
    insert into "stowhand".steps as known (job_id, name, place, value, remaining, at)
      values (_id, _step, -1, _note::json, (_wait->>'children')::int, _at)
      on conflict (job_id, name, place) do update
        set value = excluded.value, remaining = known.remaining + excluded.remaining
      returning remaining into _remaining;
    _is_over := _remaining = 0;
  else
    if _event is not null then
      -- A new statement under the lock of the event. An event for this job precedes one for all jobs.
      select e.payload into _payload from "stowhand".events e
        where e.name = _event and e.job_id in (0, _id) order by e.job_id desc limit 1;
    end if;
    insert into "stowhand".steps as known (job_id, name, place, value, until, at)
      values (_id, _step, 0, _payload, _until, _at)
      on conflict (job_id, name, place) do update
        set value = coalesce(known.value, case when known.error is null then excluded.value end)
      returning until, value is not null into _until, _is_over;
  end if;
  update "stowhand".live j
    set run_at = case when _is_over then _at else least(coalesce(_until, _never), _never) end,
        attempts = least((_wait->>'attempts')::int, j.max_attempts), resets = 0,
        waits_for = case when _note is not null then 'children:' || _step when _event is not null then 'event:' || _event
                         else 'time:' || _step end
    where j.id = _id;
  if _is_over then perform "stowhand".wake(); end if;
end $$;

CREATE FUNCTION stowhand.starts_allowed(_stored timestamp with time zone, _rate integer, _seconds double precision, _burst integer, _at timestamp with time zone) RETURNS integer
    LANGUAGE sql IMMUTABLE
    AS $$
  select case when _rate is not null then greatest(floor(coalesce(_burst, 1) + 1e-6
    - extract(epoch from "stowhand".next_start(_stored, _rate, _seconds, _burst, _at) - _at) * _rate / _seconds), 0)::int end
$$;

CREATE FUNCTION stowhand.successors(_names text[], _limit integer, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
  _heads bigint[] := '{}';
  _head bigint;
  _name text;
begin
  if exists (select from "stowhand".pauses) or exists (select from "stowhand".expiring e where e.expires_at <= _at) then
    _tasks := "stowhand".unpaused(_tasks);
    _excluded := "stowhand".with_paused(_excluded);
    -- The next claim cancels expired jobs.
    if cardinality(_tasks) = 0 or exists (select from "stowhand".expiring e where e.expires_at <= _at) then
      return _heads;
    end if;
  end if;
  -- Jobs of a task with limits are left to the next claim.
  if exists (select from "stowhand".task_limits) then
    _tasks := "stowhand".unlimited_tasks(_tasks);
    if cardinality(_tasks) = 0 then return _heads; end if;
  end if;
  for _name in
    select q.name from "stowhand".limit_keys q
    where q.name = any(_names) and q.paused_at is null
      and not exists (select from "stowhand".live j where j.serial = q.name and j.key_slot is not null and j.worker is not null)
  loop
    exit when cardinality(_heads) >= _limit;
    _head := "stowhand".take_head(_name, _tasks, _forbidden, _queues, _excluded, _at);
    continue when _head is null
      or "stowhand".is_overtaken((select j.priority from "stowhand".live j where j.id = _head), _at);
    _heads := _heads || _head;
  end loop;
  return _heads;
end $$;

CREATE FUNCTION stowhand.take_back(_jobs stowhand.live[], _keep boolean, _at timestamp with time zone, _tells boolean DEFAULT true) RETURNS stowhand.verdict[]
    LANGUAGE plpgsql
    AS $$
declare
  _verdicts "stowhand".verdict[];
begin
  _verdicts := array(
    select row(j.id, j.token, j.serial, "stowhand".way_back(r.state, j.cancel_requested, j.loses_retries),
      greatest(j.attempts - (r.state = 'queued')::int, 0), j.resets + 1, j.epoch + 1, null,
      null, r.error, null, null, 'reset', 'WorkerDied')::"stowhand".verdict
    from unnest(_jobs) as j cross join lateral "stowhand".judge_reset(j.resets, j.max_resets, j.max_attempts) r
    order by j.id);
  perform "stowhand".carry_out(_verdicts, _keep, _at, _tells);
  if cardinality(_verdicts) > 0 then perform "stowhand".wake(); end if;
  return _verdicts;
end $$;

CREATE FUNCTION stowhand.take_for_period(_job stowhand.live, _period double precision, _at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
  insert into "stowhand".uniques as u (key, job_id, enqueued_at, until)
    values (_job.key, _job.id, _at, _at + _period * interval '1 second')
    on conflict (key) do update set job_id = excluded.job_id, enqueued_at = _at, until = excluded.until
      -- Another job that is still live has lost the key.
      where u.until <= _at
        or u.job_id <> excluded.job_id and exists (select from "stowhand".live l where l.id = u.job_id);
  return found or exists (select from "stowhand".uniques u where u.key = _job.key and u.job_id = _job.id);
end $$;

CREATE FUNCTION stowhand.take_head(_name text, _tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
  _head bigint;
  _place "stowhand".place;
begin
  -- Since the key's row was locked, new statements are used: they see what the last holder of the key has committed.
  -- The first of them serves the usual case: all jobs of the key are of one task, and its first job is due. The task is
  -- the only one if the first and the last job by task have the same. (`resets + 0`: the job is found by its id, see
  -- claim.sql.)
  select j.id into _head from "stowhand".live j
    where j.id = (
        select f.id from (
          select l.id, l.task from "stowhand".live l
          where l.serial = _name and l.state in ('queued', 'errored') and l.serial is not null and l.resets < 2
          order by l.serial, l.task, l.priority, l.run_at, l.id limit 1) f
        where f.task = (
          select l.task from "stowhand".live l
          where l.serial = _name and l.state in ('queued', 'errored') and l.serial is not null and l.resets < 2
          order by l.serial desc, l.task desc, l.priority desc, l.run_at desc, l.id desc limit 1))
      and j.serial = _name and j.state in ('queued', 'errored') and j.resets + 0 < 2 and j.run_at <= _at
      and (_tasks is null or j.task = any(_tasks))
      and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
      and "stowhand".takes(_queues, _excluded, j.queue)
    for update skip locked;
  if found then return _head; end if;
  -- Another transaction may have locked the first jobs, for example to cancel them. So try ten jobs.
  for _ in 1..10 loop
    _place := "stowhand".serial_head(_name, _tasks, _forbidden, _queues, _excluded, _at, _place);
    exit when _place.id is null or _place.run_at > _at;
    select j.id into _head from "stowhand".live j
      where j.id = _place.id and j.serial = _name and j.state in ('queued', 'errored') and j.resets + 0 < 2
        and j.run_at <= _at and (_tasks is null or j.task = any(_tasks))
        and (_forbidden is null or j.flags is null or not j.flags && _forbidden)
        and "stowhand".takes(_queues, _excluded, j.queue)
      for update skip locked;
    if found then return _head; end if;
  end loop;
  return null;
end $$;

CREATE FUNCTION stowhand.take_keys(_tasks text[]) RETURNS void
    LANGUAGE sql
    AS $$
  update "stowhand".live j set serial = null where j.id = any(array(
    select l.id from "stowhand".live l
    where l.task = any(_tasks) and l.state in ('queued', 'errored') and position(E'\t' in l.serial) > 0
    for update skip locked))
$$;

CREATE FUNCTION stowhand.takes(_queues text[], _excluded text[], _queue text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
  select (_queues is null or coalesce(_queue, 'default') = any(_queues))
    and (_excluded is null or coalesce(_queue, 'default') <> all(_excluded))
$$;

CREATE FUNCTION stowhand.tell_of_failures(_ids bigint[], _classes text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
  _one record;
  _job "stowhand".live;
  _new "stowhand".new_job;
  _told boolean := false;
begin
  for _one in
    select l as job, f.class from unnest(_ids, _classes) as f(id, class) cross join lateral (
      select j.* from "stowhand".live j where j.id = f.id and j.on_failure is not null offset 0) l
    order by f.id
  loop
    _job := _one.job;
    begin
      _new := json_populate_record(null::"stowhand".new_job, _job.on_failure);
      _new.priority := coalesce(_new.priority, 0);
      _new.max_attempts := coalesce(_new.max_attempts, 25);
      _new.queue := nullif(coalesce(_new.queue, "stowhand".declared_queue(_new.task)), 'default');
      insert into "stowhand".live (task, payload, run_at, queue, serial, priority, max_attempts, max_resets, flags, created_at, updated_at)
      values (_new.task, "stowhand".failure_payload(_job, _one.class),
              coalesce(_new.run_at, _at + _new.delay * interval '1 second', _at), _new.queue, _new.serial, _new.priority, _new.max_attempts, _new.max_resets, _new.flags,
              _at, _at);
      _told := true;
    exception when others then
      if sqlstate ~ '^(08|25|40|53|55|57|58)' then raise; end if;
      update "stowhand".live j
        set last_error = left(concat_ws(E'\n', j.last_error,
                                     'on_failure could not be enqueued: ' || sqlerrm), 16384)
        where j.id = _job.id;
    end;
  end loop;
  if _told then perform "stowhand".wake(); end if;
end $$;

CREATE FUNCTION stowhand.total_throughput(_begins timestamp with time zone[], _seconds integer) RETURNS void
    LANGUAGE sql
    AS $$
  with gone as (
    delete from "stowhand".throughput t using unnest(_begins) as s(begins)
      where t.seconds < 0 and t.seconds > -_seconds
        and t.begins >= s.begins and t.begins < s.begins + _seconds * interval '1 second'
  ), numbers as (
    select t.begins, e.key, sum(e.value::bigint) as number
    from "stowhand".throughput t cross join lateral jsonb_each_text(t.tally) as e(key, value)
    where t.seconds = _seconds and t.begins = any(_begins) and t.writer = '' group by t.begins, e.key
  )
  insert into "stowhand".throughput (seconds, begins, task, writer, tally)
    select -_seconds, n.begins, '', '', jsonb_object_agg(n.key, n.number) from numbers n group by n.begins
    on conflict (seconds, begins, task, writer) do update set tally = excluded.tally
$$;

CREATE FUNCTION stowhand.unlimited_tasks(_tasks text[]) RETURNS text[]
    LANGUAGE sql STABLE
    AS $$
  select array(select t.task from unnest(coalesce(_tasks, "stowhand".waiting_tasks())) with ordinality as t(task, place)
               where not exists (select from "stowhand".task_limits l where l.task = t.task) order by t.place)
$$;

CREATE FUNCTION stowhand.unlock_all(_workers text[], _keep boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    SET lock_timeout TO '5s'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
  _jobs "stowhand".live[];
begin
  _jobs := array(
    select j from "stowhand".live j where j.state = 'processing' and j.worker = any(_workers) order by j.id for update);
  return query select * from "stowhand".aftermath(_jobs, "stowhand".take_back(_jobs, _keep, _at), _at) order by id;
end $$;

CREATE FUNCTION stowhand.unpaused(_tasks text[]) RETURNS text[]
    LANGUAGE plpgsql STABLE
    AS $$
begin
  if not exists (select from "stowhand".pauses p where p.kind = 'task') then return _tasks; end if;
  _tasks := coalesce(_tasks, "stowhand".waiting_tasks());
  -- Keep the order of the tasks, since pick_free depends on the second one.
  return array(select t.task from unnest(_tasks) with ordinality as t(task, place)
               where not exists (select from "stowhand".pauses p where p.kind = 'task' and p.name = t.task)
               order by t.place);
end $$;

CREATE FUNCTION stowhand.used_slots(_name text) RETURNS TABLE(slot integer)
    LANGUAGE sql STABLE
    AS $$
  select j.limit_slot from "stowhand".live j
  where j.limit_name = _name and j.limit_slot is not null and j.worker is not null
$$;

CREATE FUNCTION stowhand.waiting_tasks() RETURNS text[]
    LANGUAGE sql STABLE
    AS $$
  with recursive free as (
    (select j.task from "stowhand".live j where j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2
     order by j.task, j.priority, j.run_at, j.id limit 1)
    union all
    select n.task from free f cross join lateral (
      select j.task from "stowhand".live j where j.queue is null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and j.task > f.task
      order by j.task, j.priority, j.run_at, j.id limit 1) n
  ), queued as (
    (select j.queue, j.task from "stowhand".live j where j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2
     order by j.queue, j.task, j.priority, j.run_at, j.id limit 1)
    union all
    select n.queue, n.task from queued q cross join lateral (
      select j.queue, j.task from "stowhand".live j where j.queue is not null and j.serial is null and j.worker is null and j.finished_at is null and j.resets < 2 and (j.queue, j.task) > (q.queue, q.task)
      order by j.queue, j.task, j.priority, j.run_at, j.id limit 1) n
  ), serial as (
    (select j.serial, j.task from "stowhand".live j
     where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
     order by j.serial, j.task, j.priority, j.run_at, j.id limit 1)
    union all
    select n.serial, n.task from serial s cross join lateral (
      select j.serial, j.task from "stowhand".live j
      where j.state in ('queued', 'errored') and j.serial is not null and j.resets < 2
        and (j.serial, j.task) > (s.serial, s.task)
      order by j.serial, j.task, j.priority, j.run_at, j.id limit 1) n
  )
  select coalesce(array_agg(distinct w.task), '{}') from (
    select f.task from free f
    union all
    select q.task from queued q
    union all
    select s.task from serial s
    union all
    select j.task from "stowhand".live j where j.state in ('queued', 'errored') and j.resets >= 2) w
$$;

CREATE FUNCTION stowhand.wake() RETURNS void
    LANGUAGE sql
    AS $$
  select pg_catalog.pg_notify('stowhand:wake', '')
$$;

CREATE FUNCTION stowhand.wake_for_limits(_names text[], _at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
  if exists (
    select from (select n.name, count(*) as freed from unnest(_names) as n(name) group by n.name) f
      join "stowhand".limits l on l.name = f.name
      cross join lateral (select count(*) as used from "stowhand".used_slots(f.name)) u
      join "stowhand".task_limits t on t.concurrency = f.name
    where u.used + f.freed >= l.concurrency and "stowhand".earliest_due(array[t.task], null, null, _at) <= _at)
  then
    perform "stowhand".wake();
  end if;
end $$;

CREATE FUNCTION stowhand.wake_waiting() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _waiting bigint[];
begin
  perform pg_advisory_xact_lock("stowhand".event_lock(new.name));
  -- A new statement under the lock: it sees every job that has started to wait.
  _waiting := array(
    select j.id from "stowhand".live j
    where j.waits_for = 'event:' || new.name and j.waits_for is not null and j.state = 'queued'
      and (new.job_id = 0 or j.id = new.job_id)
    order by j.id for update);
  if cardinality(_waiting) = 0 then return null; end if;
  update "stowhand".steps s set value = new.payload
    where s.job_id = any(_waiting) and s.place = 0 and s.value is null and s.error is null
      and (s.name = 'event:' || new.name or starts_with(s.name, 'event:' || new.name || '#'));
  update "stowhand".live j set run_at = new.at where j.id = any(_waiting) and j.run_at > new.at;
  perform "stowhand".wake();
  return null;
end $$;

CREATE FUNCTION stowhand.walk_names(_tasks text[], _forbidden text[], _queues text[], _excluded text[], _at timestamp with time zone, _but text[], _most integer, _bound_priority integer, _bound_run_at timestamp with time zone, _bound_id bigint) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
declare
  _name text;
  _head "stowhand".place;
  _names text[] := '{}';
  _heads "stowhand".place[] := '{}';
begin
  for _ in 0.._most loop
    _name := "stowhand".next_name(_name);
    if _name is null then
      return array(select n.name from unnest(_names, _heads) as n(name, priority, run_at, id)
                   order by n.priority, n.run_at, n.id);
    end if;
    continue when _name = any(_but) or "stowhand".key_opens_at(_name, _at) is not null;
    _head := "stowhand".serial_head(_name, _tasks, _forbidden, _queues, _excluded, _at);
    continue when _head.id is null or _head.run_at > _at;
    if position(E'\t' in _name) > 0 then _head := "stowhand".key_place(_name, _head, _at); end if;
    continue when (_head.priority, _head.run_at, _head.id) > (_bound_priority, _bound_run_at, _bound_id);
    _names := _names || _name;
    _heads := _heads || _head;
  end loop;
  return null;
end $$;

CREATE FUNCTION stowhand.way_back(_state text, _cancel_requested boolean, _loses_retries text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  select case
    when _state = 'continued' then case when _cancel_requested then 'canceled' else 'completed' end
    when _state not in ('queued', 'errored') then _state
    when _cancel_requested or _loses_retries = 'removed' then 'canceled'
    when _loses_retries = 'replaced' and _state = 'errored' then 'failed'
    else _state end
$$;

CREATE FUNCTION stowhand.with_paused(_excluded text[]) RETURNS text[]
    LANGUAGE sql STABLE
    AS $$
  select nullif(coalesce(_excluded, '{}') || array(select p.name from "stowhand".pauses p where p.kind = 'queue'), '{}')
$$;

CREATE FUNCTION stowhand.without_tokens(_ids bigint[]) RETURNS SETOF stowhand.live
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  _job "stowhand".live;
begin
  for _job in select l.* from "stowhand".live l where l.id = any(_ids) order by l.id loop
    _job.token := null; _job.settled_token := null;
    return next _job;
  end loop;
end $$;

CREATE FUNCTION stowhand.worker_gone(_name text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform set_config('synchronous_commit', 'off', true);
  delete from "stowhand".workers w where w.name = _name;
end $$;

CREATE FUNCTION stowhand.worker_seen(_name text, _host text, _pid bigint, _version text, _tasks text[], _concurrency integer, _stopping boolean, _now timestamp with time zone DEFAULT NULL::timestamp with time zone, _forbidden text[] DEFAULT ARRAY[]::text[], _app_version text DEFAULT NULL::text, _abandoned_threads integer DEFAULT 0, _blocked boolean DEFAULT false, _queues text[] DEFAULT NULL::text[], _excluded_queues text[] DEFAULT ARRAY[]::text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _at timestamptz := "stowhand".at(_now);
begin
  perform set_config('synchronous_commit', 'off', true);
  insert into "stowhand".workers
      (name, host, pid, version, tasks, concurrency, stopping, forbidden_flags, started_at, seen_at, app_version,
        abandoned_threads, blocked, queues, excluded_queues)
    values (_name, _host, _pid, _version, _tasks, _concurrency, _stopping, _forbidden, _at, _at, _app_version,
        _abandoned_threads, _blocked, _queues, _excluded_queues)
    on conflict (name) do update
      set tasks = _tasks, stopping = _stopping, forbidden_flags = _forbidden, seen_at = _at,
        abandoned_threads = _abandoned_threads, blocked = _blocked;
  if _app_version is not null then perform "stowhand".note_app_version(_app_version, _at); end if;
end $$;

CREATE FUNCTION stowhand.write_jobs() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  _answer record;
  _refused text;
begin
  if tg_op = 'DELETE' then
    _answer := "stowhand".remove(old.id);
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
    return "stowhand".add_job(new.task_identifier, new.payload, new.queue_name, new.run_at, new.max_attempts, new.key,
      new.priority, new.flags, work_queue => new.work_queue);
  end if;
  if (new.run_at, new.priority, new.attempts, new.max_attempts, new.work_queue)
      is distinct from (old.run_at, old.priority, old.attempts, old.max_attempts, old.work_queue) then
    perform from "stowhand".reschedule_jobs(array[old.id], nullif(new.run_at, old.run_at),
      nullif(new.priority, old.priority), nullif(new.attempts, old.attempts), nullif(new.max_attempts, old.max_attempts),
      nullif(new.work_queue, old.work_queue));
  end if;
  perform "stowhand".check_name('A queue name', new.queue_name, 128, 'GWBQN');
  update "stowhand".live j set serial = new.queue_name, updated_at = now()
    where j.id = old.id and j.state <> 'processing';
  if not found then
    raise exception 'Job % is running, so it cannot be changed.', old.id using errcode = '55000',
      hint = 'The function cancel asks its worker to stop; force_unlock_workers takes it from a worker that is lost.';
  end if;
  perform "stowhand".wake();
  return (select "stowhand".shown(j) from "stowhand".live j where j.id = old.id);
end $$;

CREATE FUNCTION stowhand.write_pause(_kind text, _name text, _is_on boolean, _now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
  if _is_on then
    insert into "stowhand".pauses (kind, name, since) values (_kind, _name, "stowhand".at(_now)) on conflict do nothing;
    return found;
  end if;
  delete from "stowhand".pauses p where p.kind = _kind and p.name = _name;
  if not found then return false; end if;
  perform "stowhand".wake();
  return true;
end $$;

CREATE FUNCTION stowhand.write_throughput(_writer text, _rows jsonb, _now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(minute bigint, task text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
  _at timestamptz;
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_advisory_xact_lock_shared(hashtextextended('stowhand:wake', 3));
  _at := "stowhand".at(_now);  -- after the lock, as an earlier fold has read an earlier time
  return query
    with given as (
      select g.minute, g.task, g.tally, to_timestamp(g.minute * 60) as begins
      from jsonb_to_recordset(_rows) as g(minute bigint, task text, tally jsonb)
    ), kept as (
      select g.* from given g
      where g.begins > _at - interval '11 minutes' and g.begins <= _at + interval '1 minute' and not exists (
        select from "stowhand".throughput t
        where t.seconds = 60 and t.begins = g.begins and t.task = g.task and t.writer = '')
    ), written as (
      insert into "stowhand".throughput (seconds, begins, task, writer, tally)
        select 60, k.begins, k.task, _writer, k.tally from kept k
        on conflict (seconds, begins, task, writer) do update set tally = excluded.tally
    )
    select g.minute, g.task from given g where not exists (
      select from kept k where k.minute = g.minute and k.task = g.task);
end $$;

CREATE TABLE stowhand.app_versions (
    version text NOT NULL,
    since timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

CREATE TABLE stowhand.applied_migrations (
    id integer NOT NULL,
    ts timestamp with time zone DEFAULT now() NOT NULL,
    breaking boolean DEFAULT false NOT NULL,
    fingerprint text NOT NULL
);

CREATE TABLE stowhand.dead_tokens (
    token uuid NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE stowhand.events (
    name text NOT NULL,
    job_id bigint NOT NULL,
    payload json NOT NULL,
    at timestamp with time zone NOT NULL
);

CREATE TABLE stowhand.expiring (
    expires_at timestamp with time zone NOT NULL,
    id bigint NOT NULL
);

CREATE TABLE stowhand.flow_jobs (
    id text NOT NULL,
    flow text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    looked_at timestamp with time zone NOT NULL,
    CONSTRAINT flow_id_length CHECK (((length(id) >= 1) AND (length(id) <= 128)))
);

CREATE TABLE stowhand.flow_limits (
    limiter text NOT NULL,
    part text NOT NULL,
    slot bigint NOT NULL,
    calls bigint NOT NULL,
    waiting bigint NOT NULL,
    used_at timestamp with time zone NOT NULL
);

CREATE TABLE stowhand.flow_lists (
    id text NOT NULL,
    job text NOT NULL,
    content text NOT NULL,
    CONSTRAINT flow_list_id_length CHECK (((length(id) >= 1) AND (length(id) <= 128))),
    CONSTRAINT flow_list_size CHECK ((octet_length(content) <= 33554432))
);

CREATE TABLE stowhand.flow_lookups (
    flow text NOT NULL,
    attribute text NOT NULL,
    value text NOT NULL,
    id text NOT NULL
);

CREATE TABLE stowhand.flow_waits (
    limiter text NOT NULL,
    part text NOT NULL,
    holder text NOT NULL,
    ready_at timestamp with time zone NOT NULL
);

CREATE TABLE stowhand.history_default (
    id bigint CONSTRAINT history_id_not_null NOT NULL,
    task text CONSTRAINT history_task_not_null NOT NULL,
    payload json CONSTRAINT history_payload_not_null NOT NULL,
    serial text,
    queue text,
    priority integer CONSTRAINT history_priority_not_null NOT NULL,
    run_at timestamp with time zone CONSTRAINT history_run_at_not_null NOT NULL,
    state text CONSTRAINT history_state_not_null NOT NULL,
    attempts integer CONSTRAINT history_attempts_not_null NOT NULL,
    max_attempts integer CONSTRAINT history_max_attempts_not_null NOT NULL,
    resets integer CONSTRAINT history_resets_not_null NOT NULL,
    max_resets integer,
    key text,
    flags text[],
    last_error text,
    revision integer CONSTRAINT history_revision_not_null NOT NULL,
    settled_token uuid,
    epoch bigint CONSTRAINT history_epoch_not_null NOT NULL,
    worker text,
    started_at timestamp with time zone,
    finished_at timestamp with time zone CONSTRAINT history_finished_at_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT history_created_at_not_null NOT NULL,
    updated_at timestamp with time zone CONSTRAINT history_updated_at_not_null NOT NULL,
    cancel_requested boolean CONSTRAINT history_cancel_requested_not_null NOT NULL,
    result json,
    replaced integer,
    on_failure json,
    parent_id bigint,
    CONSTRAINT over CHECK ((state = ANY (ARRAY['completed'::text, 'canceled'::text])))
);

CREATE TABLE stowhand.limit_keys (
    name text NOT NULL,
    next_start timestamp with time zone,
    held_until timestamp with time zone,
    served_at timestamp with time zone,
    turn bigint,
    absorbed boolean DEFAULT false NOT NULL,
    hint_priority integer,
    hint_run_at timestamp with time zone,
    hint_id bigint,
    paused_at timestamp with time zone,
    CONSTRAINT hint_if_open_and_absorbed CHECK (((hint_run_at IS NULL) OR ((paused_at IS NULL) AND absorbed))),
    CONSTRAINT hint_whole CHECK ((((hint_run_at IS NULL) = (hint_priority IS NULL)) AND ((hint_run_at IS NULL) = (hint_id IS NULL))))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');

CREATE TABLE stowhand.limits (
    name text NOT NULL,
    declared jsonb NOT NULL,
    override jsonb DEFAULT '{}'::jsonb NOT NULL,
    concurrency integer GENERATED ALWAYS AS ((COALESCE((override ->> 'concurrency'::text), (declared ->> 'concurrency'::text)))::integer) STORED,
    rate integer GENERATED ALWAYS AS ((COALESCE((override ->> 'rate'::text), (declared ->> 'rate'::text)))::integer) STORED,
    rate_seconds double precision GENERATED ALWAYS AS ((COALESCE((override ->> 'rate_seconds'::text), (declared ->> 'rate_seconds'::text)))::double precision) STORED,
    burst integer GENERATED ALWAYS AS ((COALESCE((override ->> 'burst'::text), (declared ->> 'burst'::text)))::integer) STORED,
    key_concurrency integer GENERATED ALWAYS AS ((COALESCE((override ->> 'key_concurrency'::text), (declared ->> 'key_concurrency'::text)))::integer) STORED,
    key_rate integer GENERATED ALWAYS AS ((COALESCE((override ->> 'key_rate'::text), (declared ->> 'key_rate'::text)))::integer) STORED,
    key_rate_seconds double precision GENERATED ALWAYS AS ((COALESCE((override ->> 'key_rate_seconds'::text), (declared ->> 'key_rate_seconds'::text)))::double precision) STORED,
    key_burst integer GENERATED ALWAYS AS ((COALESCE((override ->> 'key_burst'::text), (declared ->> 'key_burst'::text)))::integer) STORED,
    next_start timestamp with time zone,
    held_until timestamp with time zone,
    CONSTRAINT name_length CHECK (((length(name) >= 1) AND (length(name) <= 128))),
    CONSTRAINT values_in_range CHECK (((concurrency >= 0) AND (rate >= 1) AND (rate_seconds > (0)::double precision) AND (burst >= 1) AND (key_concurrency >= 0) AND (key_rate >= 1) AND (key_rate_seconds > (0)::double precision) AND (key_burst >= 1)))
)
WITH (fillfactor='70');

ALTER TABLE stowhand.live ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME stowhand.live_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW stowhand.live_jobs AS
 SELECT id,
    task,
    (payload)::text AS payload,
    state,
    COALESCE(queue, 'default'::text) AS queue,
    serial,
    key,
    priority,
    run_at,
    attempts,
    max_attempts,
    resets,
    max_resets,
    flags,
    last_error,
    revision,
    created_at,
    updated_at,
    started_at,
    finished_at,
    worker,
    COALESCE(worker, last_worker) AS last_worker,
    cancel_requested,
    NULL::text AS result,
    progress,
    progress_text,
    parent_id,
    waits_for
   FROM stowhand.live;

CREATE VIEW stowhand.migrations AS
 SELECT 1000000 AS id,
    now() AS ts,
    true AS breaking;

CREATE VIEW stowhand.past_jobs AS
 SELECT id,
    task,
    (payload)::text AS payload,
    state,
    COALESCE(queue, 'default'::text) AS queue,
    serial,
    key,
    priority,
    run_at,
    attempts,
    max_attempts,
    resets,
    max_resets,
    flags,
    last_error,
    revision,
    created_at,
    updated_at,
    started_at,
    finished_at,
    NULL::text AS worker,
    worker AS last_worker,
    cancel_requested,
    (result)::text AS result,
    NULL::double precision AS progress,
    NULL::text AS progress_text,
    parent_id,
    NULL::text AS waits_for
   FROM stowhand.history;

CREATE TABLE stowhand.pauses (
    kind text NOT NULL,
    name text NOT NULL,
    since timestamp with time zone NOT NULL,
    CONSTRAINT known_kind CHECK ((kind = ANY (ARRAY['task'::text, 'queue'::text]))),
    CONSTRAINT name_length CHECK (((length(name) >= 1) AND (length(name) <= 128)))
);

CREATE TABLE stowhand.settings (
    only_row boolean DEFAULT true NOT NULL,
    max_attempts integer DEFAULT 25 NOT NULL,
    CONSTRAINT max_attempts_at_least_1 CHECK ((max_attempts >= 1)),
    CONSTRAINT one_row CHECK (only_row)
);

CREATE TABLE stowhand.steps (
    job_id bigint NOT NULL,
    place integer NOT NULL,
    remaining integer,
    seq bigint NOT NULL,
    epoch bigint,
    at timestamp with time zone NOT NULL,
    until timestamp with time zone,
    name text NOT NULL,
    value json,
    error text
)
WITH (fillfactor='90');

ALTER TABLE stowhand.steps ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME stowhand.steps_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE stowhand.task_limits (
    task text NOT NULL,
    concurrency text,
    rate text,
    key_limit text,
    key_path text[],
    is_fair boolean DEFAULT false NOT NULL,
    CONSTRAINT has_a_limit CHECK (((concurrency IS NOT NULL) OR (rate IS NOT NULL) OR (key_limit IS NOT NULL))),
    CONSTRAINT path_of_a_key CHECK (((key_limit IS NOT NULL) OR (key_path IS NULL))),
    CONSTRAINT turns_of_keys CHECK (((key_limit IS NOT NULL) OR (NOT is_fair)))
);

CREATE TABLE stowhand.task_queues (
    task text NOT NULL,
    queue text NOT NULL,
    CONSTRAINT queue_length CHECK (((length(queue) >= 1) AND (length(queue) <= 128))),
    CONSTRAINT task_length CHECK (((length(task) >= 1) AND (length(task) <= 128)))
);

CREATE TABLE stowhand.throughput (
    seconds integer NOT NULL,
    begins timestamp with time zone NOT NULL,
    task text NOT NULL,
    writer text NOT NULL,
    tally jsonb NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE stowhand.ticks (
    identifier text NOT NULL,
    tick timestamp with time zone NOT NULL,
    job_id bigint NOT NULL,
    backfilled boolean NOT NULL,
    spec text NOT NULL,
    scheduled_at timestamp with time zone NOT NULL
);

CREATE TABLE stowhand.tries (
    job_id bigint NOT NULL,
    place bigint NOT NULL,
    round integer NOT NULL,
    number integer NOT NULL,
    worker text,
    started_at timestamp with time zone,
    ended_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    error_class text,
    error text
);

CREATE SEQUENCE stowhand.turns
    START WITH 4611686018427387904
    INCREMENT BY 1
    MINVALUE 4611686018427387904
    NO MAXVALUE
    CACHE 1;

CREATE TABLE stowhand.uniques (
    key text NOT NULL,
    job_id bigint NOT NULL,
    enqueued_at timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL
);

CREATE TABLE stowhand.workers (
    name text NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    version text NOT NULL,
    tasks text[],
    concurrency integer NOT NULL,
    stopping boolean NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    forbidden_flags text[] DEFAULT ARRAY[]::text[],
    queues text[],
    excluded_queues text[] DEFAULT ARRAY[]::text[] NOT NULL,
    app_version text,
    abandoned_threads integer DEFAULT 0 NOT NULL,
    blocked boolean DEFAULT false NOT NULL
);

ALTER TABLE ONLY stowhand.history ATTACH PARTITION stowhand.history_default DEFAULT;

ALTER TABLE ONLY stowhand.app_versions
    ADD CONSTRAINT app_versions_pkey PRIMARY KEY (version, since);

ALTER TABLE ONLY stowhand.applied_migrations
    ADD CONSTRAINT applied_migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY stowhand.crontab
    ADD CONSTRAINT crontab_pkey PRIMARY KEY (identifier);

ALTER TABLE ONLY stowhand.dead_tokens
    ADD CONSTRAINT dead_tokens_pkey PRIMARY KEY (token);

ALTER TABLE ONLY stowhand.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (name, job_id);

ALTER TABLE ONLY stowhand.expiring
    ADD CONSTRAINT expiring_pkey PRIMARY KEY (expires_at, id);

ALTER TABLE ONLY stowhand.flow_jobs
    ADD CONSTRAINT flow_jobs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY stowhand.flow_limits
    ADD CONSTRAINT flow_limits_pkey PRIMARY KEY (limiter, part);

ALTER TABLE ONLY stowhand.flow_lists
    ADD CONSTRAINT flow_lists_pkey PRIMARY KEY (id);

ALTER TABLE ONLY stowhand.flow_lookups
    ADD CONSTRAINT flow_lookups_pkey PRIMARY KEY (flow, attribute, value, id);

ALTER TABLE ONLY stowhand.flow_waits
    ADD CONSTRAINT flow_waits_pkey PRIMARY KEY (limiter, part, holder);

ALTER TABLE ONLY stowhand.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (id, finished_at);

ALTER TABLE ONLY stowhand.history_default
    ADD CONSTRAINT history_default_pkey PRIMARY KEY (id, finished_at);

ALTER TABLE ONLY stowhand.limit_keys
    ADD CONSTRAINT limit_keys_pkey PRIMARY KEY (name);

ALTER TABLE ONLY stowhand.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (name);

ALTER TABLE ONLY stowhand.live
    ADD CONSTRAINT live_pkey PRIMARY KEY (id);

ALTER TABLE ONLY stowhand.pauses
    ADD CONSTRAINT pauses_pkey PRIMARY KEY (kind, name);

ALTER TABLE ONLY stowhand.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY stowhand.steps
    ADD CONSTRAINT steps_pkey PRIMARY KEY (job_id, name, place);

ALTER TABLE ONLY stowhand.task_limits
    ADD CONSTRAINT task_limits_pkey PRIMARY KEY (task);

ALTER TABLE ONLY stowhand.task_queues
    ADD CONSTRAINT task_queues_pkey PRIMARY KEY (task);

ALTER TABLE ONLY stowhand.throughput
    ADD CONSTRAINT throughput_pkey PRIMARY KEY (seconds, begins, task, writer);

ALTER TABLE ONLY stowhand.ticks
    ADD CONSTRAINT ticks_pkey PRIMARY KEY (identifier, tick);

ALTER TABLE ONLY stowhand.tries
    ADD CONSTRAINT tries_pkey PRIMARY KEY (job_id, place);

ALTER TABLE ONLY stowhand.uniques
    ADD CONSTRAINT uniques_pkey PRIMARY KEY (key);

ALTER TABLE ONLY stowhand.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (name);

CREATE INDEX events_at ON stowhand.events USING btree (at);

CREATE INDEX flow_jobs_looked_at ON stowhand.flow_jobs USING btree (looked_at);

CREATE INDEX flow_lists_job ON stowhand.flow_lists USING btree (job);

CREATE INDEX flow_lookups_id ON stowhand.flow_lookups USING btree (id);

CREATE INDEX flow_waits_ready_at ON stowhand.flow_waits USING btree (limiter, part, ready_at);

CREATE INDEX history_canceled ON ONLY stowhand.history USING btree (id) WHERE (state = 'canceled'::text);

CREATE INDEX history_children ON ONLY stowhand.history USING btree (parent_id) WHERE (parent_id IS NOT NULL);

CREATE INDEX history_default_finished ON stowhand.history_default USING btree (finished_at);

CREATE INDEX history_ended ON ONLY stowhand.history USING brin (finished_at) WITH (pages_per_range='32', autosummarize='true');

CREATE INDEX history_default_finished_at_idx ON stowhand.history_default USING brin (finished_at) WITH (pages_per_range='32', autosummarize='true');

CREATE INDEX history_default_id_idx ON stowhand.history_default USING btree (id) WHERE (state = 'canceled'::text);

CREATE INDEX history_errors ON ONLY stowhand.history USING btree (id) WHERE (last_error IS NOT NULL);

CREATE INDEX history_default_id_idx1 ON stowhand.history_default USING btree (id) WHERE (last_error IS NOT NULL);

CREATE INDEX history_flow ON ONLY stowhand.history USING btree (key, id) WHERE (key ~~ 'flow:%'::text);

CREATE INDEX history_default_key_id_idx ON stowhand.history_default USING btree (key, id) WHERE (key ~~ 'flow:%'::text);

CREATE INDEX history_default_parent_id_idx ON stowhand.history_default USING btree (parent_id) WHERE (parent_id IS NOT NULL);

CREATE INDEX limit_keys_hinted ON stowhand.limit_keys USING btree (hint_priority, hint_run_at, hint_id) WHERE (hint_run_at IS NOT NULL);

CREATE INDEX live_by_queue ON stowhand.live USING btree (queue, task, priority, run_at, id) WHERE ((queue IS NOT NULL) AND (worker IS NULL) AND (finished_at IS NULL) AND (serial IS NULL) AND (resets < 2));

CREATE INDEX live_by_task ON stowhand.live USING btree (task, priority, run_at, id) WHERE ((queue IS NULL) AND (worker IS NULL) AND (finished_at IS NULL) AND (serial IS NULL) AND (resets < 2));

CREATE INDEX live_children ON stowhand.live USING btree (parent_id) WHERE (parent_id IS NOT NULL);

CREATE INDEX live_errors ON stowhand.live USING btree (id) WHERE (last_error IS NOT NULL);

CREATE INDEX live_failed ON stowhand.live USING btree (finished_at, id) WHERE (state = 'failed'::text);

CREATE INDEX live_in_serial ON stowhand.live USING btree (serial, task, priority, run_at, id) INCLUDE (queue) WHERE ((state = ANY (ARRAY['queued'::text, 'errored'::text])) AND (serial IS NOT NULL) AND (resets < 2));

CREATE UNIQUE INDEX live_key ON stowhand.live USING btree (key) WHERE (key IS NOT NULL);

CREATE UNIQUE INDEX live_key_slots ON stowhand.live USING btree (serial, key_slot) WHERE ((key_slot IS NOT NULL) AND (worker IS NOT NULL));

CREATE UNIQUE INDEX live_limit_slots ON stowhand.live USING btree (limit_name, limit_slot) WHERE ((limit_slot IS NOT NULL) AND (worker IS NOT NULL));

CREATE INDEX live_processing ON stowhand.live USING btree (id) WHERE (state = 'processing'::text);

CREATE INDEX live_ready ON stowhand.live USING btree (priority, run_at, id) WHERE ((state = ANY (ARRAY['queued'::text, 'errored'::text])) AND (serial IS NULL) AND (resets < 2));

CREATE INDEX live_scouts ON stowhand.live USING btree (priority, run_at, id) WHERE ((serial IS NOT NULL) AND (NOT absorbed) AND (worker IS NULL) AND (finished_at IS NULL) AND (resets < 2));

CREATE INDEX live_suspects ON stowhand.live USING btree (priority, run_at, id) WHERE ((state = ANY (ARRAY['queued'::text, 'errored'::text])) AND (resets >= 2));

CREATE INDEX live_troubled ON stowhand.live USING btree (state, task) INCLUDE (queue) WHERE (state = ANY (ARRAY['errored'::text, 'failed'::text]));

CREATE INDEX live_waiting ON stowhand.live USING btree (waits_for) WHERE ((waits_for IS NOT NULL) AND (state = 'queued'::text));

CREATE INDEX throughput_unfolded ON stowhand.throughput USING btree (begins) WHERE (writer <> ''::text);

CREATE INDEX ticks_by_time ON stowhand.ticks USING btree (tick);

CREATE INDEX uniques_job ON stowhand.uniques USING btree (job_id);

CREATE INDEX uniques_until ON stowhand.uniques USING btree (until);

ALTER INDEX stowhand.history_ended ATTACH PARTITION stowhand.history_default_finished_at_idx;

ALTER INDEX stowhand.history_canceled ATTACH PARTITION stowhand.history_default_id_idx;

ALTER INDEX stowhand.history_errors ATTACH PARTITION stowhand.history_default_id_idx1;

ALTER INDEX stowhand.history_flow ATTACH PARTITION stowhand.history_default_key_id_idx;

ALTER INDEX stowhand.history_children ATTACH PARTITION stowhand.history_default_parent_id_idx;

ALTER INDEX stowhand.history_pkey ATTACH PARTITION stowhand.history_default_pkey;

CREATE CONSTRAINT TRIGGER wake_waiting AFTER INSERT ON stowhand.events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stowhand.wake_waiting();

CREATE TRIGGER write_jobs INSTEAD OF INSERT OR DELETE OR UPDATE ON stowhand.jobs FOR EACH ROW EXECUTE FUNCTION stowhand.write_jobs();

CREATE TRIGGER zz_absorbed BEFORE UPDATE OF serial, state ON stowhand.live FOR EACH ROW WHEN ((new.absorbed AND old.absorbed AND ((new.state <> old.state) OR (new.serial IS DISTINCT FROM old.serial)))) EXECUTE FUNCTION stowhand.reset_absorbed();

ALTER TABLE ONLY stowhand.flow_lists
    ADD CONSTRAINT flow_lists_job_fkey FOREIGN KEY (job) REFERENCES stowhand.flow_jobs(id) ON DELETE CASCADE;

ALTER TABLE ONLY stowhand.flow_lookups
    ADD CONSTRAINT flow_lookups_id_fkey FOREIGN KEY (id) REFERENCES stowhand.flow_jobs(id) ON DELETE CASCADE;

ALTER TABLE ONLY stowhand.task_limits
    ADD CONSTRAINT task_limits_concurrency_fkey FOREIGN KEY (concurrency) REFERENCES stowhand.limits(name);

ALTER TABLE ONLY stowhand.task_limits
    ADD CONSTRAINT task_limits_key_limit_fkey FOREIGN KEY (key_limit) REFERENCES stowhand.limits(name);

ALTER TABLE ONLY stowhand.task_limits
    ADD CONSTRAINT task_limits_rate_fkey FOREIGN KEY (rate) REFERENCES stowhand.limits(name);
