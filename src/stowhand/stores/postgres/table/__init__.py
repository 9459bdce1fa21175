"""A user's table in PostgreSQL, behind ``TableStore``.

table.py         PostgresTable: opens everything below, and is what the facade sees
context.py       what the parts share: address, names, statements, clock
statements.sql   every statement; composer.py fills in the user's names, quoted
plan.py          statements for the parts that the queue has too (../shared)
claims.py        claims; record by record, where one of them is bad
operations.py    what people and handlers ask of records; execution logs
transaction.py   attempts in transactions (held_transaction.py)
heartbeats.py    for the loop of the heartbeater's thread
checks.py        what is wrong with the table: facts and statements from catalog.py
"""

from stowhand.stores.postgres.table.table import PostgresTable

__all__ = ["PostgresTable"]
