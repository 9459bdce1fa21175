-- A job, from any program that speaks SQL.
select id, task_identifier from stowhand.add_job('hello', json_build_object('name', 'Bobby Tables'));
