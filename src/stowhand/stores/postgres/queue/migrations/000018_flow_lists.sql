-- breaking
-- Older programs do not know a parent that waits for children without naming each, nor an attribute that is kept apart.

-- Long attributes of a job (what a parent's children are given), apart from its steps, which then do not carry them.
create table {schema}.flow_lists (
  id text primary key,
  job text not null references {schema}.flow_jobs (id) on delete cascade,
  content text not null,
  constraint flow_list_id_length check (length(id) between 1 and 128),
  constraint flow_list_size check (octet_length(content) <= 33554432)
);
create index flow_lists_job on {schema}.flow_lists (job);
