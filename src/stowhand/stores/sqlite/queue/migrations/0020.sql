-- A worker reports threads that outlive their attempts, and that its event loop is blocked.
ALTER TABLE stowhand_workers ADD COLUMN abandoned_threads INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stowhand_workers ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0;
