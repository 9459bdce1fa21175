"""Writes inside a transaction of the caller: enqueues, steps and events of workflows.

The caller commits or rolls back; nothing here ever commits. If no transaction is open, this starts one. Then the
caller's ``commit()`` or the end of ``with connection:`` decides, in every isolation level of Python's sqlite3.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.callers.caller import SQLITE
from stowhand.stores.callers.connection_types import caller_to
from stowhand.stores.database.sqlite_errors import is_busy
from stowhand.stores.database.sqlite_file import IN_MEMORY_NAME
from stowhand.stores.sqlite.queue import enqueue, error_translation, schema
from stowhand.stores.sqlite.queue.transaction import Transaction

_IN_MEMORY = "a database in memory"
T = TypeVar("T")
MakeTransaction = Callable[[sqlite3.Connection], Transaction]


def enqueue_in(
    connection: object, job: NewJob, make_transaction: MakeTransaction, path: Path | None = None
) -> Job | Awaitable[Job]:
    """Enqueue one job in the transaction of this connection. The other arguments are as for ``write_in``."""
    return write_in(connection, lambda tx: enqueue.find(tx, enqueue.add(tx, job), job), make_transaction, path)


def write_in(
    connection: object,
    work: Callable[[Transaction], T],
    make_transaction: MakeTransaction,
    path: Path | None = None,
    *,
    call: str = "enqueue_in",
) -> T | Awaitable[T]:
    """Run work in the transaction of this connection.

    Raise ConfigurationError for a connection to another file, and for one whose owner could not commit.

    Args:
        connection: the caller's connection.
        work: what to write.
        make_transaction: returns a transaction on the driver's connection.
        path: the required file, if any.
        call: the name of the call, for errors.

    """

    def checked(raw: sqlite3.Connection) -> T:
        file = _file_of(raw)
        if path is not None:
            _check_file(file, path)
        return _checked_write(raw, work, make_transaction, path or Path(file or _IN_MEMORY))

    result: T | Awaitable[T] = caller_to(SQLITE, connection, call).run(checked)
    return result


def _checked_write(
    raw: sqlite3.Connection, work: Callable[[Transaction], T], make_transaction: MakeTransaction, path: Path
) -> T:
    try:
        schema.check(raw, path)
        return _write(raw, work, make_transaction, path)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            raise StoreUnreachable(
                f"{path}: this transaction cannot start to write: it started as a reader, and another transaction has"
                " written since or did not end within this connection's timeout; start it with BEGIN IMMEDIATE"
            ) from error
        raise error_translation.explain(error, path) from error


def _write(
    raw: sqlite3.Connection, work: Callable[[Transaction], T], make_transaction: MakeTransaction, path: Path
) -> T:
    starts_transaction = not raw.in_transaction
    if starts_transaction:
        _begin(raw, path)
    raw.execute("SAVEPOINT stowhand_enqueue")
    try:
        with error_translation.refusing():
            result = work(make_transaction(raw))
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK TO stowhand_enqueue")
            raw.execute("RELEASE stowhand_enqueue")
            if starts_transaction:
                raw.execute("ROLLBACK")
        raise
    raw.execute("RELEASE stowhand_enqueue")
    return result


def _begin(raw: sqlite3.Connection, path: Path) -> None:
    """Start a write transaction. It waits for another writer for the timeout of the caller's connection."""
    try:
        raw.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            raise StoreUnreachable(
                f"{path}: another writer did not end within this connection's timeout; nothing was written: try again"
            ) from error
        raise


def _file_of(raw: sqlite3.Connection) -> str:
    """Return the file of the connection; empty for a database in memory."""
    databases = raw.execute("PRAGMA database_list").fetchall()
    return next((file for _, schema_name, file in databases if schema_name == "main"), "")


def _check_file(file: str, path: Path) -> None:
    if not file and path.name == IN_MEMORY_NAME:
        return
    if not file or not path.exists() or not path.samefile(file):
        raise ConfigurationError(
            f"this connection is to {file or _IN_MEMORY}, and the queue is {path}: one transaction can only"
            " cover one file, so call without a connection, or keep the queue in the application's own file"
        )
