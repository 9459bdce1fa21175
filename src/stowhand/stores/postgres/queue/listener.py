"""LISTEN, on a connection of its own. A notification is a hint; without them a worker polls.

Nothing is lost between two waits: what arrives then stays in the socket, and the next wait finds it there.
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
        """Called with "connecting", "success", or "error" and why."""
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self.prove_every = PROVE_EVERY
        self._proven_at = float("-inf")
        self._idle_announcer = IdleAnnouncer()
        self._recheck = asyncio.Event()
        self._notified = False
        """A notification came along with the answer to a statement."""
        self._pause: Backoff = exponential(base=0.5, cap=30.0, jitter=0.2)
        self._failures = 0
        self._retry_at = 0.0

    @property
    def is_listening(self) -> bool:
        """The listening connection answered when it was last asked."""
        return self._connection is not None

    def claimed(self, jobs: int) -> None:
        """A claim found so many: a worker that gets many need not be notified."""
        self._idle_announcer.claimed(jobs, self._clock.monotonic())
        if self._idle_announcer.should_sleep is not self._idle_announcer.asleep or not jobs:
            self._recheck.set()

    async def wait(self, timeout: float) -> bool:
        """True when there may be new work; False after ``timeout`` seconds. Raises nothing."""
        until = self._clock.monotonic() + timeout
        async with self._lock:
            try:
                if await self._ready():
                    return True
                if self._connection is not None:
                    return await self._next_notification(self._connection, until)
            except _TROUBLE as error:
                self._report("error", error)
                await self._drop()
                self._retry_at = 0.0  # it worked a moment ago: connect again at once
                try:
                    return await self._ready()
                except _TROUBLE as again:
                    self._report("error", again)
                    self._postpone()
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
        """Close the connection."""
        await self._drop()

    async def _ready(self) -> bool:
        """Connect, or prove the connection now and then. True: it listens only since now, and may have missed some."""
        if self._connection is None:
            if self._clock.monotonic() < self._retry_at:
                return False
            try:
                await self._listen()
            except _TROUBLE as error:
                self._report("error", error)
                self._postpone()
                return False
            return True
        if self._clock.monotonic() - self._proven_at < self.prove_every:
            return False
        if not await self._is_listening(self._connection):
            self._report("error", StoreError("the connection listens no more: it was made to forget its LISTEN"))
            await self._drop()
            await self._listen()
            return True
        self._proven_at = self._clock.monotonic()
        return False

    async def _listen(self) -> None:
        self._report("connecting")
        connection = await self._dialer.dial(self._context.role("listen"))
        try:
            await self._refuse_pooler(connection)
            connection.add_notify_handler(self._note)
            await rows(connection, self._context.statements["listen"], (), False)
            if self._idle_announcer.should_sleep:
                await self._fall_asleep(connection)
        except BaseException:
            self._idle_announcer.woke_up()
            await hang_up(connection)
            raise
        self._connection, self._proven_at, self._failures = connection, self._clock.monotonic(), 0
        self._report("success")

    async def _fall_asleep(self, connection: Connection) -> None:
        await rows(connection, self._context.statements["fall_asleep"], (), False)
        self._idle_announcer.fell_asleep(self._clock.monotonic())

    async def _wake_up(self, connection: Connection) -> None:
        await rows(connection, self._context.statements["wake_up"], (), False)
        self._idle_announcer.woke_up()

    async def _refuse_pooler(self, connection: Connection) -> None:
        """A LISTEN would stay behind on a server connection that serves other clients next, and reach none.

        A pooler is known by its process number, which is not the server's. An address given for listening is trusted.
        """
        if self._context.options.listen_url is None:
            ((pid,),) = await rows(connection, self._context.statements["backend_pid"], (), False)
            if pid != connection.info.backend_pid:
                raise StoreError(
                    "behind a pooler no notification arrives: give a direct address of the database (--listen-url)"
                )

    async def _is_listening(self, connection: Connection) -> bool:
        """Asked now and then: a dead peer does not report that it is dead, and a pooler forgets a LISTEN."""
        async with asyncio.timeout(PING_DEADLINE):
            ((channels,),) = await rows(connection, self._context.statements["is_listening"], (), False)
        return bool(channels)

    async def _next_notification(self, connection: Connection, until: float) -> bool:
        """Sleep until the socket has something to read; then read it all."""
        while True:
            self._recheck.clear()
            if self._idle_announcer.should_sleep and not self._idle_announcer.asleep:
                await self._fall_asleep(connection)
                return True  # claim once more: until now no enqueue had to notify us
            if self._idle_announcer.asleep and not self._idle_announcer.should_sleep:
                await self._wake_up(connection)
            now = self._clock.monotonic()
            if self._read_notifications(connection):
                self._proven_at = now
                self._idle_announcer.woken(now)
                return True
            if self._idle_announcer.look(now):
                return True
            if now >= until:
                return False
            await self._readable(connection, min(until, self._idle_announcer.next_look()) - now)

    def _read_notifications(self, connection: Connection) -> bool:
        """Read what has come, without psycopg's generator, which would cost turns of the loop before the job starts."""
        connection.pgconn.consume_input()
        while connection.pgconn.notifies() is not None:
            self._notified = True
        found, self._notified = self._notified, False
        return found

    def _note(self, _: psycopg.Notify) -> None:
        self._notified = True

    async def _readable(self, connection: Connection, seconds: float) -> None:
        """Wait until there is something to read, or a claim has changed what to announce, or the time is over."""
        loop = asyncio.get_running_loop()
        loop.add_reader(connection.fileno(), self._recheck.set)
        timer = loop.call_later(seconds, self._recheck.set)
        try:
            await self._recheck.wait()
        finally:
            timer.cancel()
            loop.remove_reader(connection.fileno())

    def _report(self, state: str, error: BaseException | None = None) -> None:
        if self.on_listening is not None:
            self.on_listening(state, error)

    def _postpone(self) -> None:
        self._failures += 1
        self._retry_at = self._clock.monotonic() + self._pause(self._failures)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._idle_announcer.woke_up()
        if connection is not None:
            await hang_up(connection)
