"""An application's own pool, borrowed from: never opened, never closed; its connections are left as they were found."""

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
"""Keywords of ``connect`` that are no connection parameters."""


class BorrowedPool:
    """A ``psycopg_pool.AsyncConnectionPool`` in the shape of our own pool."""

    def __init__(self, pool: object, *, prepared: bool, read_timeout_seconds: float | None = None) -> None:
        """``read_within``: our own statements only read, each for so many seconds."""
        self._pool = _checked(pool)
        self._read_timeout_seconds = read_timeout_seconds
        self._process = 0
        """That has borrowed from it first."""
        self.address = Address(self._pool.conninfo, self._parameters)
        """How the pool makes its connections, so that others can be made alike."""
        self.prepared = prepared and self._keywords.get("prepare_threshold", 5) is not None

    @property
    def _keywords(self) -> dict[str, Any]:
        return dict(self._pool.kwargs or {})

    @property
    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self._keywords.items() if name not in _CONNECT_KEYWORDS}

    @property
    def size(self) -> int:
        """Connections at most."""
        return int(self._pool.max_size)

    async def rows(self, role: str, statement: bytes, values: Values = ()) -> list[Row]:
        """Run one statement in a transaction of its own."""
        async with self.connection(role) as connection:
            return await rows(connection, statement, values)

    @asynccontextmanager
    async def connection(self, role: str) -> AsyncIterator[Session]:
        """Borrow one for our own statements. Raises StoreUnreachable when the pool gives none in time."""
        async with self._borrow(autocommit=True) as connection:
            yield BorrowedConnection(
                connection, prepared=self.prepared, read_timeout_seconds=self._read_timeout_seconds
            )

    @asynccontextmanager
    async def lend(self, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """One for an application's own statements: committed at the end of the block, rolled back when it raises."""
        # Of a pool, it is not closed by the second.
        async with self._borrow(autocommit=False) as connection, connection:
            yield connection

    async def close(self) -> None:
        """Nothing: it is the application's to close."""

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
            # In the middle of something (cancelled, cut)? Then the pool throws it away, which only it can do.
            await self._pool.putconn(connection)

    async def _get(self) -> psycopg.AsyncConnection[Any]:
        """Raises StoreUnreachable: none is free, the server is away, the pool is not open."""
        from psycopg_pool import PoolTimeout

        self._process = self._process or os.getpid()
        if self._process != os.getpid():
            raise StoreUnreachable(
                f"{self.address}: the pool was in use before this process was forked, and its connections belong to the"
                " other process: open a pool, and make its App, in each process"
            )

        timeout_seconds = min(self._pool.timeout, STATEMENT_DEADLINE_SECONDS)
        try:
            connection: psycopg.AsyncConnection[Any] = await self._pool.getconn(timeout_seconds)
        except PoolTimeout:
            raise StoreUnreachable(
                f"{self.address}: the pool gives no connection: none became free within {timeout_seconds:g} s"
                f"{POOL_ADVICE}"
            ) from None
        except psycopg.OperationalError as error:
            raise StoreUnreachable(f"{self.address}: the pool gives no connection: {error}") from None
        return connection


class BorrowedConnection:
    """A borrowed connection in autocommit, with cursors of ours: its row factory and its formats stay its own."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], *, prepared: bool, read_timeout_seconds: float | None = None
    ) -> None:
        self._connection = connection
        self._prepared = prepared
        self._read_timeout_seconds = read_timeout_seconds
        self.needs_transaction = read_timeout_seconds is not None
        """Where it only reads; its isolation is its owner's."""
        self._cursor: psycopg.AsyncCursor[Row] | None = None

    def reader(self) -> psycopg.AsyncCursor[Row]:
        """A cursor that reads tuples, binary, timestamps in UTC."""
        if self._cursor is None:
            self._cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
            self._cursor.format = psycopg.pq.Format.BINARY
            read_timestamps_as_utc(self._cursor)
        return self._cursor

    def prepare_setting(self, should_prepare: bool | None) -> bool | None:
        """As its owner has set it, or never."""
        return None if self._prepared else False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Several statements, all or none."""
        async with self._connection.transaction() as transaction:
            if self._read_timeout_seconds is not None:
                milliseconds = str(round(self._read_timeout_seconds * 1000))
                await psycopg.AsyncCursor(self._connection).execute(READ_ONLY, [milliseconds])
            yield transaction

    @asynccontextmanager
    async def single_statement(self) -> AsyncIterator[None]:
        """As its owner has it, or only reading."""
        if self._read_timeout_seconds is None or not is_idle(self._connection):
            yield
            return
        async with self.read_transaction():
            yield

    @asynccontextmanager
    async def read_transaction(self, *, one_snapshot: bool = False) -> AsyncIterator[None]:
        """BEGIN goes out with the first statement."""
        async with self._connection.pipeline(), self.transaction():
            if one_snapshot:
                await self.execute(ONE_SNAPSHOT)
            yield

    async def execute(self, query: bytes) -> object:
        """Text without values; it may hold several statements."""
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
            f"pool: a {type(pool).__module__}.{type(pool).__qualname__} given; it must be a"
            " psycopg_pool.AsyncConnectionPool"
        )
    checked_pool: Any = pool
    if callable(checked_pool.conninfo) or callable(checked_pool.kwargs):
        raise ConfigurationError(
            "pool: its conninfo or kwargs are a function; the connections that a worker keeps for itself need fixed"
            " ones: make the pool with text and a dict, or give a connection string"
        )
    return checked_pool
