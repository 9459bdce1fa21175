-- Which job last took a key for a period: a repeat within it gives that job, also when it has completed (functions/uniques.sql).
-- Only enqueueing with a period writes here, so a job without one pays nothing; and a completion neither reads nor writes it.
create table {schema}.uniques (
  key text not null,
  job_id bigint not null,
  enqueued_at timestamptz not null,
  until timestamptz not null,
  constraint uniques_pkey primary key (key)
);
create index uniques_job on {schema}.uniques (job_id);
create index uniques_until on {schema}.uniques (until);
