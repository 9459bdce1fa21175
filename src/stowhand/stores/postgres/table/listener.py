"""LISTEN on the channel that a trigger of the table notifies, on a connection of its own. Without one: polling.

A notification is a hint. Nothing is lost between two waits: what arrives then stays in the socket.
"""

from __future__ import annotations

import asyncio

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.lifecycle import Backoff
from stowhand.retry import exponential
from stowhand.stores.database.link import Connection, hang_up, is_idle, is_stale, rows
from stowhand.stores.database.statements import quote_identifier
from stowhand.stores.postgres.table.context import TableContext

PROVE_EVERY = 25.0
"""Seconds of silence after which the connection is asked whether it still listens: a dead peer does not report it."""
PING_DEADLINE = 5.0
_TROUBLE = (psycopg.Error, StoreError, OSError)
_IS_LISTENING = b"select count(*) from pg_catalog.pg_listening_channels() c where c = %s"
_BACKEND = b"select pg_catalog.pg_backend_pid()"


class TableListener:
    """Waits for notifications; reconnects with growing pauses, and merely sleeps as long as that fails."""

    def __init__(self, context: TableContext) -> None:
        self._context, self._channel = context, context.options.notify_channel
        self._clock = SystemClock()
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._notified = False
        self.prove_every = PROVE_EVERY
        self._proven_at = self._retry_at = float("-inf")
        self._pause: Backoff = exponential(base=0.5, cap=30.0, jitter=0.2)
        self._failures = 0

    @property
    def is_listening(self) -> bool:
        """The listening connection answered when it was last asked."""
        return self._connection is not None

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work; False after ``timeout`` seconds. Raises nothing."""
        until = self._clock.monotonic() + timeout
        if self._channel is not None:
            async with self._lock:
                try:
                    if await self._ready(self._channel):
                        return True
                    if self._connection is not None:
                        return await self._listen(self._connection, until)
                except _TROUBLE:
                    await self.close()
                    self._failures += 1
                    self._retry_at = self._clock.monotonic() + self._pause(self._failures)
                except BaseException:
                    if self._connection is not None and not is_idle(self._connection):
                        await self.close()  # canceled in the middle of a question
                    raise
        await self._clock.sleep(max(until - self._clock.monotonic(), 0.0))
        return False

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

    async def _ready(self, channel: str) -> bool:
        """Connect, or prove the connection now and then. True: it listens only since now, and may have missed some."""
        now = self._clock.monotonic()
        if self._connection is None:
            if now < self._retry_at:
                return False
            self._connection = await self._connect(channel)
            self._failures, self._proven_at = 0, self._clock.monotonic()
            return True
        if now - self._proven_at >= self.prove_every:
            async with asyncio.timeout(PING_DEADLINE):
                ((channels,),) = await rows(self._connection, _IS_LISTENING, (channel,), False)
            if not channels:
                raise StoreError("the connection listens no more: it was made to forget its LISTEN")
            self._proven_at = self._clock.monotonic()
        return False

    async def _connect(self, channel: str) -> Connection:
        connection = await self._context.dialer.dial(self._context.role("listen"))
        try:
            ((pid,),) = await rows(connection, _BACKEND, (), False)
            if pid != connection.info.backend_pid:
                # A LISTEN would stay behind on a server connection that serves other clients next, and reach none.
                raise StoreError("behind a pooler no notification arrives, so the table is polled")
            connection.add_notify_handler(self._note)
            await rows(connection, f"listen {quote_identifier(channel)}".encode(), (), False)
        except BaseException:
            await hang_up(connection)
            raise
        return connection

    async def _listen(self, connection: Connection, until: float) -> bool:
        """Sleep until the socket has something to read; then read it all."""
        while not self._read_notifications(connection):
            left = until - self._clock.monotonic()
            if left <= 0:
                return False
            await self._readable(connection, left)
        self._proven_at = self._clock.monotonic()
        return True

    def _read_notifications(self, connection: Connection) -> bool:
        if is_stale(connection):
            connection.pgconn.consume_input()
        while connection.pgconn.notifies() is not None:
            self._notified = True
        found, self._notified = self._notified, False
        return found

    def _note(self, _: psycopg.Notify) -> None:
        """One that came along with the answer to a question."""
        self._notified = True

    @staticmethod
    async def _readable(connection: Connection, seconds: float) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(connection.fileno(), ready.set)
        timer = loop.call_later(seconds, ready.set)
        try:
            await ready.wait()
        finally:
            timer.cancel()
            loop.remove_reader(connection.fileno())
