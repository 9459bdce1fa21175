"""A record held locked by a transaction of its own, on a connection that is lent to a handler meanwhile.

Knows how such a transaction begins, is kept alive, is taken back and ends; nothing of outcomes. A handler may have done
anything to it: what can still be trusted is found out when it is taken back.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from stowhand.clock import Clock
from stowhand.stores.database import trouble
from stowhand.stores.database.address import DEADLINE
from stowhand.stores.database.borrowed import Guest
from stowhand.stores.database.link import Row, is_stale
from stowhand.stores.database.statements import quote_identifier
from stowhand.stores.postgres.table.handler_connection import AttemptConnection

LOCK_PATIENCE = 10.0
"""Seconds that another transaction may hold a record locked when its attempt wants to begin."""
PATIENCE = 5.0
"""Seconds that what still runs on the connection may take when the handler has ended."""
CANCEL_PATIENCE = 5.0
"""Seconds for asking the server to end a statement."""
GRACE = 0.1
"""Seconds for a task that has its answer to say so."""
RESTORED = ("search_path", "role", "statement_timeout", "lock_timeout", "TimeZone")
"""Settings that a handler may change for itself, and under which statements of ours would mean something else."""
AS_NEW = (
    "close all; set session authorization default; reset all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard plans; discard temp; discard sequences"
)
"""DISCARD ALL in parts, which may travel with other statements. Sent alone behind a pooler it would meet another
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


class Gone(Exception):
    """The transaction ended, or has to: nothing that a handler did in it will be committed by us."""


class InDoubt(Exception):
    """COMMIT was sent, and no answer came, or one that does not say enough; why."""


class HeldTransaction:
    """One open transaction. ``session`` is for the store's statements, ``handler_connection`` for the handler's."""

    def __init__(self, stack: AsyncExitStack, connection: psycopg.AsyncConnection[Any], owner: str) -> None:
        """``stack`` gives the connection back when it is closed."""
        self._stack = stack
        self._connection = connection
        self._savepoint = quote_identifier(f"attempt_{uuid.uuid4().hex}")
        self._transaction: object = None
        self._settings: dict[str, object] = {}
        """As they were before the handler's, by the name of a statement's place."""
        self._as_new = False
        self._pings: asyncio.Task[None] | None = None
        self._pinging = False
        self.session = Guest(connection, prepared=False)
        self.handler_connection = AttemptConnection(connection, owner)

    async def begin(self, lock: bytes, values: Mapping[str, object], stalled: float) -> Row | None:
        """The row that ``lock`` gives, locked; ``None``: it gives none. Raises what psycopg raises, TimeoutError.

        ``stalled``: seconds without a statement after which the server ends the transaction.
        """
        begun = await self._begin([lock, _UNHURRIED, f"savepoint {self._savepoint}"], values, stalled)
        begun.nextset()
        return await begun.fetchone()

    async def begin_unlocked(self, stalled: float) -> None:
        """As ``begin``, for no record yet. ``write`` and ``commit_written`` end it, or ``roll_back``."""
        await self._begin([_UNHURRIED], {}, stalled)

    async def _begin(
        self, rest: Sequence[bytes | str], values: Mapping[str, object], stalled: float
    ) -> psycopg.AsyncClientCursor[Row]:
        await self._connection.set_autocommit(True)  # BEGIN and COMMIT are ours to say
        known = ", ".join(f"pg_catalog.current_setting('{name}')" for name in RESTORED)
        level = self._connection.isolation_level
        begin = (
            "begin read write" if level is None else f"begin isolation level {level.name.replace('_', ' ')} read write"
        )
        look = f"select pg_catalog.txid_current(), {known}, {_limits(stalled)}"
        async with asyncio.timeout(LOCK_PATIENCE + PATIENCE):
            begun = await self._run([begin, look, *rest], values)
            begun.nextset()
            self._transaction, *settings = await begun.fetchone() or ()
            self._settings = {f"set_{at}": value for at, value in enumerate(settings[: len(RESTORED)])}
            return begun

    def lend(self, owner: str) -> AttemptConnection:
        """Another connection for a handler, of the same transaction."""
        self.handler_connection.end()
        self.handler_connection = AttemptConnection(self._connection, owner)
        return self.handler_connection

    async def is_fit_for_another(self) -> bool:
        """After a handler: nothing of it still runs, and the transaction can go on. Ends its connection."""
        self.handler_connection.end()
        if self._pinging:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._connection.lock.acquire()
                self._connection.lock.release()
        if self._connection.closed or self._connection.lock.locked() or not self.handler_connection.is_quiet:
            return False
        pgconn = self._connection.pgconn
        return (pgconn.pipeline_status, pgconn.transaction_status) == (PipelineStatus.OFF, TransactionStatus.INTRANS)

    def keep_alive(self, clock: Clock, every: float) -> None:
        """Send something that often, so that the server does not take the transaction for abandoned."""
        self._pings = asyncio.get_running_loop().create_task(self._ping(clock, every), name="stowhand transaction")

    async def take_back(self) -> None:
        """From here on only the store uses the connection. Raises Gone where it is in no state to be used."""
        self.handler_connection.end()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.handler_connection.quiet()
        except TimeoutError:
            raise Gone("its handler ended while a statement still ran on its connection") from None
        try:
            # A stream or a COPY that was left open keeps the lock for itself, and waits for nothing.
            async with asyncio.timeout(PATIENCE if self._pinging else GRACE):
                await self._connection.lock.acquire()
        except TimeoutError:
            raise Gone(LEFT_OPEN) from None
        finally:
            if self._pings is not None:
                self._pings.cancel()
        self._connection.lock.release()
        if self._connection.closed:
            raise Gone("the connection of its transaction broke")
        pgconn = self._connection.pgconn
        if pgconn.pipeline_status != PipelineStatus.OFF or pgconn.transaction_status == TransactionStatus.ACTIVE:
            raise Gone(LEFT_OPEN)
        if pgconn.transaction_status == TransactionStatus.IDLE:
            raise Gone(ENDED_BY_HANDLER)
        if is_stale(self._connection):
            try:
                await self._run([""])  # the server has hung up? Then nothing was committed, and it says why
            except (psycopg.Error, OSError) as error:
                raise Gone(f"its transaction could not be ended: {trouble.first_line(error)}") from None

    async def commit(self, marking: Sequence[bytes], values: Mapping[str, object], *, undo: bool, reset: bool) -> bool:
        """Run ``marking`` and commit, all in one message. True: the last of its statements found its row.

        ``undo``: without what the handler did. ``reset``: leave the connection as if it were new.
        Raises Gone when nothing was committed for certain, InDoubt when it is not known; and, with the transaction back
        where the handler began, what psycopg raises when just what the handler did cannot be committed.
        """
        if undo:
            first = [f"rollback to savepoint {self._savepoint}"]
        elif self._connection.info.transaction_status == TransactionStatus.INERROR:
            await self._undo()
            raise psycopg.errors.InFailedSqlTransaction(FAILED)
        else:
            first = self._ours()
        try:
            reply = await self._run(
                [*first, *marking, "commit", *([AS_NEW] if reset else [])], {**values, **self._settings}
            )
        except (psycopg.Error, OSError, UnicodeError) as error:
            await self._judge(error, undo)
            raise
        marked = False
        while reply.statusmessage != "COMMIT":
            marked = reply.rowcount > 0
            if not reply.nextset():  # of a transaction that had failed it makes a ROLLBACK, without an error
                raise Gone(FAILED)
        self._as_new = reset
        return marked

    def _ours(self) -> list[str]:
        """Before statements of ours. What is deferred would fail at COMMIT, and take the lock with it."""
        ours = (f"pg_catalog.set_config('{name}', %(set_{at})s, true)" for at, name in enumerate(RESTORED))
        # An error when it is not our transaction any more.
        same = f"select 1 / (pg_catalog.txid_current() = {self._transaction})::int"
        return [f"select {', '.join(ours)}", same, "set constraints all immediate"]

    async def write(self, statement: bytes, values: Mapping[str, object]) -> list[Row]:
        """Run one of ours behind all that handlers did, and go on. Raises what psycopg raises."""
        reply = await self._run([*self._ours(), statement], {**values, **self._settings})
        while reply.nextset():
            pass
        return await reply.fetchall() if reply.description else []

    async def commit_written(self, *, reset: bool) -> None:
        """COMMIT, after ``write``. Raises InDoubt, Gone. ``reset``: leave the connection as if it were new."""
        try:
            reply = await self._run(["commit", *([AS_NEW] if reset else [])])
        except (psycopg.Error, OSError) as error:
            raise InDoubt(trouble.first_line(error)) from None
        if reply.statusmessage != "COMMIT":
            raise Gone(FAILED)
        self._as_new = reset

    async def _judge(self, error: BaseException, undo: bool) -> None:
        """Raises Gone or InDoubt, by the error; else the record is still locked, without the handler's work."""
        status = self._connection.info.transaction_status
        if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            broke = self._connection.closed or trouble.is_cut(error)
            raise InDoubt("the connection broke" if broke else trouble.first_line(error)) from None
        if not undo:
            await self._undo()
        elif isinstance(error, psycopg.errors.InvalidSavepointSpecification):
            raise Gone(ENDED_BY_HANDLER) from None
        else:
            raise Gone(f"its transaction could not be ended: {trouble.first_line(error)}") from None

    async def _undo(self) -> None:
        """Back to where the handler began; the record stays locked. Raises Gone."""
        try:
            await self._run([f"rollback to savepoint {self._savepoint}"])
        except psycopg.errors.InvalidSavepointSpecification:
            raise Gone(ENDED_BY_HANDLER) from None
        except (psycopg.Error, OSError) as error:
            raise Gone(f"its transaction could not be ended: {trouble.first_line(error)}") from None

    async def roll_back(self) -> None:
        """All of it. Raises what psycopg raises."""
        await self._run(["rollback"])

    async def let_go(self, reset: bool) -> None:
        """Give the connection back; one that is in the middle of something is closed. Always bounded."""
        self.handler_connection.end()
        connection, fit = self._connection, False
        try:
            with suppress(psycopg.Error, OSError):
                if self._pings is not None:
                    self._pings.cancel()
                    await asyncio.wait([self._pings])
                if connection.info.transaction_status == TransactionStatus.ACTIVE:
                    await self._interrupt()
                idle = connection.info.transaction_status == TransactionStatus.IDLE and not connection.lock.locked()
                if idle and reset and not self._as_new:
                    await self._run([AS_NEW])  # what the handler has set must not reach the next one
                fit = idle
        finally:
            if fit:
                await self._stack.aclose()
            else:
                connection.pgconn.finish()  # close() may give it back to an application's pool as if it were sound
                with suppress(Gone):  # so the pool does not use it again
                    await self._stack.__aexit__(Gone, Gone(), None)

    async def _interrupt(self) -> None:
        """End what still runs, or the server goes on with it and holds the lock. What waits for it gets an error."""
        with suppress(psycopg.Error, OSError):
            await self._connection.cancel_safe(timeout=CANCEL_PATIENCE)
        try:
            async with asyncio.timeout(PATIENCE):
                await self.handler_connection.quiet()
        except TimeoutError:
            with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
            await self.handler_connection.quiet()

    async def _ping(self, clock: Clock, every: float) -> None:
        connection = self._connection
        while not connection.closed:
            await clock.sleep(every)
            open_ = connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
            if open_ and not connection.lock.locked() and connection.info.pipeline_status == PipelineStatus.OFF:
                self._pinging = True
                with suppress(psycopg.Error, OSError):  # take_back finds out
                    await self._run([""])  # says nothing, and does no harm in a transaction that has failed
                self._pinging = False

    async def _run(
        self, statements: Sequence[bytes | str], values: Mapping[str, object] | None = None
    ) -> psycopg.AsyncClientCursor[Row]:
        """All in one message; so psycopg writes their values out. A statement may end in a comment."""
        text = b"\n;".join(one.encode() if isinstance(one, str) else one for one in statements)
        cursor = psycopg.AsyncClientCursor(self._connection, row_factory=tuple_row)
        async with asyncio.timeout(DEADLINE):
            await cursor.execute(text, values)
        return cursor


_PATIENT = "pg_catalog.set_config('stowhand.lock_timeout', pg_catalog.current_setting('lock_timeout'), true)"
_UNHURRIED = "select pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('stowhand.lock_timeout'), true)"
"""How long locks are waited for, kept while ours is, and given back to the handler."""
_SYSTEM = "pg_catalog.version()"


def _limits(stalled: float) -> str:
    """Settings of the transaction, so that a client that is gone does not hold a record for ever."""
    milliseconds = min(max(round(stalled * 1000), 1), 2**31 - 1)
    limits = {
        "lock_timeout": round(LOCK_PATIENCE * 1000),
        "idle_in_transaction_session_timeout": milliseconds,
        # The host vanished: noticed in about as long. (More than 32,767 s is more than a socket takes.)
        "tcp_keepalives_idle": min(max(round(stalled / 2), 1), 32_767),
        "tcp_keepalives_interval": min(max(round(stalled / 6), 1), 32_767),
        "tcp_keepalives_count": 3,
        "tcp_user_timeout": milliseconds,
    }
    settings = [f"pg_catalog.set_config('{name}', '{value}', true)" for name, value in limits.items()]
    # A process that dies while its statement runs is else noticed only when the statement is done. Where the server
    # cannot see that, to set it is an error.
    check = f"pg_catalog.set_config('client_connection_check_interval', '{max(milliseconds // 3, 1)}', true)"
    version = "pg_catalog.current_setting('server_version_num')::int4"
    able = f"{version} >= 140000 and {_SYSTEM} like '%%linux%%' or {version} >= 150000 and {_SYSTEM} ~ 'darwin|freebsd'"
    return ", ".join([_PATIENT, *settings, f"case when {able} then {check} end"])
