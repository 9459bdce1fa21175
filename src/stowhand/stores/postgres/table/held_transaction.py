"""A transaction that holds a record locked, on a connection that is lent to a handler meanwhile.

It knows how such a transaction starts, is kept alive, is taken back and ends, and nothing about outcomes. A handler may
have done anything to it. The driver's transaction status and the savepoint show what can still be committed.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from os import dup
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from stowhand.clock import Clock
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.address import STATEMENT_DEADLINE_SECONDS
from stowhand.stores.database.borrowed_pool import BorrowedConnection
from stowhand.stores.database.link import Row, is_stale
from stowhand.stores.database.statements import quote_identifier

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


LOCK_PATIENCE = 10.0
"""Seconds that another transaction may hold a record locked when its attempt starts."""
PATIENCE = 5.0
"""Seconds that a statement may still run on the connection when the handler has ended."""
CANCEL_PATIENCE = 5.0
"""Seconds for asking the server to cancel a statement."""
UNLOCK_PATIENCE = 0.1
"""Seconds for a task that has its reply to release the connection's lock."""
RESTORED = ("search_path", "role", "statement_timeout", "lock_timeout", "TimeZone")
"""Settings that a handler may change, and under which statements of the store would mean something else."""
AS_NEW = (
    "close all; set session authorization default; reset all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard plans; discard temp; discard sequences"
)
"""DISCARD ALL in parts, which can follow COMMIT in one message. Sent alone behind a pooler it would reach another
session than the handler's."""

ENDED_BY_HANDLER = (
    "its handler ended the transaction itself (COMMIT or ROLLBACK): what it did until then cannot be taken back, or is "
    "lost. The attempt's outcome ends it; a part of its own is `async with ctx.connection.transaction()`"
)
LEFT_OPEN = "its handler left a stream, a COPY or a pipeline open on its connection"
FAILED = (
    "its handler returned, but one of its statements had failed, and so nothing of its transaction can be committed. "
    "A database error that is to be survived belongs into `async with ctx.connection.transaction()`"
)


class NotCommitted(Exception):
    """Nothing of the transaction is committed, nor will be; why."""


class InDoubt(Exception):
    """COMMIT was sent, and it is not known whether it was executed; why."""


class HeldTransaction:
    """One open transaction. ``session`` is for the store's statements, ``handler_connection`` for the handler's."""

    def __init__(
        self, stack: AsyncExitStack, connection: psycopg.AsyncConnection[Any], owner: str, *, resets: bool
    ) -> None:
        """``stack`` returns the connection when it is closed. ``resets``: the session is left as if it were new."""
        self._stack = stack
        self._connection = connection
        self._savepoint = quote_identifier(f"attempt_{uuid.uuid4().hex}")
        self._ending = [AS_NEW] if resets else []
        self._is_over = False
        """COMMIT or ROLLBACK of ours was executed, and the session may serve others."""
        self._pings: asyncio.Task[None] | None = None
        self.session = BorrowedConnection(connection, prepared=False)
        self.handler_connection = AttemptConnection(connection, owner)

    async def begin(self, lock: bytes, values: Mapping[str, object], stalled: float) -> Row | None:
        """Return the row that ``lock`` finds, locked. Raises what psycopg raises, TimeoutError.

        ``stalled``: seconds without a statement after which the server ends the transaction.
        """
        await self._connection.set_autocommit(True)  # BEGIN and COMMIT are sent from here
        level = self._connection.isolation_level
        isolation = "" if level is None else f"isolation level {level.name.replace('_', ' ')} "
        statements: list[bytes | str] = [
            f"begin {isolation}read write",
            f"select {_SAVE}, {_limits(stalled)}",
            lock,
            f"select {_RESTORE_LOCK_TIMEOUT}",
            f"savepoint {self._savepoint}",
        ]
        async with asyncio.timeout(LOCK_PATIENCE + PATIENCE):
            reply = await self._run(statements, values)
        reply.nextset()
        reply.nextset()
        return await reply.fetchone()

    def keep_alive(self, clock: Clock, interval: float) -> None:
        """Send an empty statement that often, so that the server does not take the transaction for abandoned."""
        self._pings = asyncio.get_running_loop().create_task(self._ping(clock, interval), name="stowhand transaction")

    @property
    def has_failed(self) -> bool:
        """A statement in it failed, so it can only be rolled back."""
        return self._connection.info.transaction_status == TransactionStatus.INERROR

    async def take_back(self) -> None:
        """Let only the store use the connection from here on. Raises NotCommitted where that is not possible."""
        self.handler_connection.end()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.handler_connection.quiet()
        except TimeoutError:
            raise NotCommitted("its handler ended while a statement still ran on its connection") from None
        try:
            async with asyncio.timeout(UNLOCK_PATIENCE), self._connection.lock:
                pass
        except TimeoutError:
            raise NotCommitted(LEFT_OPEN) from None  # a stream or a COPY keeps the lock, and waits for nothing
        if self._pings is not None:
            self._pings.cancel()  # it sleeps: while it waits for an answer, the connection is not quiet
        self._check_status()
        if is_stale(self._connection):
            try:
                await self._run([""])  # if the server has hung up, nothing was committed, and the error has its reason
            except (psycopg.Error, OSError) as error:
                raise NotCommitted(f"its transaction could not be ended: {postgres_errors.first_line(error)}") from None

    def _check_status(self) -> None:
        pgconn = self._connection.pgconn
        if self._connection.closed:
            raise NotCommitted("the connection of its transaction broke")
        if pgconn.pipeline_status != PipelineStatus.OFF or pgconn.transaction_status == TransactionStatus.ACTIVE:
            raise NotCommitted(LEFT_OPEN)
        if pgconn.transaction_status == TransactionStatus.IDLE:
            raise NotCommitted(ENDED_BY_HANDLER)

    async def commit(self, statements: Sequence[bytes], values: Mapping[str, object], *, keep: bool) -> bool:
        """Run ``statements`` and commit, all in one message. Return whether the last of them found its row.

        ``keep``: with what the handler did. Raises NotCommitted, InDoubt.
        """
        if keep:
            # What is deferred would fail at COMMIT, where it would be in doubt.
            first = [f"release savepoint {self._savepoint}", _RESTORE, "set constraints all immediate"]
        else:
            first = [f"rollback to savepoint {self._savepoint}"]
        try:
            reply = await self._run([*first, *statements, "commit", *self._ending], values)
        except (psycopg.Error, OSError, UnicodeError) as error:
            await self._undo_after(error)
        is_found = False
        while reply.statusmessage != "COMMIT":
            is_found = reply.rowcount > 0
            if not reply.nextset():  # COMMIT of a failed transaction is answered with ROLLBACK, and is no error
                raise NotCommitted(FAILED)
        self._is_over = True
        return is_found

    async def _undo_after(self, error: Exception) -> NoReturn:
        """Raises NotCommitted, with the record unlocked, or InDoubt."""
        status, why = self._connection.info.transaction_status, postgres_errors.first_line(error)
        if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            broke = self._connection.closed or postgres_errors.is_connection_lost(error)
            raise InDoubt(f"the connection broke: {why}" if broke else why) from None
        await self.undo()
        if isinstance(error, psycopg.errors.InvalidSavepointSpecification):
            raise NotCommitted(ENDED_BY_HANDLER) from None
        raise NotCommitted(f"its transaction could not be committed: {why}") from None

    async def undo(self) -> None:
        """Roll all of it back. A connection on which that fails is closed by ``let_go``, which has the same effect."""
        with suppress(psycopg.Error, OSError):
            await self._run(["rollback", *self._ending])
            self._is_over = True

    async def let_go(self) -> None:
        """Return the connection. One whose transaction was not ended by the store is closed. Always bounded."""
        self.handler_connection.end()
        connection = self._connection
        try:
            if self._pings is not None:
                self._pings.cancel()
                await asyncio.wait([self._pings])
            if connection.info.transaction_status == TransactionStatus.ACTIVE:
                await self._interrupt()
        finally:
            if self._is_over and connection.info.transaction_status == TransactionStatus.IDLE:
                await self._stack.aclose()
            else:
                connection.pgconn.finish()  # close() may return it to an application's pool as if it were sound
                with suppress(NotCommitted):  # so the pool does not use it again
                    await self._stack.__aexit__(NotCommitted, NotCommitted(), None)

    async def _interrupt(self) -> None:
        """Cancel what still runs, or the server goes on with it and holds the lock. What waits for it gets an error."""
        with suppress(psycopg.Error, OSError):
            await self._connection.cancel_safe(timeout=CANCEL_PATIENCE)
        with suppress(OSError), socket.socket(fileno=dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
        await self.handler_connection.quiet()

    async def _ping(self, clock: Clock, interval: float) -> None:
        connection = self._connection
        while not connection.closed:
            await clock.sleep(interval)
            is_open = connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
            if is_open and not connection.lock.locked() and connection.info.pipeline_status == PipelineStatus.OFF:
                with suppress(psycopg.Error, OSError):  # take_back finds out
                    await self.handler_connection.execute("")  # harmless, also in a transaction that has failed

    async def _run(
        self, statements: Sequence[bytes | str], values: Mapping[str, object] | None = None
    ) -> psycopg.AsyncClientCursor[Row]:
        """All in one message; so psycopg writes their values out. A statement may end in a comment."""
        text = b"\n;".join(one.encode() if isinstance(one, str) else one for one in statements)
        cursor = psycopg.AsyncClientCursor(self._connection, row_factory=tuple_row)
        async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS):
            await cursor.execute(text, values)
        return cursor


def _setting(name: str, value: str) -> str:
    """Of the transaction: its end undoes it, and so does a return to a savepoint before."""
    return f"pg_catalog.set_config('{name}', {value}, true)"


def _current(name: str) -> str:
    return f"pg_catalog.current_setting('{name}')"


_SAVE = ", ".join(_setting(f"stowhand.{name}", _current(name)) for name in RESTORED)
_SAVED = ", ".join(_setting(name, _current(f"stowhand.{name}")) for name in RESTORED)
_RESTORE = f"select {_SAVED} where {_current('stowhand.role')} <> ''"
"""RESET ALL empties what was saved, and restores the settings itself."""
_RESTORE_LOCK_TIMEOUT = _setting("lock_timeout", _current("stowhand.lock_timeout"))


def _limits(stalled: float) -> str:
    """Settings of the transaction, so that a client that is gone does not hold a record for ever."""
    milliseconds = min(max(round(stalled * 1000), 1), 2**31 - 1)
    limits = {
        "lock_timeout": round(LOCK_PATIENCE * 1000),
        "idle_in_transaction_session_timeout": milliseconds,
        # The host vanished: noticed in about as long. (A socket takes at most 32,767 s.)
        "tcp_keepalives_idle": min(max(round(stalled / 2), 1), 32_767),
        "tcp_keepalives_interval": min(max(round(stalled / 6), 1), 32_767),
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": milliseconds,
    }
    settings = [_setting(name, f"'{value}'") for name, value in limits.items()]
    # A process that dies while its statement runs is else noticed only when the statement is done. Where the server
    # cannot see that, setting it is an error.
    check = _setting("client_connection_check_interval", f"'{max(milliseconds // 3, 1)}'")
    is_able = f"{_current('server_version_num')}::int4 >= 140000 and pg_catalog.version() like '%%linux%%'"
    return ", ".join([*settings, f"case when {is_able} then {check} end"])
