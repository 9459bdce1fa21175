"""One write of several in a transaction, which the file may refuse without harm to the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from stowhand.stores.database.sqlite_trouble import concerns_call


def attempt(connection: sqlite3.Connection, write: Callable[[], object]) -> Exception | None:
    """Write under a savepoint; gives why the file refuses it, and then nothing was written."""
    connection.execute("SAVEPOINT stowhand_one")
    try:
        write()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        # After a full disk, or a trigger's RAISE(ROLLBACK), the whole transaction is gone; the caller gets that error.
        if concerns_call(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO stowhand_one")
        connection.execute("RELEASE stowhand_one")
        return error
    connection.execute("RELEASE stowhand_one")
    return None


def check_written(cursor: sqlite3.Cursor, wanted: int = 1) -> None:
    """An application's trigger can keep a row unchanged without an error (RAISE(IGNORE)): SQLite does not report it."""
    if cursor.rowcount < wanted:
        raise sqlite3.IntegrityError(f"a trigger keeps {wanted - cursor.rowcount} of {wanted} rows as they are")
