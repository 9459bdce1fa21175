-- Which scheduler last reported that it schedules an item, and when; and since when the item has its spec.
ALTER TABLE stowhand_crontab ADD COLUMN scheduled_by TEXT;
ALTER TABLE stowhand_crontab ADD COLUMN scheduled_at INTEGER;
ALTER TABLE stowhand_crontab ADD COLUMN spec_since INTEGER;
