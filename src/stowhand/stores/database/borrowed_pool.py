"""The pool of an application. It is never opened or closed here, and its connections keep their settings."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.stores.database.address import STATEMENT_DEADLINE_SECONDS, Address
from stowhand.stores.database.link import ONE_SNAPSHOT, READ_ONLY, Row, Session, Values, is_idle, rows
from stowhand.stores.database.pool_places import POOL_ADVICE
from stowhand.stores.database.timestamps import read_timestamps_as_utc

_CONNECT_KEYWORDS = ("autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory")
"""Keywords of psycopg's ``connect`` that are not connection parameters."""


class BorrowedPool:
    """A ``psycopg_pool.AsyncConnectionPool`` with the interface of our own pool."""

    def __init__(self, pool: object, *, prepared: bool, read_timeout_seconds: float | None = None) -> None:
        """``read_timeout_seconds``: if not ``None``, our statements are read-only and have this time limit."""
        self._pool = _checked(pool)
        self._read_timeout_seconds = read_timeout_seconds
        self._process = 0
        """The id of the process that used the pool first."""
        self.address = Address(self._pool.conninfo, self._parameters)
        """The parameters of the pool's connections, for connections outside the pool."""
        self.prepared = prepared and self._keywords.get("prepare_threshold", 5) is not None

    @property
    def _keywords(self) -> dict[str, Any]:
        return dict(self._pool.kwargs or {})

    @property
    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self._keywords.items() if name not in _CONNECT_KEYWORDS}

    @property
    def size(self) -> int:
        """The maximum number of connections."""
        return int(self._pool.max_size)

    async def rows(self, role: str, statement: bytes, values: Values = ()) -> list[Row]:
        """Run one statement in a transaction of its own."""
        async with self.connection(role) as connection:
            return await rows(connection, statement, values)

    @asynccontextmanager
    async def connection(self, role: str) -> AsyncIterator[Session]:
        """Borrow a connection for our own statements. Raise StoreUnreachable if the pool has none in time."""
        async with self._borrow(autocommit=True) as connection:
            yield BorrowedConnection(
                connection, prepared=self.prepared, read_timeout_seconds=self._read_timeout_seconds
            )

    @asynccontextmanager
    async def application_connection(self, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Give a connection to the application. Commit at the end of the block, or roll back if it raises."""
        # The second context manager commits or rolls back. It does not close a connection of a pool.
        async with self._borrow(autocommit=False) as connection, connection:
            yield connection

    async def close(self) -> None:
        """Do nothing: the application closes its pool."""

    @asynccontextmanager
    async def _borrow(self, *, autocommit: bool) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        connection = await self._get()
        try:
            was_autocommit = connection.autocommit
            await connection.set_autocommit(autocommit)
            try:
                yield connection
            finally:
                if is_idle(connection):
                    await connection.set_autocommit(was_autocommit)
        finally:
            # If a statement was interrupted (cancelled, connection lost), the pool discards the connection.
            await self._pool.putconn(connection)

    async def _get(self) -> psycopg.AsyncConnection[Any]:
        """Raise StoreUnreachable if none is free, the server is unreachable, or the pool is not open."""
        from psycopg_pool import PoolTimeout

        self._process = self._process or os.getpid()
        if self._process != os.getpid():
            raise StoreUnreachable(
                f"{self.address}: the pool was in use before this process was forked, and its connections belong to the"
                " other process: create the pool and its App in each process"
            )

        timeout_seconds = min(self._pool.timeout, STATEMENT_DEADLINE_SECONDS)
        try:
            connection: psycopg.AsyncConnection[Any] = await self._pool.getconn(timeout_seconds)
        except PoolTimeout:
            raise StoreUnreachable(
                f"{self.address}: no connection of the pool became free within {timeout_seconds:g} s{POOL_ADVICE}"
            ) from None
        except psycopg.OperationalError as error:
            raise StoreUnreachable(f"{self.address}: cannot get a connection of the pool: {error}") from None
        return connection


class BorrowedConnection:
    """A borrowed connection in autocommit. Our own cursors leave its row factory and formats alone."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], *, prepared: bool, read_timeout_seconds: float | None = None
    ) -> None:
        self._connection = connection
        self._prepared = prepared
        self._read_timeout_seconds = read_timeout_seconds
        self.needs_transaction = read_timeout_seconds is not None
        """Whether the connection is read-only. Its owner chooses the isolation level."""
        self._cursor: psycopg.AsyncCursor[Row] | None = None

    def reader(self) -> psycopg.AsyncCursor[Row]:
        """Return a cursor that reads binary rows as tuples, with timestamps in UTC."""
        if self._cursor is None:
            self._cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
            self._cursor.format = psycopg.pq.Format.BINARY
            read_timestamps_as_utc(self._cursor)
        return self._cursor

    def prepare_setting(self, should_prepare: bool | None) -> bool | None:
        """Return ``None`` (the owner's setting) or ``False`` (never prepare)."""
        return None if self._prepared else False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Run several statements in one transaction."""
        async with self._connection.transaction() as transaction:
            if self._read_timeout_seconds is not None:
                milliseconds = str(round(self._read_timeout_seconds * 1000))
                await psycopg.AsyncCursor(self._connection).execute(READ_ONLY, [milliseconds])
            yield transaction

    @asynccontextmanager
    async def single_statement(self) -> AsyncIterator[None]:
        """Surround a statement with a read-only transaction, where required."""
        if self._read_timeout_seconds is None or not is_idle(self._connection):
            yield
            return
        async with self.read_transaction():
            yield

    @asynccontextmanager
    async def read_transaction(self, *, one_snapshot: bool = False) -> AsyncIterator[None]:
        """Open a transaction whose BEGIN is sent with the first statement."""
        async with self._connection.pipeline(), self.transaction():
            if one_snapshot:
                await self.execute(ONE_SNAPSHOT)
            yield

    async def execute(self, query: bytes) -> object:
        """Run a text without values, which may contain several statements."""
        return await psycopg.AsyncCursor(self._connection, row_factory=tuple_row).execute(query)


def _checked(pool: object) -> Any:
    try:
        from psycopg_pool import AsyncConnectionPool
    except ImportError:
        is_pool = False
    else:
        is_pool = isinstance(pool, AsyncConnectionPool)
    if not is_pool:
        raise ConfigurationError(
            f"pool: a {type(pool).__module__}.got {type(pool).__qualname__}; it must be a"
            " psycopg_pool.AsyncConnectionPool"
        )
    checked_pool: Any = pool
    if callable(checked_pool.conninfo) or callable(checked_pool.kwargs):
        raise ConfigurationError(
            "pool: its conninfo or kwargs are a function; the connections that a worker keeps for itself need fixed"
            " ones: make the pool with text and a dict, or use a connection string"
        )
    return checked_pool
