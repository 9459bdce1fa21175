-- Workers enroll the flags that they leave alone; NULL: a function says which, anew each time.
ALTER TABLE stowhand_workers ADD COLUMN forbidden_flags TEXT DEFAULT '[]';
