-- Tasks that are paused. The empty name stands for all jobs without a queue (paused queues: the table queues).
create table {schema}.pauses (
  task text primary key,
  since timestamptz not null,
  constraint task_is_short check (length(task) <= 128)
);
