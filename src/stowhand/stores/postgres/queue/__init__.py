"""The PostgreSQL queue: the reference store.

migrations/   the schema's tables
functions/    the schema's functions, its whole protocol; grants.sql holds the rights of the roles
reader        runs the questions of ../../kernel
statements.sql   the calls of the functions
store.py      PostgresStore: opens everything below, serves workers, and has the parts as attributes
context.py    the state that the parts share: address, schema, statements, clock
claims, settlements, producer, administrator, operations, timetable, flow_tables, installer      on the loop
idle_announcement      whether this worker needs a notification, on the listening connection
heartbeats    for the loop of the heartbeater's thread
rows.py       conversion of rows to jobs
"""

from stowhand.stores.postgres.queue.store import PostgresStore

__all__ = ["PostgresStore"]
