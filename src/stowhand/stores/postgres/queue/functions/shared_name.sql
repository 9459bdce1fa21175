-- For graphile-worker, which keeps its numbers under this name: one of its processes that comes here stops before it writes. 0.16 and
-- later read a breaking migration that they do not know; older ones find nothing to do. Workers of ours that knew this
-- as our own table (before number 12) take the row for a newer schema, and stop likewise.
create or replace view {schema}.migrations as
  select 1000000 as id, now() as ts, true as breaking;
