-- Who waits for a job's end: a uuid of the process that is to hear of it (functions/waiters.sql). NULL: nobody.
alter table {schema}.live add column waiter uuid;

-- The revision at which another job last took this one's place under its key. NULL: none did.
alter table {schema}.live add column replaced int;
alter table {schema}.history add column replaced int;
