"""SQLAlchemy 2: connections and sessions, synchronous and asynchronous, over any of its drivers.

All is done on a ``Connection``: a session is asked for the one of its transaction, and an asynchronous object runs the
work where its driver can be awaited (``run_sync``). So SQLAlchemy begins its own transaction, and reports its end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import MissingGreenlet, StatementError, UnboundExecutionError

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import Check, Held
from stowhand.stores.callers.sqlite import AiosqliteCaller, SqliteCaller

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


class Commits:
    """Of one connection: what was enqueued in its transaction, and in which savepoints."""

    def __init__(self) -> None:
        self._held: list[tuple[Held, tuple[str, ...]]] = []

    def add(self, connection: Connection, held: Held) -> None:
        """It is shown at the commit, and forgotten with whatever undoes it."""
        self._held.append((held, _savepoints(connection)))

    def committed(self, *_: Any) -> None:
        """The whole transaction is, in a moment: SQLAlchemy tells of it right before."""
        held, self._held = self._held, []
        for one, _within in held:
            one.show()

    def rolled_back(self, *_: Any) -> None:
        """The whole transaction is."""
        self._held = []

    def undone(self, _: Connection, name: str, context: object) -> None:
        """This savepoint is, with all that was done since."""
        self._held = [(one, within) for one, within in self._held if name not in within]


_KNOWN: WeakKeyDictionary[Connection, Commits] = WeakKeyDictionary()


def commits_of(connection: Connection) -> Commits:
    """It listens from the first time on."""
    found = _KNOWN.get(connection)
    if found is None:
        found = _KNOWN[connection] = Commits()
        event.listen(connection, "commit", found.committed)
        event.listen(connection, "rollback", found.rolled_back)
        event.listen(connection, "rollback_savepoint", found.undone)
    return found


def _savepoints(connection: Connection) -> tuple[str, ...]:
    """The names of those that are open. The event of their begin comes before they have one."""
    names, nested = [], connection.get_nested_transaction()
    while nested is not None:
        names.append(nested._savepoint)  # noqa: SLF001
        nested = nested._previous_nested  # noqa: SLF001
    return tuple(names)


T = TypeVar("T")
Runs = Callable[[Callable[["Connection"], Any]], Any]
"""Does some work on the connection, and gives what it gives, or an awaitable of it."""

_AUTOCOMMIT = (
    "this connection of SQLAlchemy's is in AUTOCOMMIT: each statement is committed by itself, and commit() and"
    " rollback() do nothing. Use another isolation level: engine.execution_options(isolation_level=…)"
)


def of_connection(given: Connection) -> SqlAlchemyCaller:
    """Make the caller of a ``Connection``."""
    return SqlAlchemyCaller(given.dialect.name, lambda work: _unawaited(lambda: work(given)))


def of_session(given: Session) -> SqlAlchemyCaller:
    """Make the caller of a ``Session``."""
    return SqlAlchemyCaller(_database(given), lambda work: _unawaited(lambda: work(given.connection())))


def of_scoped_session(given: scoped_session[Session]) -> SqlAlchemyCaller:
    """Make the caller of the session of a ``scoped_session``."""
    return of_session(given())


def of_async_connection(given: AsyncConnection) -> SqlAlchemyCaller:
    """Make the caller of an ``AsyncConnection``."""
    return SqlAlchemyCaller(given.dialect.name, given.run_sync)


def of_async_session(given: AsyncSession) -> SqlAlchemyCaller:
    """Make the caller of an ``AsyncSession``."""
    inside = given.sync_session
    return SqlAlchemyCaller(_database(inside), lambda work: given.run_sync(lambda _: work(inside.connection())))


def of_async_scoped_session(given: async_scoped_session[AsyncSession]) -> SqlAlchemyCaller:
    """Make the caller of the session of an ``async_scoped_session``."""
    return of_async_session(given())


class SqlAlchemyCaller:
    """A connection, or the one of a session's transaction."""

    def __init__(self, database: str, runs: Runs) -> None:
        self.database = database
        self._runs = runs

    def ask(self, function: str, value: str, check: Check) -> Any:
        return self._runs(lambda connection: _ask(connection, function, value, check))

    def run(self, work: Callable[[sqlite3.Connection], T]) -> Any:
        return self._runs(lambda connection: _run(connection, work))

    def hear(self, held: Held) -> Any:
        return self._runs(lambda connection: commits_of(connection).add(connection, held))


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
            "this session has no bind that serves every statement: give it one (sessionmaker(engine)), or hand over the"
            " connection of one of its binds: session.connection(bind_arguments={'mapper': Order})"
        ) from None


def _unawaited(work: Callable[[], T]) -> T:
    """Of a synchronous object, which may be one of an asynchronous owner's."""
    try:
        return work()
    except (MissingGreenlet, StatementError) as error:
        if not isinstance(getattr(error, "orig", error), MissingGreenlet):
            raise
        raise ConfigurationError(
            "this connection or session is the inside of an asynchronous one, and works within its run_sync alone: hand"
            " over the asynchronous one, `await task.enqueue_in(async_session, …)`"
        ) from None


def _ask(connection: Connection, function: str, value: str, check: Check) -> Any:
    # The driver is asked: SQLAlchemy says of a connection in AUTOCOMMIT, too, that it is in a transaction.
    beneath = connection.connection
    if getattr(beneath.dbapi_connection, "autocommit", False) is True:
        raise ConfigurationError(_AUTOCOMMIT)
    check(beneath.driver_connection)
    # A colon in the schema's name is none of a parameter; in `:job::text` SQLAlchemy would read no parameter at all.
    escaped = function.replace(":", "\\:")
    return connection.execute(text(f"select {escaped}(cast(:job as text))"), {"job": value}).scalar_one()


def _run(connection: Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    # SQLAlchemy begins with its first statement, and so does an application that begins by itself (an event "begin").
    connection.exec_driver_sql("SELECT 1")
    beneath: Any = connection.connection.dbapi_connection
    driver: Any = connection.connection.driver_connection
    ends_by_itself = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
    if ends_by_itself and not driver.in_transaction:
        raise ConfigurationError(_AUTOCOMMIT)
    if driver is beneath:
        return SqliteCaller(driver).run(work)
    done: T = beneath.run_async(lambda inside: AiosqliteCaller(inside).run(work))
    return done
