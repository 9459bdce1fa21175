"""A user's table in PostgreSQL, behind ``TableStore``.

table.py         PostgresTable: opens everything below, and is what the facade sees
context.py       what the parts share: address, names, statements, clock
statements.sql   every statement; composer.py fills in the user's names, quoted
plan.py          statements for the parts that the queue has too (../shared)
claiming (sifter), asking, logs      on the loop
transaction.py   attempts in transactions (held_transaction, handler_connection)
heartbeats.py    for the loop of the heartbeater's thread
checks.py        what is wrong with the table (catalog, columns, identity, sample), and the DDL that mends it (fixes)
"""

from stowhand.stores.postgres.table.table import PostgresTable

__all__ = ["PostgresTable"]
