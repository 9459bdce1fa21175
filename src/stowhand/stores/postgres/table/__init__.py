"""A user's table in PostgreSQL, behind ``TableStore``.

table.py         PostgresTable: the backend, which opens the parts below
context.py       the shared state of the parts: address, names, statements, time
statements.sql   every statement; composer.py fills in the user's names, quoted
plan.py          statements for the shared settler (../shared)
claims.py        claims; record by record, if one of them is bad
operations.py    operations of users and handlers on records; execution logs
transaction.py   attempts in transactions (held_transaction.py)
heartbeats.py    renews and resets leases, on the loop of the heartbeater's thread
checks.py        problems of the table; catalog.py: reads the catalog, and writes SQL
"""

from stowhand.stores.postgres.table.table import PostgresTable

__all__ = ["PostgresTable"]
