"""The PostgreSQL queue: the reference store.

migrations/   the schema: tables, and the functions that are its whole protocol
statements.sql   how they are called
store.py      PostgresStore: opens everything below, and is what a worker sees
home.py       what the parts share: address, schema, statements, clock
claiming, settling, producing, inspecting, schema, ears (LISTEN)      on the loop
heart.py      blocking, for the heartbeat's thread
rows.py       rows become jobs
"""

from stowhand.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
