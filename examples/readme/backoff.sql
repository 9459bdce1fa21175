-- How long a job waits before each further attempt, and how long in all.
select
  attempt,
  exp(least(10, attempt)) * interval '1 second' as delay,
  sum(exp(least(10, attempt)) * interval '1 second') over (order by attempt) as total_delay
from generate_series(1, 24) as attempt;
