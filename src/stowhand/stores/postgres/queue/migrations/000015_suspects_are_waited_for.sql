-- They take more arguments now.
drop function if exists {schema}.claim(
  text, uuid, int, double precision, text[], text[], boolean, timestamptz, int, timestamptz, bigint);
drop function if exists {schema}.pick_suspects(int, text[], text[], timestamptz);
