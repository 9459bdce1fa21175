-- They take other arguments now.
drop function if exists {schema}.claim(
  text, uuid, int, double precision, text[], text[], boolean, timestamptz, int, timestamptz, bigint);
drop function if exists {schema}.claim(
  text, uuid, int, double precision, text[], text[], boolean, timestamptz, int, timestamptz, bigint, double precision);
