"""LISTEN, on a connection of its own. A notification is a hint; without them a worker polls.

Nothing is lost while nobody waits: what arrives then stays in the socket, and the next wait finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.lifecycle import Backoff
from stowhand.retry import exponential
from stowhand.stores.database.address import Address
from stowhand.stores.database.link import Connection, Dialer, hang_up, is_idle, rows
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.idle_announcer import IdleAnnouncer

PING_DEADLINE = 5.0
PROVE_EVERY = 25.0
"""Seconds of silence after which the connection is asked whether it still listens."""
_TROUBLE = (psycopg.Error, StoreError, OSError)


class Listener:
    """Waits for notifications; reconnects with growing pauses, and merely sleeps as long as that fails."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context
        self._clock = SystemClock()
        url = context.options.listen_url
        self._dialer = Dialer(Address(url), context.dialer.prepared) if url else context.dialer
        self.on_listening: Callable[[str, BaseException | None], None] | None = None
        """Told "connecting", "success", or "error" and why."""
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self.prove_every = PROVE_EVERY
        self._proven_at = float("-inf")
        self._idle_announcer = IdleAnnouncer()
        self._stir = asyncio.Event()
        self._heard_some = False
        """Notifications that came along with the answer to a question."""
        self._pause: Backoff = exponential(base=0.5, cap=30.0, jitter=0.2)
        self._failures = 0
        self._not_before = 0.0

    @property
    def is_listening(self) -> bool:
        """The listening connection has answered when it was last asked."""
        return self._connection is not None

    def claimed(self, jobs: int) -> None:
        """A claim brought so many: who gets many need not be woken."""
        self._idle_announcer.claimed(jobs, self._clock.monotonic())
        if self._idle_announcer.wish is not self._idle_announcer.asleep or not jobs:
            self._stir.set()

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
                if self._connection is not None and not is_idle(self._connection):
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
        await self._drop()

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
        if self._clock.monotonic() - self._proven_at < self.prove_every:
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
        connection = await self._dialer.dial(self._context.role("listen"))
        try:
            await self._refuse_pooler(connection)
            connection.add_notify_handler(self._note)
            await rows(connection, self._context.statements["listen"], (), False)
            if self._idle_announcer.wish:
                await self._fall_asleep(connection)
        except BaseException:
            self._idle_announcer.woke_up()
            await hang_up(connection)
            raise
        self._connection, self._proven_at, self._failures = connection, self._clock.monotonic(), 0
        self._tell("success")

    async def _fall_asleep(self, connection: Connection) -> None:
        await rows(connection, self._context.statements["fall_asleep"], (), False)
        self._idle_announcer.fell_asleep(self._clock.monotonic())

    async def _wake_up(self, connection: Connection) -> None:
        await rows(connection, self._context.statements["wake_up"], (), False)
        self._idle_announcer.woke_up()

    async def _refuse_pooler(self, connection: Connection) -> None:
        """A LISTEN would stay behind on a connection that serves others next, and be heard by nobody. A pooler hands
        out numbers of its own for the server's processes. Whoever gives an address for listening knows better."""
        if self._context.options.listen_url is None:
            ((pid,),) = await rows(connection, self._context.statements["backend_pid"], (), False)
            if pid != connection.info.backend_pid:
                raise StoreError(
                    "a pooler stands before the database, so nothing can be heard: give a direct address (--listen-url)"
                )

    async def _is_listening(self, connection: Connection) -> bool:
        """Asked now and then: a dead peer does not say that it is dead, and a pooler forgets a LISTEN."""
        async with asyncio.timeout(PING_DEADLINE):
            ((channels,),) = await rows(connection, self._context.statements["is_listening"], (), False)
        return bool(channels)

    async def _heard(self, connection: Connection, until: float) -> bool:
        """Sleep until the socket has something to read; then read it all."""
        while True:
            self._stir.clear()
            if self._idle_announcer.wish and not self._idle_announcer.asleep:
                await self._fall_asleep(connection)
                return True  # look once more: until now nobody had to wake us
            if self._idle_announcer.asleep and not self._idle_announcer.wish:
                await self._wake_up(connection)
            now = self._clock.monotonic()
            if self._news(connection):
                self._proven_at = now
                self._idle_announcer.woken(now)
                return True
            if self._idle_announcer.look(now):
                return True
            if now >= until:
                return False
            await self._readable(connection, min(until, self._idle_announcer.next_look()) - now)

    def _news(self, connection: Connection) -> bool:
        """Read what has come: psycopg's own way takes turns of the loop, and somebody waits for the job to start."""
        connection.pgconn.consume_input()
        while connection.pgconn.notifies() is not None:
            self._heard_some = True
        found, self._heard_some = self._heard_some, False
        return found

    def _note(self, _: psycopg.Notify) -> None:
        self._heard_some = True

    async def _readable(self, connection: Connection, seconds: float) -> None:
        """Until there is something to read, or a claim has changed our mind; no longer than that."""
        loop = asyncio.get_running_loop()
        loop.add_reader(connection.fileno(), self._stir.set)
        timer = loop.call_later(seconds, self._stir.set)
        try:
            await self._stir.wait()
        finally:
            timer.cancel()
            loop.remove_reader(connection.fileno())

    def _tell(self, state: str, error: BaseException | None = None) -> None:
        if self.on_listening is not None:
            self.on_listening(state, error)

    def _put_off(self) -> None:
        self._failures += 1
        self._not_before = self._clock.monotonic() + self._pause(self._failures)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._idle_announcer.woke_up()
        if connection is not None:
            await hang_up(connection)
