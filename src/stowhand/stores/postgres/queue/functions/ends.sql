-- Return the status of those of these jobs that have ended or were replaced by another job. State 'gone': there is no
-- trace of the job; 'unknown': no job ever had this id. A waiting caller repeats this call (stores/kernel/results.py).
create or replace function {schema}.job_ends(_ids bigint[]) returns table (
  id bigint, state text, attempts int, resets int, last_error text, result text, started_at timestamptz,
  finished_at timestamptz, revision int, replaced int
)
language plpgsql stable {definer} {index_plans} as $$
#variable_conflict use_column
begin
  return query
    select f.id,
      case when h.state is not null then h.state
           when l.state is not null then l.state
           when f.id > coalesce(pg_sequence_last_value({sequence_text}), 0) then 'unknown'
           else 'gone' end,
      coalesce(l.attempts, h.attempts), coalesce(l.resets, h.resets),
      case when l.id is null then h.last_error else l.last_error end, h.result,
      case when l.id is null then h.started_at else l.started_at end,
      case when l.id is null then h.finished_at else l.finished_at end,
      coalesce(l.revision, h.revision), case when l.id is null then h.replaced else l.replaced end
    from unnest(_ids) as f(id)
      left join lateral (
        select j.id, j.state, j.attempts, j.resets, j.last_error, j.started_at, j.finished_at, j.revision,
          j.replaced
        from {schema}.live j where j.id = f.id offset 0) l on true
      left join lateral (
        select p.state, p.attempts, p.resets, p.last_error, p.result::text, p.started_at, p.finished_at, p.revision,
          p.replaced
        from {schema}.history p where p.id = f.id and l.id is null order by p.finished_at desc limit 1) h on true
    where l.id is null or l.state = 'failed' or l.replaced is not null;
end $$;
