"""The PostgreSQL queue: the reference store.

migrations/   the schema's tables
functions/    the schema's functions, its whole protocol; grants.sql says which role may call what
statements.sql   how they are called
store.py      PostgresStore: opens everything below, and is what a worker sees
home.py       what the parts share: address, schema, statements, clock
claiming, settling, producing, inspecting, administering, timetable, schema, ears (LISTEN)      on the loop
heart.py      blocking, for the heartbeat's thread
roles         the names of the roles
rows.py       rows become jobs
"""

from stowhand.stores.postgres.queue.store import PostgresStore

__all__ = ["PostgresStore"]
