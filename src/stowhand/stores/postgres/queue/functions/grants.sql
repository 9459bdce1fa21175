-- The rights of the roles (docs/reference/roles.md shows them as tables, and a test compares). Every installation
-- grants them again and revokes all others. This happens only if the roles were granted access to the schema (`stowhand
-- migrate --roles`): roles belong to the whole server, and must not get access to a schema because another database has
-- one of the same name.
do $$
declare
  _one record;
begin
  if not exists (
    select from pg_catalog.pg_namespace n
      cross join lateral pg_catalog.aclexplode(n.nspacl) a join pg_catalog.pg_roles r on r.oid = a.grantee
    where n.nspname = {schema_text} and r.rolname = {worker_text})
  then
    return;
  end if;
  if (select count(*) from pg_catalog.pg_roles r
      where r.rolname in ({enqueuer_text}, {worker_text}, {reader_text}, {admin_text})) < 4 then
    raise exception 'A role of schema % is missing: `stowhand migrate --roles` creates it.', {schema_text}
      using errcode = '55000';
  end if;
  revoke all on all tables in schema {schema} from {enqueuer}, {worker}, {reader}, {admin};
  revoke all on all sequences in schema {schema} from {enqueuer}, {worker}, {reader}, {admin};
  revoke all on all functions in schema {schema} from {enqueuer}, {worker}, {reader}, {admin};
  grant select on {schema}.applied_migrations, {schema}.migrations, {schema}.settings to {enqueuer}, {worker}, {reader}, {admin};

  -- Rights to read. A token is the proof of a lease, with which a job could be settled. So no role may read tokens.
  grant select on {schema}.jobs, {schema}.everything, {schema}.live_jobs, {schema}.past_jobs to {worker}, {reader}, {admin};
  for _one in
    select c.relname, pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' order by a.attnum) as columns
    from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = pg_catalog.to_regnamespace({schema_name})
      and c.relname in ('live', 'history', 'limit_keys', 'crontab', 'ticks', 'flow_jobs', 'flow_lookups', 'flow_limits',
        'flow_waits', 'flow_lists', 'workers', 'app_versions', 'pauses', 'task_queues', 'limits', 'task_limits', 'expiring', 'throughput', 'tries', 'uniques',
        'steps', 'events')
      and a.attnum > 0 and not a.attisdropped and a.attname not like '%token%'
    group by c.relname
  loop
    execute pg_catalog.format('grant select (%s) on %I.%I to %I, %I, %I', _one.columns, {schema_text}, _one.relname,
      {worker_text}, {reader_text}, {admin_text});
  end loop;

  -- Rights to call functions, whatever their arguments. A function that is not listed is called only by the owner, and
  -- by functions that run as the owner.
  for _one in
    select p.oid::pg_catalog.regprocedure as function, r.name as role
    from (values
      ('add_job', 'enqueuer worker admin'),
      ('add_jobs', 'enqueuer worker admin'),
      ('enqueue', 'enqueuer worker admin'),
      ('enqueue_many', 'enqueuer worker admin'),
      ('enqueue_jobs', 'enqueuer worker admin'),
      ('enqueue_text', 'enqueuer worker admin'),
      ('enqueue_built_in', 'worker admin'),
      ('remove_job', 'enqueuer worker admin'),
      ('remove_key', 'enqueuer worker admin'),
      ('claim', 'worker'),
      ('next_due', 'worker'),
      ('poll', 'worker'),
      ('foreign_leases', 'worker'),
      ('settle_attempts', 'worker'),
      ('settle_completed', 'worker'),
      ('settle_and_claim', 'worker'),
      ('record_steps', 'worker'),
      ('record_text', 'worker'),
      ('enqueue_children', 'worker'),
      ('adopt', 'worker'),
      ('emit_event', 'enqueuer worker admin'),
      ('emit_text', 'enqueuer worker admin'),
      ('fork_job', 'admin'),
      ('look', 'worker'),
      ('beat', 'worker'),
      ('find_canceled', 'worker'),
      ('keep_progress', 'worker'),
      ('release', 'worker'),
      ('abandon', 'worker'),
      ('find_stalled', 'worker'),
      ('reset', 'worker'),
      ('maintain', 'worker'),
      ('job_ends', 'worker reader admin'),
      ('worker_seen', 'worker'),
      ('declare_tasks', 'worker'),
      ('set_limit', 'admin'),
      ('reset_limit', 'admin'),
      ('worker_gone', 'worker'),
      ('write_throughput', 'worker'),
      ('purge_history', 'worker admin'),
      ('purge_failed', 'worker admin'),
      ('pause_serial', 'admin'),
      ('resume_serial', 'admin'),
      ('pause_task', 'admin'),
      ('resume_task', 'admin'),
      ('pause_queue', 'admin'),
      ('resume_queue', 'admin'),
      ('retry', 'admin'),
      ('retry_failed', 'admin'),
      ('cancel', 'admin'),
      ('remove', 'admin'),
      ('complete_jobs', 'admin'),
      ('permanently_fail_jobs', 'admin'),
      ('reschedule_jobs', 'admin'),
      ('force_unlock_workers', 'admin'),
      ('complete_all', 'admin'),
      ('fail_all', 'admin'),
      ('reschedule_all', 'admin'),
      ('unlock_all', 'admin'),
      ('cron_register', 'worker'),
      ('cron_enter', 'worker'),
      ('cron_note', 'worker'),
      ('cron_report', 'worker'),
      ('cron_forget', 'admin'),
      ('cron_known', 'worker reader admin'),
      ('flow_create', 'enqueuer worker admin'),
      ('flow_hold_key', 'enqueuer worker admin'),
      ('flow_keep', 'enqueuer worker admin'),
      ('flow_kept', 'worker reader admin'),
      ('flow_delete', 'worker admin'),
      ('flow_wake', 'worker'),
      ('flow_spend', 'worker'),
      ('flow_ids', 'worker reader admin'),
      ('flow_exists', 'worker reader admin'),
      ('flow_latest', 'worker reader admin')
    ) as g(function, roles)
      join (values ('enqueuer', {enqueuer_text}), ('worker', {worker_text}), ('reader', {reader_text}),
                   ('admin', {admin_text})) as r(role, name) on r.role = any(pg_catalog.string_to_array(g.roles, ' '))
      join pg_catalog.pg_proc p on p.proname = g.function
        and p.pronamespace = pg_catalog.to_regnamespace({schema_name})
  loop
    execute pg_catalog.format('grant execute on function %s to %I', _one.function, _one.role);
  end loop;
end $$;
