-- What ended of all tasks together, beside the rows of each: a row for each minute that was added up (`seconds` -60), and for each
-- hour (-3600). Programs of before ask for 60 and 3600, and do not see them. Made by functions/throughput.sql; here of what is there.
insert into {schema}.throughput (seconds, begins, task, writer, tally)
select n.seconds, n.begins, '', '', jsonb_object_agg(n.key, n.number)
from (
  select -t.seconds as seconds, t.begins, e.key, sum(e.value::bigint) as number
  from {schema}.throughput t cross join lateral jsonb_each_text(t.tally) as e(key, value)
  where t.writer = '' group by t.seconds, t.begins, e.key) n
group by n.seconds, n.begins;
