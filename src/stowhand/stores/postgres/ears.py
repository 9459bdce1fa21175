"""LISTEN, on a connection of its own. A notification is a hint; without them a worker polls.

Nothing is lost while nobody waits: what arrives then stays in the socket, and the next wait finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from stowhand.clock import SystemClock
from stowhand.database.address import Address
from stowhand.database.link import Connection, Dialer, hang_up, rows
from stowhand.errors import StoreError
from stowhand.stores.postgres.home import Home

PING_DEADLINE = 5.0
PROVE_EVERY = 25.0
"""Seconds of silence after which the connection is asked whether it still listens."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

_TROUBLE = (psycopg.Error, StoreError, OSError)


class Ears:
    """Waits for notifications; reconnects with growing pauses, and merely sleeps as long as that fails."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._clock = SystemClock()
        url = home.options.listen_url
        self._dialer = Dialer(Address(url), home.dialer.prepared) if url else home.dialer
        self.on_listening: Callable[[str, BaseException | None], None] | None = None
        """Told "connecting", "success", or "error" and why."""
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._proven_at = float("-inf")
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
            except _TROUBLE as error:
                self._tell("error", error)
                await self._drop()
                self._not_before = 0.0  # it worked a moment ago: once more, at once
                try:
                    return await self._ready()
                except _TROUBLE as again:
                    self._tell("error", again)
                    self._put_off()
            except BaseException:
                # Canceled in the middle of a question: the connection's state is not known.
                if self._connection is not None and not _is_idle(self._connection):
                    await self._drop()
                raise
        await self._clock.sleep(max(until - self._clock.monotonic(), 0.0))
        return False

    @property
    def connection(self) -> Connection | None:
        """The one that listens, if any."""
        return self._connection

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
            except _TROUBLE as error:
                self._tell("error", error)
                self._put_off()
                return False
            return True
        if self._clock.monotonic() - self._proven_at < PROVE_EVERY:
            return False
        if not await self._is_listening(self._connection):
            self._tell("error", StoreError("the connection listens no more: somebody has told it so"))
            await self._drop()
            await self._listen()
            return True
        self._proven_at = self._clock.monotonic()
        return False

    async def _listen(self) -> None:
        self._tell("connecting")
        connection = await self._dialer.dial(self._home.role("listen"))
        try:
            await self._refuse_pooler(connection)
            await rows(connection, self._home.statements["listen"], (), False)
        except BaseException:
            await hang_up(connection)
            raise
        self._connection, self._proven_at, self._pause = connection, self._clock.monotonic(), _FIRST_PAUSE
        self._tell("success")

    async def _refuse_pooler(self, connection: Connection) -> None:
        """A LISTEN would stay behind on a connection that serves others next, and be heard by nobody. A pooler hands
        out numbers of its own for the server's processes. Whoever gives an address for listening knows better."""
        if self._home.options.listen_url is None:
            ((pid,),) = await rows(connection, self._home.statements["backend_pid"], (), False)
            if pid != connection.info.backend_pid:
                raise StoreError(
                    "a pooler stands before the database, so nothing can be heard: give a direct address (--listen-url)"
                )

    async def _is_listening(self, connection: Connection) -> bool:
        """Asked now and then: a dead peer does not say that it is dead, and a pooler forgets a LISTEN."""
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

    def _tell(self, state: str, error: BaseException | None = None) -> None:
        if self.on_listening is not None:
            self.on_listening(state, error)

    def _put_off(self) -> None:
        self._not_before = self._clock.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)


def _is_idle(connection: Connection) -> bool:
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
