"""SQLAlchemy 2: connections and sessions, synchronous and asynchronous, over any of its drivers.

Everything runs on a ``Connection``: that of a session's transaction, or inside ``run_sync`` of an asynchronous object,
where its driver can be awaited. So SQLAlchemy starts its own transaction, and reports its end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import MissingGreenlet, StatementError, UnboundExecutionError

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import ConnectionCheck, PendingCommit
from stowhand.stores.callers.sqlite import AiosqliteCaller, SqliteCaller

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


class PendingCommits:
    """Jobs enqueued in one connection's transaction, each with its open savepoints."""

    def __init__(self) -> None:
        self._pending: list[tuple[PendingCommit, tuple[str, ...]]] = []

    def add(self, connection: Connection, pending: PendingCommit) -> None:
        """Show the jobs at the commit, and drop them with a rollback that undoes them."""
        self._pending.append((pending, _savepoints(connection)))

    def on_commit(self, *_: Any) -> None:
        """Show all jobs. SQLAlchemy calls this right before the commit."""
        pending, self._pending = self._pending, []
        for commit, _ in pending:
            commit.show()

    def on_rollback(self, *_: Any) -> None:
        """Drop all jobs."""
        self._pending = []

    def on_savepoint_rollback(self, _: Connection, name: str, context: object) -> None:
        """Drop the jobs enqueued since this savepoint."""
        self._pending = [(commit, savepoints) for commit, savepoints in self._pending if name not in savepoints]


_PENDING_COMMITS: WeakKeyDictionary[Connection, PendingCommits] = WeakKeyDictionary()


def pending_commits_of(connection: Connection) -> PendingCommits:
    """Return the connection's pending commits, which listen to its events from the first call on."""
    commits = _PENDING_COMMITS.get(connection)
    if commits is None:
        commits = _PENDING_COMMITS[connection] = PendingCommits()
        event.listen(connection, "commit", commits.on_commit)
        event.listen(connection, "rollback", commits.on_rollback)
        event.listen(connection, "rollback_savepoint", commits.on_savepoint_rollback)
    return commits


def _savepoints(connection: Connection) -> tuple[str, ...]:
    """Return the names of open savepoints. The event of their start comes before they have names."""
    names, nested = [], connection.get_nested_transaction()
    while nested is not None:
        names.append(nested._savepoint)  # noqa: SLF001
        nested = nested._previous_nested  # noqa: SLF001
    return tuple(names)


T = TypeVar("T")
RunOnConnection = Callable[[Callable[["Connection"], Any]], Any]
"""Runs some work on the connection, and returns its result or an awaitable of it."""

_AUTOCOMMIT_MESSAGE = (
    "this SQLAlchemy connection is in AUTOCOMMIT: each statement is committed by itself, and commit() and"
    " rollback() do nothing. Use another isolation level: engine.execution_options(isolation_level=…)"
)


def of_connection(connection: Connection) -> SqlAlchemyCaller:
    """Make the caller of a ``Connection``."""
    return SqlAlchemyCaller(connection.dialect.name, lambda work: _run_synchronous(lambda: work(connection)))


def of_session(session: Session) -> SqlAlchemyCaller:
    """Make the caller of a ``Session``."""
    return SqlAlchemyCaller(_database(session), lambda work: _run_synchronous(lambda: work(session.connection())))


def of_scoped_session(scoped_session: scoped_session[Session]) -> SqlAlchemyCaller:
    """Make the caller of the session of a ``scoped_session``."""
    return of_session(scoped_session())


def of_async_connection(connection: AsyncConnection) -> SqlAlchemyCaller:
    """Make the caller of an ``AsyncConnection``."""
    return SqlAlchemyCaller(connection.dialect.name, connection.run_sync)


def of_async_session(session: AsyncSession) -> SqlAlchemyCaller:
    """Make the caller of an ``AsyncSession``."""
    sync_session = session.sync_session
    return SqlAlchemyCaller(
        _database(sync_session), lambda work: session.run_sync(lambda _: work(sync_session.connection()))
    )


def of_async_scoped_session(scoped_session: async_scoped_session[AsyncSession]) -> SqlAlchemyCaller:
    """Make the caller of the session of an ``async_scoped_session``."""
    return of_async_session(scoped_session())


class SqlAlchemyCaller:
    """A connection, or that of a session's transaction."""

    def __init__(self, database: str, run_on_connection: RunOnConnection) -> None:
        self.database = database
        self._run_on_connection = run_on_connection

    def ask(self, function: str, value: str, check: ConnectionCheck) -> Any:
        return self._run_on_connection(lambda connection: _ask(connection, function, value, check))

    def run(self, work: Callable[[sqlite3.Connection], T]) -> Any:
        return self._run_on_connection(lambda connection: _run(connection, work))

    def add_pending(self, pending: PendingCommit) -> Any:
        return self._run_on_connection(lambda connection: pending_commits_of(connection).add(connection, pending))


def _database(session: Session) -> str:
    if session.twophase:
        raise ConfigurationError(
            "this session commits in two phases (twophase=True), and PostgreSQL prepares no transaction that wakes"
            " workers: enqueue in a session of its own, when this one has committed"
        )
    try:
        return session.get_bind().dialect.name
    except UnboundExecutionError:
        raise ConfigurationError(
            "this session has no bind that serves every statement: bind it (sessionmaker(engine)), or hand over the"
            " connection of one of its binds: session.connection(bind_arguments={'mapper': Order})"
        ) from None


def _run_synchronous(work: Callable[[], T]) -> T:
    """Run work of a synchronous object. Raise ConfigurationError if it belongs to an asynchronous one."""
    try:
        return work()
    except (MissingGreenlet, StatementError) as error:
        if not isinstance(getattr(error, "orig", error), MissingGreenlet):
            raise
        raise ConfigurationError(
            "this connection or session belongs to an asynchronous one, and works only within its run_sync: hand over"
            " the asynchronous one, `await task.enqueue_in(async_session, …)`"
        ) from None


def _ask(connection: Connection, function: str, value: str, check: ConnectionCheck) -> Any:
    # Check the driver: SQLAlchemy reports a transaction for connections in AUTOCOMMIT too.
    pooled = connection.connection
    if getattr(pooled.dbapi_connection, "autocommit", False) is True:
        raise ConfigurationError(_AUTOCOMMIT_MESSAGE)
    check(pooled.driver_connection)
    # Escape colons in the schema's name, which are not parameters. SQLAlchemy finds no parameter in `:job::text`.
    escaped = function.replace(":", "\\:")
    return connection.execute(text(f"select {escaped}(cast(:job as text))"), {"job": value}).scalar_one()


def _run(connection: Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    # SQLAlchemy starts its transaction with the first statement, and so does an application's own "begin" event.
    connection.exec_driver_sql("SELECT 1")
    dbapi_connection: Any = connection.connection.dbapi_connection
    driver: Any = connection.connection.driver_connection
    is_autocommit = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
    if is_autocommit and not driver.in_transaction:
        raise ConfigurationError(_AUTOCOMMIT_MESSAGE)
    if driver is dbapi_connection:
        return SqliteCaller(driver).run(work)
    result: T = dbapi_connection.run_async(lambda aiosqlite_connection: AiosqliteCaller(aiosqlite_connection).run(work))
    return result
