-- Queues that are paused, the roll of workers, and failed jobs by their age.

-- A paused queue is held by the job that holds it, and then by nobody's pair (-1, the nil uuid): functions/operate.sql.
alter table {schema}.queues add column paused_at timestamptz;
alter table {schema}.queues add constraint held_if_paused check (paused_at is null or holder_id is not null);

-- For people only: no claim and no lease looks here.
create table {schema}.workers (
  name text primary key,
  host text not null,
  pid bigint not null,
  version text not null,
  tasks text[],
  concurrency int not null,
  stopping boolean not null,
  started_at timestamptz not null,
  seen_at timestamptz not null
);

create index live_failed_at on {schema}.live (finished_at) where state = 'failed';

-- It takes another argument now.
drop function if exists {schema}.maintain(double precision, timestamptz);
