"""Announces on the listening connection whether this worker is idle; idle_announcer.py says when."""

from __future__ import annotations

import asyncio

from stowhand.clock import SystemClock
from stowhand.stores.database.link import Connection, rows
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.idle_announcer import IdleAnnouncer


class IdleAnnouncement:
    """An ``Announcement`` of the listener's."""

    def __init__(self, context: PostgresContext) -> None:
        self._statements = context.statements
        self._idle_announcer = IdleAnnouncer()
        self._clock = SystemClock()
        self.changed = asyncio.Event()

    def claimed(self, jobs: int) -> None:
        """A claim found so many: a worker that gets many need not be notified."""
        self._idle_announcer.claimed(jobs, self._clock.monotonic())
        if self._idle_announcer.should_sleep is not self._idle_announcer.asleep or not jobs:
            self.changed.set()

    async def begin(self, connection: Connection) -> None:
        """Idle, unless claims say otherwise."""
        if self._idle_announcer.should_sleep:
            await self._fall_asleep(connection)

    async def update(self, connection: Connection) -> bool:
        """True when it is announced as idle only since now: until then no enqueue had to notify it."""
        if self._idle_announcer.should_sleep and not self._idle_announcer.asleep:
            await self._fall_asleep(connection)
            return True
        if self._idle_announcer.asleep and not self._idle_announcer.should_sleep:
            await rows(connection, self._statements["wake_up"], (), False)
            self._idle_announcer.woke_up()
        return False

    def end(self) -> None:
        """The lock is gone with the connection."""
        self._idle_announcer.woke_up()

    def woken(self, now: float) -> None:
        """Counted."""
        self._idle_announcer.woken(now)

    def next_look(self) -> float:
        """When to claim again without a notification."""
        return self._idle_announcer.next_look()

    def look(self, now: float) -> bool:
        """True once for each of those times that has come."""
        return self._idle_announcer.look(now)

    async def _fall_asleep(self, connection: Connection) -> None:
        await rows(connection, self._statements["fall_asleep"], (), False)
        self._idle_announcer.fell_asleep(self._clock.monotonic())
