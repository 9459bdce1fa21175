"""LISTEN on its own connection. A notification is a hint; without notifications a worker polls.

Notifications between two waits are not lost: they stay in the socket until the next wait. During a wait, the connection
may run other statements (``ask``), whose replies also prove that it works.
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

PING_TIMEOUT_SECONDS = 5.0
PROOF_INTERVAL_SECONDS = 25.0
"""Silence after which the connection must prove that it still listens."""
_CONNECTION_ERRORS = (psycopg.Error, StoreError, OSError)
_IS_LISTENING = b"select count(*) from pg_catalog.pg_listening_channels() c where c = %s"
_BACKEND_PID = b"select pg_catalog.pg_backend_pid()"


class Announcement:
    """State of the worker that its listening connection announces, so that only idle workers are notified.

    This base announces nothing: every enqueue notifies.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set when the announcement must be updated."""

    async def begin(self, connection: Connection) -> None:
        """Start the announcement on a connection that has just started to listen."""

    async def update(self, connection: Connection) -> bool:
        """Update the announcement. Return True if no enqueue notified the worker before, so there may be new work."""
        return False

    def end(self) -> None:
        """End the announcement: its connection is lost."""

    def note_wakeup(self, now: float) -> None:
        """Record that a notification woke the worker."""

    def next_recheck_at(self) -> float:
        """Return the next time when there may be new work without a notification."""
        return float("inf")

    def take_recheck(self, now: float) -> bool:
        """Return True once for each of these times that has passed."""
        return False


class Listener:
    """A connection that waits for notifications. It reconnects with growing pauses."""

    def __init__(
        self,
        dialer: Dialer,
        role: Callable[[], str],
        channel: str | None,
        pooler_warning: str | None,
        announcement: Announcement,
        on_change: OnListening = lambda state, error, connection: None,
    ) -> None:
        """Create a listener that is not connected yet.

        Args:
            dialer: Opens connections.
            role: The role in the connection's name.
            channel: The channel; ``None`` if nothing notifies.
            pooler_warning: The warning for the address of a pooler, behind which no notification arrives. ``None``: do
                not check the address.
            announcement: The announced state of the worker.
            on_change: Called with each change of the listening connection.

        """
        self._dialer = dialer
        self._role = role
        self._channel = channel
        self._pooler_warning = pooler_warning
        self._announcement = announcement
        self._clock = SystemClock()
        self._on_change = on_change
        self._connection: Connection | None = None
        self._wait_lock = asyncio.Lock()
        """Held by a wait, so that only one runs at a time."""
        self._use_lock = asyncio.Lock()
        """Held by a user of the connection. A wait releases it while it sleeps."""
        self._has_stopped_listening = False
        """Whether the connection no longer listens."""
        self.proof_interval_seconds = PROOF_INTERVAL_SECONDS
        self._proven_at = float("-inf")
        self._has_notification = False
        """Whether a notification arrived with the reply to a statement."""
        self._pause: Backoff = exponential(base=0.5, cap=30.0, jitter=0.2)
        self._failures = 0
        self._retry_at = 0.0

    @property
    def is_listening(self) -> bool:
        """Whether the listening connection answered its last statement."""
        return self._connection is not None

    async def wait(self, timeout: float) -> bool:
        """Return True when there may be new work; False after ``timeout`` seconds. Never raise an error."""
        deadline = self._clock.monotonic() + timeout
        if self._channel is not None:
            async with self._wait_lock:
                try:
                    async with self._use_lock:
                        if await self._prepare(self._channel):
                            return True
                    if self._connection is not None:
                        return await self._next_notification(self._connection, deadline)
                except _CONNECTION_ERRORS as error:
                    self._report("error", error)
                    await self.close()
                    self._retry_at = 0.0  # the connection worked before, so connect again at once
                    try:
                        async with self._use_lock:
                            return await self._prepare(self._channel)
                    except _CONNECTION_ERRORS as second_error:
                        self._report("error", second_error)
                        self._postpone()
                except BaseException:
                    # Canceled during a statement: the connection's state is unknown.
                    is_used_elsewhere = self._use_lock.locked()  # another caller continues to use it
                    if self._connection is not None and not is_used_elsewhere and not is_idle(self._connection):
                        await self.close()
                    raise
        await self._clock.sleep(max(deadline - self._clock.monotonic(), 0.0))
        return False

    async def ask(self, statement: bytes, values: Values) -> list[Row] | None:
        """Run a statement on the connection while a wait sleeps. ``None`` if there is no free connection now.

        Raise psycopg's errors, and TimeoutError earlier than elsewhere, because the statement is a ping too.
        """
        connection = self._connection
        if connection is None or self._use_lock.locked():
            return None
        async with self._use_lock:
            try:
                with connection.answering_within(PING_TIMEOUT_SECONDS):
                    return await rows(connection, statement, values, self._dialer.prepared)
            finally:
                # psycopg has removed the reader, and an error may have closed the connection.
                self._announcement.changed.set()

    def note_proof(self, *, listens: bool) -> None:
        """Record whether a statement has proved that the connection still listens."""
        self._proven_at = self._clock.monotonic()
        self._has_stopped_listening = not listens

    @property
    def connection(self) -> Connection | None:
        """The listening connection, if there is one."""
        return self._connection

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._announcement.end()
        if connection is not None:
            await disconnect(connection)

    async def _prepare(self, channel: str) -> bool:
        """Connect, or test the connection at intervals. Return True if it has just begun to listen."""
        if self._connection is None:
            if self._clock.monotonic() < self._retry_at:
                return False
            try:
                await self._listen(channel)
            except _CONNECTION_ERRORS as error:
                self._report("error", error)
                self._postpone()
                return False
            return True
        if self._clock.monotonic() - self._proven_at < self.proof_interval_seconds:
            return False
        if not await self._is_listening(self._connection, channel):
            self._report("error", _lost_listen_error())
            await self.close()
            await self._listen(channel)
            return True
        self._proven_at = self._clock.monotonic()
        return False

    async def _listen(self, channel: str) -> None:
        self._report("connecting")
        connection = await self._dialer.dial(self._role())
        try:
            if self._pooler_warning is not None:
                # Behind a pooler, the process number of the connection is not that of the server.
                ((pid,),) = await rows(connection, _BACKEND_PID, (), False)
                if pid != connection.info.backend_pid:
                    raise StoreError(self._pooler_warning)
            connection.add_notify_handler(self._on_notification)
            await rows(connection, f"listen {quote_identifier(channel)}".encode(), (), False)
            await self._announcement.begin(connection)
        except BaseException:
            self._announcement.end()
            await disconnect(connection)
            raise
        self._connection, self._proven_at, self._failures = connection, self._clock.monotonic(), 0
        self._has_stopped_listening = False
        self._report("success")

    @staticmethod
    async def _is_listening(connection: Connection, channel: str) -> bool:
        """Return whether the server has the LISTEN. A lost peer sends no error, and a pooler drops a LISTEN."""
        async with asyncio.timeout(PING_TIMEOUT_SECONDS):
            ((channels,),) = await rows(connection, _IS_LISTENING, (channel,), False)
        return bool(channels)

    async def _next_notification(self, connection: Connection, deadline: float) -> bool:
        """Sleep until the socket has data, then read all of it. Return whether there may be new work."""
        announcement = self._announcement
        while True:
            async with self._use_lock:
                announcement.changed.clear()
                if not is_idle(connection):
                    raise StoreError("the connection broke, or did not answer another statement")
                if self._has_stopped_listening:
                    raise _lost_listen_error()
                if await announcement.update(connection):
                    return True
                now = self._clock.monotonic()
                if self._read_notifications(connection):
                    self._proven_at = now
                    announcement.note_wakeup(now)
                    return True
                if announcement.take_recheck(now):
                    return True
                if now >= deadline:
                    return False
            await self._wait_readable(connection, min(deadline, announcement.next_recheck_at()) - now)

    def _read_notifications(self, connection: Connection) -> bool:
        """Read what has arrived, without psycopg's generator, whose loop turns would delay the job."""
        connection.pgconn.consume_input()
        while connection.pgconn.notifies() is not None:
            self._has_notification = True
        has_notification, self._has_notification = self._has_notification, False
        return has_notification

    def _on_notification(self, _: psycopg.Notify) -> None:
        self._has_notification = True

    async def _wait_readable(self, connection: Connection, seconds: float) -> None:
        """Wait until the socket has data, the announcement changes, or the time is over."""
        loop, changed = asyncio.get_running_loop(), self._announcement.changed
        loop.add_reader(connection.fileno(), changed.set)
        timer = loop.call_later(seconds, changed.set)
        try:
            await changed.wait()
        finally:
            timer.cancel()
            if not self._use_lock.locked():  # otherwise the reader of the socket belongs to a running statement
                loop.remove_reader(connection.fileno())

    def _report(self, state: str, error: BaseException | None = None) -> None:
        self._on_change(state, error, self._connection)

    def _postpone(self) -> None:
        self._failures += 1
        self._retry_at = self._clock.monotonic() + self._pause(self._failures)


def _lost_listen_error() -> StoreError:
    return StoreError("the connection no longer listens: its LISTEN was lost")
