"""SQLite: the queue that we own, and any table of a user's."""
