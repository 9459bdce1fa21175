-- What ended in the last minutes is found by its time. A day is written in the order of that time, so an index of a few
-- pages does, and a settlement pays nothing for it. It is built in about a second for four million jobs, while none is
-- settled: number 12 has stopped the workers anyway.
create index history_ended on {schema}.history using brin (finished_at) with (pages_per_range = 32, autosummarize);
