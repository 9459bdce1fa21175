-- graphile-worker keeps its migration numbers under this name. One of its processes that uses this schema stops before
-- it writes: 0.16 and later read a breaking migration that they do not know, and older ones find nothing to do.
create or replace view {schema}.migrations as
  select 1000000 as id, now() as ts, true as breaking;
