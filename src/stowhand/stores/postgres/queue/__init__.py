"""The PostgreSQL queue: the reference store.

migrations/   the schema's tables
functions/    the schema's functions, its whole protocol; grants.sql says which role may call what
reader        asks what ../../kernel asks of both engines
statements.sql   how they are called
store.py      PostgresStore: opens everything below, is what a worker sees, and has the parts as attributes
context.py    what the parts share: address, schema, statements, clock
claims, settlements, producer, administrator, operations, timetable, flow_tables, installer      on the loop
idle_announcement      whether this worker needs a notification, on the listening connection
heartbeats    for the loop of the heartbeater's thread
rows.py       rows become jobs
"""

from stowhand.stores.postgres.queue.store import PostgresStore

__all__ = ["PostgresStore"]
