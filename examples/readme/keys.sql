-- One job, which runs once, with the newest payload.
begin;
select stowhand.add_job('send_email', '{"count": 1}', job_key := 'abc');
select stowhand.add_job('send_email', '{"count": 2}', job_key := 'abc');
commit;

-- And now none.
select stowhand.remove_job('abc');
