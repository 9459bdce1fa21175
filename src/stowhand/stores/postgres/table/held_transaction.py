"""A transaction that keeps a record locked, on a connection that the handler uses.

It knows how such a transaction starts, stays alive and ends, and nothing about outcomes. The handler may have done
anything to it: the driver's transaction status and the savepoint show what can still be committed.
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

T = TypeVar("T")

_REFUSAL_MESSAGE = (
    "the transaction of an attempt ends with the attempt: return, and what was done is committed together with the "
    "record's state; raise, and it is rolled back. A part of its own is `async with ctx.connection.transaction()`"
)


class AttemptConnection(psycopg.AsyncConnection[Any]):
    """``ctx.connection``. Everything of psycopg works except ``commit``, ``rollback`` and ``close``."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], owner: str) -> None:
        handlers = connection.pgconn.notice_handler, connection.pgconn.notify_handler
        super().__init__(connection.pgconn)
        connection.pgconn.notice_handler, connection.pgconn.notify_handler = (
            handlers  # the connection keeps its handlers
        )
        self.lock = connection.lock
        """Shared, so that only one statement runs at a time, through either object."""
        self.row_factory = connection.row_factory
        self.cursor_factory = connection.cursor_factory
        self.server_cursor_factory = connection.server_cursor_factory
        self._adapters = AdaptersMap(connection.adapters)
        # psycopg must start no other transaction if the handler's own SQL has ended this one.
        self._autocommit = True
        # The pool's object has other prepared statements under the same names.
        self.prepare_threshold = None
        self._owner = owner
        self._is_over = False
        self._waiting_tasks = 0
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()

    def end(self) -> None:
        """Refuse further statements through this object, even of tasks that still hold it."""
        self._is_over = True

    async def wait_until_quiet(self) -> None:
        """Wait until no task waits for the server through this object.

        If the connection closed under a waiting task, its file descriptor could become that of another connection.
        """
        await self._is_quiet.wait()

    async def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        if self._is_over:
            gen.close()
            raise psycopg.InterfaceError(f"the attempt of {self._owner} is over, and with it its transaction")
        self._waiting_tasks += 1
        self._is_quiet.clear()
        try:
            return await super().wait(gen, *args, **options)
        finally:
            self._waiting_tasks -= 1
            if not self._waiting_tasks:
                self._is_quiet.set()

    async def commit(self) -> None:
        """Raise ProgrammingError: see ``_REFUSAL``."""
        raise psycopg.ProgrammingError(_REFUSAL_MESSAGE)

    async def rollback(self) -> None:
        """Raise ProgrammingError, as ``commit``."""
        raise psycopg.ProgrammingError(_REFUSAL_MESSAGE)

    async def close(self) -> None:
        """Raise ProgrammingError: the connection returns to the pool."""
        raise psycopg.ProgrammingError(_REFUSAL_MESSAGE)

    def __del__(self, *warn: Any) -> None:
        """Give no warning: the pool closes the connection, or uses it again."""


LOCK_TIMEOUT_SECONDS = 10.0
"""Maximum time to wait for the lock of a record when its attempt starts."""
STATEMENT_TIMEOUT_SECONDS = 5.0
"""Maximum time that a statement may run on the connection after the handler has ended."""
CANCEL_TIMEOUT_SECONDS = 5.0
"""Maximum time of a request to the server to cancel a statement."""
UNLOCK_TIMEOUT_SECONDS = 0.1
"""Maximum time that a task with its reply may take to release the connection's lock."""
RESTORED_SETTINGS = ("search_path", "role", "statement_timeout", "lock_timeout", "TimeZone")
"""Settings that a handler may change, and that would change the meaning of the store's statements."""
RESET_SESSION = (
    "close all; set session authorization default; reset all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard plans; discard temp; discard sequences"
)
"""DISCARD ALL in parts, which can follow COMMIT in one message. A separate message could reach another session behind a
pooler."""

ENDED_BY_HANDLER = (
    "its handler ended the transaction itself (COMMIT or ROLLBACK): its changes until then cannot be undone, or are "
    "lost. The attempt's outcome ends it; for a part of its own use `async with ctx.connection.transaction()`"
)
LEFT_OPEN = "its handler left a stream, a COPY or a pipeline open on its connection"
FAILED_STATEMENT = (
    "its handler returned, but one of its statements had failed, so its transaction cannot be committed. "
    "To survive a database error, use `async with ctx.connection.transaction()`"
)


class NotCommitted(Exception):
    """The transaction is not committed, and will not be. The message has the reason."""


class InDoubt(Exception):
    """COMMIT was sent, and its outcome is unknown. The message has the reason."""


class HeldTransaction:
    """One open transaction. ``session`` is for the store's statements, ``handler_connection`` for the handler's."""

    def __init__(
        self, stack: AsyncExitStack, connection: psycopg.AsyncConnection[Any], owner: str, *, resets: bool
    ) -> None:
        """``stack`` returns the connection when it closes. ``resets``: reset the session at the end."""
        self._stack = stack
        self._connection = connection
        self._savepoint = quote_identifier(f"attempt_{uuid.uuid4().hex}")
        self._reset_statements = [RESET_SESSION] if resets else []
        self._is_over = False
        """Our own COMMIT or ROLLBACK was executed, and the session may be used again."""
        self._pings: asyncio.Task[None] | None = None
        self.session = BorrowedConnection(connection, prepared=False)
        self.handler_connection = AttemptConnection(connection, owner)

    async def begin(self, lock: bytes, values: Mapping[str, object], stalled: float) -> Row | None:
        """Lock and return the row that ``lock`` finds. Raise psycopg's errors, TimeoutError.

        ``stalled``: seconds without a statement after which the server ends the transaction.
        """
        await self._connection.set_autocommit(True)  # BEGIN and COMMIT are sent from here
        level = self._connection.isolation_level
        isolation = "" if level is None else f"isolation level {level.name.replace('_', ' ')} "
        statements: list[bytes | str] = [
            f"begin {isolation}read write",
            f"select {_SAVE_SETTINGS}, {_limits(stalled)}",
            lock,
            f"select {_RESTORE_LOCK_TIMEOUT}",
            f"savepoint {self._savepoint}",
        ]
        async with asyncio.timeout(LOCK_TIMEOUT_SECONDS + STATEMENT_TIMEOUT_SECONDS):
            reply = await self._run(statements, values)
        reply.nextset()
        reply.nextset()
        return await reply.fetchone()

    def keep_alive(self, clock: Clock, interval: float) -> None:
        """Send an empty statement at each interval, so that the server does not end the transaction as abandoned."""
        self._pings = asyncio.get_running_loop().create_task(self._ping(clock, interval), name="stowhand transaction")

    @property
    def has_failed(self) -> bool:
        """Whether a statement failed, so that the transaction can only be rolled back."""
        return self._connection.info.transaction_status == TransactionStatus.INERROR

    async def take_back(self) -> None:
        """Let only the store use the connection from here on. Raise NotCommitted if that is not possible."""
        self.handler_connection.end()
        try:
            async with asyncio.timeout(STATEMENT_TIMEOUT_SECONDS):
                await self.handler_connection.wait_until_quiet()
        except TimeoutError:
            raise NotCommitted("its handler ended while a statement still ran on its connection") from None
        try:
            async with asyncio.timeout(UNLOCK_TIMEOUT_SECONDS), self._connection.lock:
                pass
        except TimeoutError:
            raise NotCommitted(LEFT_OPEN) from None  # a stream or a COPY keeps the lock
        if self._pings is not None:
            self._pings.cancel()  # it sleeps now: during a ping the connection is not quiet
        self._check_status()
        if is_stale(self._connection):
            try:
                # If the server closed the connection, nothing was committed, and the error has the reason.
                await self._run([""])
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

        ``keep``: include the handler's changes. Raise NotCommitted, InDoubt.
        """
        if keep:
            # A deferred constraint that failed at COMMIT would leave the outcome in doubt.
            opening = [f"release savepoint {self._savepoint}", _RESTORE_SETTINGS, "set constraints all immediate"]
        else:
            opening = [f"rollback to savepoint {self._savepoint}"]
        try:
            reply = await self._run([*opening, *statements, "commit", *self._reset_statements], values)
        except (psycopg.Error, OSError, UnicodeError) as error:
            await self._undo_after(error)
        is_found = False
        while reply.statusmessage != "COMMIT":
            is_found = reply.rowcount > 0
            if not reply.nextset():  # the reply to COMMIT of a failed transaction is ROLLBACK, not an error
                raise NotCommitted(FAILED_STATEMENT)
        self._is_over = True
        return is_found

    async def _undo_after(self, error: Exception) -> NoReturn:
        """Raise NotCommitted, with the record unlocked, or InDoubt."""
        status, reason = self._connection.info.transaction_status, postgres_errors.first_line(error)
        if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            is_broken = self._connection.closed or postgres_errors.is_connection_lost(error)
            raise InDoubt(f"the connection broke: {reason}" if is_broken else reason) from None
        await self.undo()
        if isinstance(error, psycopg.errors.InvalidSavepointSpecification):
            raise NotCommitted(ENDED_BY_HANDLER) from None
        raise NotCommitted(f"its transaction could not be committed: {reason}") from None

    async def undo(self) -> None:
        """Roll back. If that fails, ``release`` closes the connection, which has the same effect."""
        with suppress(psycopg.Error, OSError):
            await self._run(["rollback", *self._reset_statements])
            self._is_over = True

    async def release(self) -> None:
        """Return the connection, or close it if the store has not ended its transaction. Takes a bounded time."""
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
                connection.pgconn.finish()  # close() may return it to an application's pool as usable
                with suppress(NotCommitted):  # so the pool does not use it again
                    await self._stack.__aexit__(NotCommitted, NotCommitted(), None)

    async def _interrupt(self) -> None:
        """Cancel the running statement, which would keep the lock. Tasks that wait for it get an error."""
        with suppress(psycopg.Error, OSError):
            await self._connection.cancel_safe(timeout=CANCEL_TIMEOUT_SECONDS)
        with suppress(OSError), socket.socket(fileno=dup(self._connection.fileno())) as socket_copy:
            socket_copy.shutdown(socket.SHUT_RDWR)
        await self.handler_connection.wait_until_quiet()

    async def _ping(self, clock: Clock, interval: float) -> None:
        connection = self._connection
        while not connection.closed:
            await clock.sleep(interval)
            is_open = connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
            if is_open and not connection.lock.locked() and connection.info.pipeline_status == PipelineStatus.OFF:
                with suppress(psycopg.Error, OSError):  # take_back will notice
                    await self.handler_connection.execute("")  # harmless, even in a failed transaction

    async def _run(
        self, statements: Sequence[bytes | str], values: Mapping[str, object] | None = None
    ) -> psycopg.AsyncClientCursor[Row]:
        """Send all statements in one message, with literal values. A statement may end in a comment."""
        text = b"\n;".join(statement.encode() if isinstance(statement, str) else statement for statement in statements)
        cursor = psycopg.AsyncClientCursor(self._connection, row_factory=tuple_row)
        async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS):
            await cursor.execute(text, values)
        return cursor


def _setting(name: str, value: str) -> str:
    """Return a setting of the transaction, undone at its end or by a rollback to an earlier savepoint."""
    return f"pg_catalog.set_config('{name}', {value}, true)"


def _current(name: str) -> str:
    return f"pg_catalog.current_setting('{name}')"


_SAVE_SETTINGS = ", ".join(_setting(f"stowhand.{name}", _current(name)) for name in RESTORED_SETTINGS)
_SAVED_SETTINGS = ", ".join(_setting(name, _current(f"stowhand.{name}")) for name in RESTORED_SETTINGS)
_RESTORE_SETTINGS = f"select {_SAVED_SETTINGS} where {_current('stowhand.role')} <> ''"
"""RESET ALL clears the saved settings, and restores the settings itself."""
_RESTORE_LOCK_TIMEOUT = _setting("lock_timeout", _current("stowhand.lock_timeout"))


def _limits(stalled: float) -> str:
    """Return settings of the transaction, so that a lost client does not lock a record forever."""
    milliseconds = min(max(round(stalled * 1000), 1), 2**31 - 1)
    limits = {
        "lock_timeout": round(LOCK_TIMEOUT_SECONDS * 1000),
        "idle_in_transaction_session_timeout": milliseconds,
        # A lost host is detected in about the same time. (A socket accepts at most 32,767 s.)
        "tcp_keepalives_idle": min(max(round(stalled / 2), 1), 32_767),
        "tcp_keepalives_interval": min(max(round(stalled / 6), 1), 32_767),
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": milliseconds,
    }
    settings = [_setting(name, f"'{value}'") for name, value in limits.items()]
    # Without this, a process that dies during its statement is detected only when the statement is done. Setting it is
    # an error if the server does not support the check.
    check = _setting("client_connection_check_interval", f"'{max(milliseconds // 3, 1)}'")
    is_supported = f"{_current('server_version_num')}::int4 >= 140000 and pg_catalog.version() like '%%linux%%'"
    return ", ".join([*settings, f"case when {is_supported} then {check} end"])
