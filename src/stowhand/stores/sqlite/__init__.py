"""SQLite: the queue that we own, any table of a user's, and what both share."""
