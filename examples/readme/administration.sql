-- What an administrator does with jobs by their ids; jobs that run are left alone.
select * from stowhand.complete_jobs(array[7, 99, 38674]);

select * from stowhand.permanently_fail_jobs(array[7, 99, 38674], 'the reason');

select * from stowhand.reschedule_jobs(
  array[7, 99, 38674],
  run_at := now() + interval '5 minutes',
  priority := 5,
  attempts := 5,
  max_attempts := 25
);
