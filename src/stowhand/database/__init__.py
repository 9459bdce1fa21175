"""Connections to PostgreSQL and statements kept in files. Nothing here knows what a job is.

address     what a user may write for "where", as connection parameters; and how to say it without a password
statements  named statements from .sql files, identifiers filled in
trouble     what an error means: try again, reconnect, or the caller's values are at fault
repeating   again, a few times, what was definitely not done
link        one asynchronous connection that comes back by itself, and a pool of them
borrowed    a pool of the application's in the shape of ours
asking      one statement of an application's own
blocking    the same for a thread that may block
"""
