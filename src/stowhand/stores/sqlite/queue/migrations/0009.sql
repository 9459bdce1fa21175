-- What ended, by minute and task (by hour, once it is old): a row for each run of a worker, until rows are added up.
-- `tally` is a JSON object of numbers: outcomes, and the buckets of two histograms. `writer` is empty in added-up rows.
CREATE TABLE stowhand_throughput (
    seconds INTEGER NOT NULL,
    begins INTEGER NOT NULL,
    task TEXT NOT NULL,
    writer TEXT NOT NULL,
    tally TEXT NOT NULL,
    PRIMARY KEY (seconds, begins, task, writer)
) WITHOUT ROWID;
