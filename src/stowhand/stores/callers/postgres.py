"""Connections of psycopg 3 and of asyncpg."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import POSTGRES, ConnectionCheck, function_call


class PsycopgCaller:
    """A connection of psycopg. Its own cursor and row factories are not used."""

    database = POSTGRES

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, function: str, value: str, check: ConnectionCheck) -> Any:
        _refuse_autocommit(self._connection)
        check(self._connection)
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.format = Format.BINARY  # an application's own loaders are usually for the text format
            ((result,),) = cursor.execute(function_call(function).encode(), (value,)).fetchall()
            return result


class AsyncPsycopgCaller:
    """An asynchronous connection of psycopg."""

    database = POSTGRES

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def ask(self, function: str, value: str, check: ConnectionCheck) -> Any:
        _refuse_autocommit(self._connection)
        check(self._connection)
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.format = Format.BINARY
            await cursor.execute(function_call(function).encode(), (value,))
            ((result,),) = await cursor.fetchall()
            return result


def _refuse_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE:
        raise ConfigurationError(
            "this psycopg connection is in autocommit and in no transaction, so each statement is"
            " committed by itself: open one, `with connection.transaction():`"
        )


class AsyncpgCaller:
    """A connection of asyncpg, pooled or not. It has no ``commit``: its transactions are blocks."""

    database = POSTGRES

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, function: str, value: str, check: ConnectionCheck) -> Any:
        if not (self._connection.is_in_transaction() or self._connection.is_closed()):
            raise ConfigurationError(
                "this asyncpg connection is in no transaction, so each statement is committed by itself: open"
                " one, `async with connection.transaction():`"
            )
        check(self._connection)
        return await self._connection.fetchval(f"select {function}($1::text)", value)


def asyncpg_address(connection: Any) -> SimpleNamespace | None:
    """Return the server and database as psycopg's ``info`` has them; ``None`` if asyncpg does not report them."""
    address, name = getattr(connection, "_addr", None), getattr(getattr(connection, "_params", None), "database", None)
    if address is None or name is None:
        return None
    host, port = address if isinstance(address, tuple) else address.rsplit("/.s.PGSQL.", 1)
    return SimpleNamespace(host=host, port=port, dbname=name)
