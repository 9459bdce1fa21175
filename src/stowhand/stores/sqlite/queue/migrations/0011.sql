-- The revision at which another job last took this one's place under its key; NULL: none did. Who waits for its end is told.
ALTER TABLE stowhand_jobs ADD COLUMN replaced INTEGER;
ALTER TABLE stowhand_history ADD COLUMN replaced INTEGER;
