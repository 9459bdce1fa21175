-- Jobs that wait for another attempt, for counting them. A job that never fails does not enter it.
CREATE INDEX stowhand_jobs_errored ON stowhand_jobs (task, queue) WHERE state = 'errored';
