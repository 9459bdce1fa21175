-- What ended of all tasks together, beside the rows of each: a row for each minute that was added up (`seconds` -60), and for each
-- hour (-3600). Programs of before ask for 60 and 3600, and do not see them. functions/throughput.sql makes them: of what is there,
-- some at each maintenance, for a long history takes a minute, and this transaction may hold locks that workers wait for.
comment on column {schema}.throughput.seconds is 'the length; negative: all tasks together';
