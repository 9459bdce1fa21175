-- When a job is canceled that no worker has claimed by then; NULL: never, or an attempt has begun.
ALTER TABLE stowhand_jobs ADD COLUMN expires_at INTEGER;

CREATE INDEX stowhand_jobs_expiring ON stowhand_jobs (expires_at) WHERE expires_at IS NOT NULL;
