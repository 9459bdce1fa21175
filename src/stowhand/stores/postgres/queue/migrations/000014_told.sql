-- Settlements tell what they have written: these functions give a state now (functions/settle.sql).

drop function if exists {schema}.settle(
  bigint[], uuid[], text[], double precision[], boolean[], text[], text[], text[], boolean, timestamptz);
drop function if exists {schema}.look(bigint[], uuid[]);
