"""LISTEN, on a connection of its own. A notification is a hint; without them a worker polls.

Nothing is lost between two waits: what arrives then stays in the socket, and the next wait finds it there. While a
wait sleeps, the connection may be asked something else (``ask``), whose answer proves it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.lifecycle import Backoff
from stowhand.protocols.queue_store import OnListening
from stowhand.retry import exponential
from stowhand.stores.database.link import Connection, Dialer, Row, Values, disconnect, is_idle, rows
from stowhand.stores.database.statements import quote_identifier

PING_DEADLINE = 5.0
PROVE_EVERY = 25.0
"""Seconds of silence after which the connection is asked whether it still listens."""
_TROUBLE = (psycopg.Error, StoreError, OSError)
_IS_LISTENING = b"select count(*) from pg_catalog.pg_listening_channels() c where c = %s"
_BACKEND = b"select pg_catalog.pg_backend_pid()"


class Announcement:
    """What the listening connection shows of its worker, so that only a worker that waits is notified.

    This one shows nothing: every enqueue notifies.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set when it is to show something else."""

    async def begin(self, connection: Connection) -> None:
        """It has just begun to listen."""

    async def update(self, connection: Connection) -> bool:
        """Show what is to be shown. True: until now no enqueue had to notify it, so there may be new work."""
        return False

    def end(self) -> None:
        """The connection is gone, and with it what it showed."""

    def woken(self, now: float) -> None:
        """By a notification."""

    def next_look(self) -> float:
        """When there may be new work without a notification."""
        return float("inf")

    def look(self, now: float) -> bool:
        """True once for each of those times that has come."""
        return False


class Listener:
    """Waits for notifications; reconnects with growing pauses, and merely sleeps as long as that fails."""

    def __init__(
        self,
        dialer: Dialer,
        role: Callable[[], str],
        channel: str | None,
        behind_pooler: str | None,
        announcement: Announcement,
        report: OnListening = lambda state, error, connection: None,
    ) -> None:
        """``channel``: ``None`` where nothing notifies. ``behind_pooler``: what to say there, where a LISTEN would stay
        behind on a server connection that serves other clients next, and reach none; ``None``: trust the address.
        """
        self._dialer = dialer
        self._role = role
        self._channel = channel
        self._behind_pooler = behind_pooler
        self._announcement = announcement
        self._clock = SystemClock()
        self._on_change = report
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        """Of waits: one at a time."""
        self._turn = asyncio.Lock()
        """Of the connection: a wait lets go of it while it sleeps."""
        self._forgot = False
        """The connection has said that it listens no more."""
        self.prove_every = PROVE_EVERY
        self._proven_at = float("-inf")
        self._notified = False
        """A notification came along with the answer to a statement."""
        self._pause: Backoff = exponential(base=0.5, cap=30.0, jitter=0.2)
        self._failures = 0
        self._retry_at = 0.0

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
                    async with self._turn:
                        if await self._ready(self._channel):
                            return True
                    if self._connection is not None:
                        return await self._next_notification(self._connection, until)
                except _TROUBLE as error:
                    self._report("error", error)
                    await self.close()
                    self._retry_at = 0.0  # it worked a moment ago: connect again at once
                    try:
                        async with self._turn:
                            return await self._ready(self._channel)
                    except _TROUBLE as again:
                        self._report("error", again)
                        self._postpone()
                except BaseException:
                    # Canceled in the middle of a question: the connection's state is not known.
                    asked = self._turn.locked()  # by somebody else, who goes on
                    if self._connection is not None and not asked and not is_idle(self._connection):
                        await self.close()
                    raise
        await self._clock.sleep(max(until - self._clock.monotonic(), 0.0))
        return False

    async def ask(self, statement: bytes, values: Values) -> list[Row] | None:
        """The rows of a statement, run on the connection while a wait sleeps; ``None``: there is none to run it on now.

        Raises what psycopg raises, and TimeoutError sooner than elsewhere: it is a ping too.
        """
        connection = self._connection
        if connection is None or self._turn.locked():
            return None
        async with self._turn:
            try:
                with connection.answering_within(PING_DEADLINE):
                    return await rows(connection, statement, values, self._dialer.prepared)
            finally:
                self._announcement.changed.set()  # psycopg has taken the reader away; an error may have ended it all

    def proven(self, *, listens: bool) -> None:
        """What has just been asked has said whether it still listens."""
        self._proven_at = self._clock.monotonic()
        self._forgot = not listens

    @property
    def connection(self) -> Connection | None:
        """The one that listens, if any."""
        return self._connection

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._announcement.end()
        if connection is not None:
            await disconnect(connection)

    async def _ready(self, channel: str) -> bool:
        """Connect, or prove the connection now and then. True: it listens only since now, and may have missed some."""
        if self._connection is None:
            if self._clock.monotonic() < self._retry_at:
                return False
            try:
                await self._listen(channel)
            except _TROUBLE as error:
                self._report("error", error)
                self._postpone()
                return False
            return True
        if self._clock.monotonic() - self._proven_at < self.prove_every:
            return False
        if not await self._is_listening(self._connection, channel):
            self._report("error", _forgotten())
            await self.close()
            await self._listen(channel)
            return True
        self._proven_at = self._clock.monotonic()
        return False

    async def _listen(self, channel: str) -> None:
        self._report("connecting")
        connection = await self._dialer.dial(self._role())
        try:
            if self._behind_pooler is not None:
                # A pooler is known by its process number, which is not the server's.
                ((pid,),) = await rows(connection, _BACKEND, (), False)
                if pid != connection.info.backend_pid:
                    raise StoreError(self._behind_pooler)
            connection.add_notify_handler(self._note)
            await rows(connection, f"listen {quote_identifier(channel)}".encode(), (), False)
            await self._announcement.begin(connection)
        except BaseException:
            self._announcement.end()
            await disconnect(connection)
            raise
        self._connection, self._proven_at, self._failures = connection, self._clock.monotonic(), 0
        self._forgot = False
        self._report("success")

    @staticmethod
    async def _is_listening(connection: Connection, channel: str) -> bool:
        """Asked now and then: a dead peer does not report that it is dead, and a pooler forgets a LISTEN."""
        async with asyncio.timeout(PING_DEADLINE):
            ((channels,),) = await rows(connection, _IS_LISTENING, (channel,), False)
        return bool(channels)

    async def _next_notification(self, connection: Connection, until: float) -> bool:
        """Sleep until the socket has something to read; then read it all."""
        announcement = self._announcement
        while True:
            async with self._turn:
                announcement.changed.clear()
                if not is_idle(connection):
                    raise StoreError("the connection broke, or did not answer, when it was asked something else")
                if self._forgot:
                    raise _forgotten()
                if await announcement.update(connection):
                    return True
                now = self._clock.monotonic()
                if self._read_notifications(connection):
                    self._proven_at = now
                    announcement.woken(now)
                    return True
                if announcement.look(now):
                    return True
                if now >= until:
                    return False
            await self._readable(connection, min(until, announcement.next_look()) - now)

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
        """Wait until there is something to read, or something else to announce, or the time is over."""
        loop, changed = asyncio.get_running_loop(), self._announcement.changed
        loop.add_reader(connection.fileno(), changed.set)
        timer = loop.call_later(seconds, changed.set)
        try:
            await changed.wait()
        finally:
            timer.cancel()
            if not self._turn.locked():  # else the socket's reader is that of the question under way
                loop.remove_reader(connection.fileno())

    def _report(self, state: str, error: BaseException | None = None) -> None:
        self._on_change(state, error, self._connection)

    def _postpone(self) -> None:
        self._failures += 1
        self._retry_at = self._clock.monotonic() + self._pause(self._failures)


def _forgotten() -> StoreError:
    return StoreError("the connection listens no more: it was made to forget its LISTEN")
