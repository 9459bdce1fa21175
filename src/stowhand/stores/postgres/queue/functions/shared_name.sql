-- For graphile-worker, which keeps its numbers under this name: one of its processes that comes here stops before it writes. 0.16 and
-- later read a breaking migration that they do not know; older ones find nothing to do.
create or replace view {schema}.migrations as
  select 1000000 as id, now() as ts, true as breaking;
