"""The connection that a transactional handler works on: psycopg's, in a transaction that only the outcome ends.

It is a second object for a connection of the pool, made anew for each attempt. Whatever the handler leaves on it (its
row factory, an open ``transaction()`` block, a task that goes on) ends with the attempt, and does not reach another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap

_T = TypeVar("_T")

_ENDED_BY = (
    "the transaction of an attempt ends with the attempt: return, and what was done is committed together with the "
    "record's state; raise, and it is rolled back. A part of its own is `async with ctx.connection.transaction()`"
)


class AttemptConnection(psycopg.AsyncConnection[Any]):
    """``ctx.connection``. Everything of psycopg's works but ``commit``, ``rollback`` and ``close``."""

    def __init__(self, lent: psycopg.AsyncConnection[Any], owner: str) -> None:
        handlers = lent.pgconn.notice_handler, lent.pgconn.notify_handler
        super().__init__(lent.pgconn)
        lent.pgconn.notice_handler, lent.pgconn.notify_handler = handlers  # they stay with the connection itself
        self.lock = lent.lock
        """Shared: one statement at a time, through either object."""
        self.row_factory = lent.row_factory
        self.cursor_factory = lent.cursor_factory
        self.server_cursor_factory = lent.server_cursor_factory
        self._adapters = AdaptersMap(lent.adapters)
        # psycopg must begin no other transaction, should the handler's own SQL have ended this one.
        self._autocommit = True
        # The pool's object knows other prepared statements, under the same names.
        self.prepare_threshold = None
        self._owner = owner
        self._over = False
        self._waits = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def end(self) -> None:
        """Nothing more is sent through this object, even where a task still holds it."""
        self._over = True

    async def quiet(self) -> None:
        """Wait until no task waits for the server through this object.

        Closing under a waiting task would take the file descriptor from it, and give it the next connection's.
        """
        await self._quiet.wait()

    async def wait(self, gen: Generator[Any, Any, _T], *args: Any, **options: Any) -> _T:
        if self._over:
            gen.close()
            raise psycopg.InterfaceError(f"the attempt of {self._owner} is over, and with it its transaction")
        self._waits += 1
        self._quiet.clear()
        try:
            return await super().wait(gen, *args, **options)
        finally:
            self._waits -= 1
            if not self._waits:
                self._quiet.set()

    async def commit(self) -> None:
        """Refused: see ``_ENDED_BY``."""
        raise psycopg.ProgrammingError(_ENDED_BY)

    async def rollback(self) -> None:
        """Refused, as ``commit``."""
        raise psycopg.ProgrammingError(_ENDED_BY)

    async def close(self) -> None:
        """Refused, as ``commit``: it goes back to the pool."""
        raise psycopg.ProgrammingError(_ENDED_BY)

    def __del__(self, *warn: Any) -> None:
        """No warning: the pool closes the connection, or goes on with it."""
