-- Tasks that are paused; the empty name stands for all jobs without a queue. Programs of version 6 do not look here.
CREATE TABLE stowhand_pauses (
    task TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    CONSTRAINT task_is_text CHECK (typeof(task) = 'text' AND length(task) <= 128)
) WITHOUT ROWID;
