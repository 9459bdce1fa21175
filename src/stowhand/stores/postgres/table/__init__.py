"""A user's table in PostgreSQL, behind ``TableStore``.

table.py         PostgresTable: opens everything below, and is what the facade sees
home.py          what the parts share: address, names, statements, clock
statements.sql   every statement; composing.py fills in the user's names, quoted
claiming, settling, asking, logs, ears (LISTEN), transaction (hold, handed)      on the loop
heart.py         blocking, for the heartbeat's thread
catalog.py       what there is and what is wrong with it (facts, findings, column_types, mending, glance)
"""

from stowhand.stores.postgres.table.table import PostgresTable

__all__ = ["PostgresTable"]
