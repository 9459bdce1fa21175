-- Whose row has a round has entries. Those of a job that nobody had held before its end, or that was failed by hand and
-- retried, stayed when it was deleted.
DROP TRIGGER stowhand_job_forgotten;

CREATE TRIGGER stowhand_job_forgotten AFTER DELETE ON stowhand_jobs
WHEN (OLD.round IS NOT NULL OR OLD.last_worker IS NOT NULL OR OLD.state = 'failed')
    AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = OLD.id)
BEGIN
    DELETE FROM stowhand_tries WHERE job_id = OLD.id;
END;

DELETE FROM stowhand_tries WHERE NOT EXISTS (SELECT 1 FROM stowhand_jobs WHERE id = job_id)
    AND NOT EXISTS (SELECT 1 FROM stowhand_history WHERE id = job_id);

UPDATE stowhand_jobs SET round = 1 WHERE round IS NULL AND id IN (SELECT job_id FROM stowhand_tries);
