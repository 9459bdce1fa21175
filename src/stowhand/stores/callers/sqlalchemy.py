"""SQLAlchemy 2: connections and sessions, synchronous and asynchronous, over any of its drivers.

All is done on a ``Connection``: a session is asked for the one of its transaction, and an asynchronous object runs the
work where its driver can be awaited (``run_sync``). So SQLAlchemy begins its own transaction, and its events see the
statements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, MissingGreenlet, StatementError, UnboundExecutionError

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import Check, Held, SqliteHost
from stowhand.stores.callers.commits import commits_of

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

T = TypeVar("T")
Runs = Callable[[Callable[["Connection"], Any]], Any]
"""Does some work on the connection, and gives what it gives, or an awaitable of it."""

_AUTOCOMMIT = (
    "this connection of SQLAlchemy's is in AUTOCOMMIT: each statement is committed by itself, and commit() and"
    " rollback() do nothing. Use another isolation level: engine.execution_options(isolation_level=…)"
)


def sqlalchemy_caller(kind: str, given: Any) -> SqlAlchemyCaller:
    """Of an object of this kind (recognising.py)."""
    if kind.endswith("scoped_session"):
        given, kind = given(), kind.replace("scoped_", "")
    if kind == "session":
        return SqlAlchemyCaller(_database(given), lambda work: _unawaited(lambda: work(given.connection())))
    if kind == "async_session":
        inside = given.sync_session
        return SqlAlchemyCaller(_database(inside), lambda work: given.run_sync(lambda _: work(inside.connection())))
    if kind == "async_connection":
        return SqlAlchemyCaller(given.dialect.name, given.run_sync)
    return SqlAlchemyCaller(given.dialect.name, lambda work: _unawaited(lambda: work(given)))


class SqlAlchemyCaller:
    """A connection, or the one of a session's transaction."""

    def __init__(self, database: str, runs: Runs) -> None:
        self.database = database
        self._runs = runs

    def ask(self, function: str, value: str, check: Check) -> Any:
        return self._runs(lambda connection: _ask(connection, function, value, check))

    def run(self, work: Callable[[SqliteHost], T]) -> Any:
        return self._runs(lambda connection: work(_Host(connection)))

    def hear(self, held: Held) -> Any:
        """Tell it of the commit; gives ``None``, or an awaitable of it."""
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


class _Host:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = (), /) -> Any:
        try:
            return self._connection.exec_driver_sql(sql, values or None)
        except DBAPIError as error:
            raise (error.orig or error) from error

    @property
    def in_transaction(self) -> bool:
        return bool(self._driver.in_transaction)

    @property
    def refusal(self) -> str | None:
        # An application that begins by itself (an event "begin") has begun: something has been executed already.
        driver = self._driver
        ends_by_itself = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return _AUTOCOMMIT if ends_by_itself else None

    @property
    def _driver(self) -> Any:
        return self._connection.connection.driver_connection
