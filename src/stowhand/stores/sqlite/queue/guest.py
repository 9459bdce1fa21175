"""Enqueueing on a connection that is not ours, inside its owner's transaction.

The owner commits or rolls back; nothing here ever commits. Where no transaction is open, one is begun, so that the
owner's ``connection.commit()`` (or the end of ``with connection:``) decides, in every isolation level of Python's.
Only ``autocommit=True`` (Python 3.12) has no such commit: there the owner must have begun a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stowhand.clock import stopwatch
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.validation import wrong_connection
from stowhand.stores.database.sqlite_connection import BUSY_DEADLINE
from stowhand.stores.database.sqlite_trouble import is_busy
from stowhand.stores.sqlite.queue import enqueue, schema, trouble
from stowhand.stores.sqlite.queue.connections import Connections


def enqueue_in(connections: Connections, connection: object, job: NewJob) -> Job:
    """Enqueue one job there. Raises ConfigurationError for a connection to another file."""
    if not isinstance(connection, sqlite3.Connection):
        raise wrong_connection(connection, "an sqlite3.Connection")
    path = connections.path
    with _plain(connection):
        try:
            _check_file(connection, path)
            schema.check(connection, path)
            return _enqueue(connections, connection, job)
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise StoreUnreachable(
                    f"{path}: this transaction cannot begin to write, because it began as a reader and another one"
                    " wrote since, or because another writer did not end in time. Begin it with BEGIN IMMEDIATE"
                ) from error
            raise trouble.explain(error, path) from error


def _enqueue(connections: Connections, connection: sqlite3.Connection, job: NewJob) -> Job:
    began = not connection.in_transaction
    if began:
        _begin(connection)
    connection.execute("SAVEPOINT stowhand_guest")
    try:
        with trouble.refusing():
            tx = connections.begun(connection)
            written = enqueue.find(tx, enqueue.add(tx, job))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO stowhand_guest")
            connection.execute("RELEASE stowhand_guest")
            if began:
                connection.execute("ROLLBACK")
        raise
    connection.execute("RELEASE stowhand_guest")
    return written


def _begin(connection: sqlite3.Connection) -> None:
    if getattr(connection, "autocommit", None) is True:
        raise ConfigurationError(
            "this connection has autocommit=True, so its commit() does nothing: begin a transaction first"
            " (connection.execute('BEGIN IMMEDIATE')), and end it with connection.execute('COMMIT')"
        )
    deadline = stopwatch() + BUSY_DEADLINE
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or stopwatch() > deadline:
                raise
        else:
            return


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    name = next(
        (file for _, schema_name, file in connection.execute("PRAGMA database_list") if schema_name == "main"), ""
    )
    if not name or not path.exists() or not path.samefile(name):
        raise ConfigurationError(
            f"this connection is to {name or 'a database in memory'}, and the queue is {path}: one transaction can only"
            " cover one file, so enqueue without a connection, or keep the queue in the application's own file"
        )


@contextmanager
def _plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Rows as tuples and texts as str, whatever the owner of the connection has set."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory
