"""Enqueueing on a connection that is not ours, inside its owner's transaction.

The owner commits or rolls back; nothing here ever commits. Where no transaction is open, one is begun, so that the
owner's ``commit()`` (or the end of ``with connection:``) decides, in every isolation level of Python's. A connection
that has no such commit is refused, unless its owner has begun a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.callers.caller import SqliteHost
from stowhand.stores.callers.recognising import sqlite_caller
from stowhand.stores.database.sqlite_host import plain_host
from stowhand.stores.database.sqlite_trouble import is_busy
from stowhand.stores.sqlite.queue import enqueue, schema, trouble
from stowhand.stores.sqlite.queue.connections import Connections


def enqueue_in(connections: Connections, connection: object, job: NewJob) -> Job | Awaitable[Job]:
    """Enqueue one job there. Raises ConfigurationError for a connection to another file."""
    if isinstance(connection, sqlite3.Connection):
        with plain_host(connection) as host:
            return _checked(connections, host, job)
    made: Job | Awaitable[Job] = sqlite_caller(connection).run(lambda host: _checked(connections, host, job))
    return made


def _checked(connections: Connections, host: SqliteHost, job: NewJob) -> Job:
    path = connections.path
    # What enqueueing asks of a connection, a host answers.
    raw = cast("sqlite3.Connection", host)
    try:
        _check_file(host, path)
        schema.check(raw, path)
        return _enqueue(connections, host, raw, job)
    except sqlite3.OperationalError as error:
        if is_busy(error):
            raise StoreUnreachable(
                f"{path}: this transaction cannot begin to write, because it began as a reader and another one"
                " wrote since, or has not ended within this connection's timeout. Begin it with BEGIN IMMEDIATE"
            ) from error
        raise trouble.explain(error, path) from error


def _enqueue(connections: Connections, host: SqliteHost, raw: sqlite3.Connection, job: NewJob) -> Job:
    began = not host.in_transaction
    if began:
        _begin(host, connections.path)
    host.execute("SAVEPOINT stowhand_guest")
    try:
        with trouble.refusing():
            tx = connections.begun(raw)
            written = enqueue.find(tx, enqueue.add(tx, job), job)
    except BaseException:
        if host.in_transaction:
            host.execute("ROLLBACK TO stowhand_guest")
            host.execute("RELEASE stowhand_guest")
            if began:
                host.execute("ROLLBACK")
        raise
    host.execute("RELEASE stowhand_guest")
    return written


def _begin(host: SqliteHost, path: Path) -> None:
    """Another writer is waited for as long as the owner's connection waits for one."""
    if host.refusal is not None:
        raise ConfigurationError(host.refusal)
    try:
        host.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            raise StoreUnreachable(
                f"{path}: another writer has not ended within this connection's timeout; nothing is enqueued: try again"
            ) from error
        raise


def _check_file(host: SqliteHost, path: Path) -> None:
    named = host.execute("PRAGMA database_list").fetchall()
    name = next((file for _, schema_name, file in named if schema_name == "main"), "")
    if not name or not path.exists() or not path.samefile(name):
        raise ConfigurationError(
            f"this connection is to {name or 'a database in memory'}, and the queue is {path}: one transaction can only"
            " cover one file, so enqueue without a connection, or keep the queue in the application's own file"
        )
