-- Which scheduler last reported that it schedules an item, and when; and since when the item has its spec.
alter table {schema}.crontab
  add column scheduled_by text,
  add column scheduled_at timestamptz,
  add column spec_since timestamptz;
drop function if exists {schema}.cron_register(text[], text[], timestamptz);
