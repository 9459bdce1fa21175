-- Enqueueing from SQL: only the task is needed; the rest is best given by name.

select stowhand.add_job('send_email', json_build_object('to', 'someone@example.com', 'subject', 'a test'));

select stowhand.add_job('reminder', run_at := now() + interval '2 days');

-- So many seconds from now, by the database's clock. (Parameters, as a driver sends them.)
prepare later(text, json, text, int, int) as
  select stowhand.add_job($1, payload := $2, queue_name := $3, max_attempts := $4, run_at := now() + ($5 * interval '1 second'));
execute later('later', '{"n": 1}', 'a serial', 3, 90);
deallocate later;
