-- What ended, by minute and task (by hour, once it is old): a row for each run of a worker, until rows are added up.
-- `tally`: numbers by name (outcomes), and by `w…` and `r…` the buckets of two histograms. `writer` is empty in added-up
-- rows. A worker writes its rows again and again.
create table {schema}.throughput (
  seconds int not null,
  begins timestamptz not null,
  task text not null,
  writer text not null,
  tally jsonb not null,
  primary key (seconds, begins, task, writer)
) with (fillfactor = 50);

create index throughput_unfolded on {schema}.throughput (begins) where writer <> '';
