-- What flows keep beside their steps, which are jobs like any other.

-- Which jobs there are. `looked_at`: when it was last looked whether there is still a step of it, live or in the history.
create table {schema}.flow_jobs (
  id text primary key,
  flow text not null,
  created_at timestamptz not null,
  looked_at timestamptz not null,
  constraint flow_id_length check (length(id) between 1 and 128)
);
create index flow_jobs_looked_at on {schema}.flow_jobs (looked_at);

create table {schema}.flow_lookups (
  flow text not null,
  attribute text not null,
  value text not null,
  id text not null references {schema}.flow_jobs (id) on delete cascade,
  constraint flow_lookups_pkey primary key (flow, attribute, value, id)
);
create index flow_lookups_id on {schema}.flow_lookups (id);

-- What a limiter has let pass in its window, and how many wait for a later one.
create table {schema}.flow_limits (
  limiter text not null,
  part text not null,
  slot bigint not null,
  calls bigint not null,
  waiting bigint not null,
  used_at timestamptz not null,
  constraint flow_limits_pkey primary key (limiter, part)
);

create table {schema}.flow_waits (
  limiter text not null,
  part text not null,
  holder text not null,
  ready_at timestamptz not null,
  constraint flow_waits_pkey primary key (limiter, part, holder)
);
create index flow_waits_ready_at on {schema}.flow_waits (limiter, part, ready_at);

-- Partial, so that other jobs pay nothing.
create index history_flow on {schema}.history (key, id) where key like 'flow:%';
