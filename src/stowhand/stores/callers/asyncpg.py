"""Connections of asyncpg."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.stores.callers.caller import POSTGRES, Check


class AsyncpgCaller:
    """A connection, of a pool or not. It has no ``commit``: its transactions are blocks."""

    database = POSTGRES

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, function: str, value: str, check: Check) -> Any:
        if not (self._connection.is_in_transaction() or self._connection.is_closed()):
            raise ConfigurationError(
                "this connection of asyncpg's is in no transaction, so that each statement is committed by itself: open"
                " one, `async with connection.transaction():`"
            )
        check(self._connection)
        return await self._connection.fetchval(f"select {function}($1::text)", value)


def asyncpg_place(connection: Any) -> SimpleNamespace | None:
    """Where it is to, as psycopg's ``info`` has it; ``None`` where asyncpg does not tell."""
    address, name = getattr(connection, "_addr", None), getattr(getattr(connection, "_params", None), "database", None)
    if address is None or name is None:
        return None
    host, port = address if isinstance(address, tuple) else address.rsplit("/.s.PGSQL.", 1)
    return SimpleNamespace(host=host, port=port, dbname=name)
