"""LISTEN, on a connection of its own. A notification is a hint; without them a worker polls.

Nothing is lost while nobody waits: what arrives then stays in the socket, and the next wait finds it there.
"""

from __future__ import annotations

import asyncio

import psycopg

from stowhand.clock import SystemClock
from stowhand.database.address import Address
from stowhand.database.link import Connection, Dialer, hang_up, rows
from stowhand.errors import StoreError
from stowhand.stores.postgres.home import Home

PING_DEADLINE = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

_TROUBLE = (psycopg.Error, StoreError, OSError)


class Ears:
    """Waits for notifications; reconnects with growing pauses, and merely sleeps as long as that fails."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._clock = SystemClock()
        url = home.options.listen_url
        self._dialer = Dialer(Address(url), home.options.prepared_statements) if url else home.dialer
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._unproven = False
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0

    @property
    def hears(self) -> bool:
        """The listening connection has answered when it was last asked."""
        return self._connection is not None

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work; False after ``timeout`` seconds. Raises nothing."""
        until = self._clock.monotonic() + timeout
        async with self._turn:
            try:
                if await self._ready():
                    return True
                if self._connection is not None:
                    return await self._heard(self._connection, until)
            except _TROUBLE:
                await self._drop()
                self._not_before = 0.0  # it worked a moment ago: once more, at once
                try:
                    return await self._ready()
                except _TROUBLE:
                    self._put_off()
            except BaseException:
                # Canceled in the middle of a question: the connection's state is not known.
                if self._connection is not None and not _is_idle(self._connection):
                    await self._drop()
                raise
        await self._clock.sleep(max(until - self._clock.monotonic(), 0.0))
        return False

    async def close(self) -> None:
        """Let the connection go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

    async def _ready(self) -> bool:
        """Listening, and proven to be. True: only just now, so what was sent before went unheard."""
        if self._connection is None:
            if self._clock.monotonic() < self._not_before:
                return False
            try:
                await self._listen()
            except _TROUBLE:
                self._put_off()
                return False
            return True
        if self._unproven and not await self._is_listening(self._connection):
            await self._drop()
            await self._listen()
            return True
        self._unproven = False
        return False

    async def _listen(self) -> None:
        connection = await self._dialer.dial(self._home.role("listen"))
        try:
            await rows(connection, self._home.statements["listen"], (), False)
        except BaseException:
            await hang_up(connection)
            raise
        self._connection, self._unproven, self._pause = connection, False, _FIRST_PAUSE

    async def _is_listening(self, connection: Connection) -> bool:
        """Asked after each silent wait: a dead peer does not say that it is dead, and a pooler forgets a LISTEN."""
        async with asyncio.timeout(PING_DEADLINE):
            ((channels,),) = await rows(connection, self._home.statements["is_listening"], (), False)
        return bool(channels)

    async def _heard(self, connection: Connection, until: float) -> bool:
        """Sleep until the socket has something to read; then read it all."""
        loop = asyncio.get_running_loop()
        while True:
            async for _ in connection.notifies(timeout=0):
                return True
            left = until - self._clock.monotonic()
            if left <= 0:
                self._unproven = True
                return False
            readable = asyncio.Event()
            loop.add_reader(connection.fileno(), readable.set)
            try:
                async with asyncio.timeout(left):
                    await readable.wait()
            except TimeoutError:
                continue
            finally:
                loop.remove_reader(connection.fileno())

    def _put_off(self) -> None:
        self._not_before = self._clock.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)


def _is_idle(connection: Connection) -> bool:
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
