"""Learning that another connection committed. SQLite counts such commits (``PRAGMA data_version``), and reading the
count is cheap.

Within the process an enqueue rings at once.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from stowhand.clock import Clock, SystemClock
from stowhand.sleepers import Sleepers
from stowhand.stores.database.sqlite_connection import OnConnection, SqliteConnection
from stowhand.stores.database.sqlite_errors import is_busy

TICK_SECONDS = 0.02
"""Seconds between two looks while a worker waits: about 0.8 % of one processor, nearly all of it for being woken; the
look itself takes 4 microseconds."""
ACTIVE_TICK_SECONDS = 0.005
UNKNOWN_VERSION = -1
"""No version: the next one is news."""
ACTIVE_PERIOD_SECONDS = 2.0
"""Seconds after the last news in which looks are closer together."""


class DirectWake:
    """Wakes sleepers when it is rung, and at no other time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sleepers = Sleepers(clock)
        self._wakes_before = 0
        """When ``wait`` was last called: a hint that came since is kept for the next call."""

    @property
    def wakes(self) -> int:
        """How often it rang."""
        return self._sleepers.wakes

    def look(self) -> None:
        """Ring if something has been committed that it was not rung for."""

    def ring(self) -> None:
        """There may be work. Any thread may say so."""
        self._sleepers.wake()

    async def wait(self, timeout: float) -> bool:
        """True once it has rung since the last call; False after ``timeout`` seconds."""
        known_wakes, self._wakes_before = self._wakes_before, self._sleepers.wakes
        return await self.wait_since(known_wakes, timeout)

    async def wait_since(self, known_wakes: int, timeout: float) -> bool:
        """True once ``wakes`` is another number; for any number of callers, each of which remembers its own."""
        return await self._sleepers.wait(known_wakes, timeout)

    def close(self) -> None:
        """Let go what it looks with."""


class Wake(DirectWake):
    """Rings after every commit of another connection. Its own connection does not see its own commits."""

    def __init__(self, connection: SqliteConnection[Any]) -> None:
        super().__init__(SystemClock())
        self._connection = connection
        self._seen: tuple[int, int] | None = None
        self._changed_at = float("-inf")

    def look(self) -> None:
        """Ring if another connection committed since the last look. The first look after opening only remembers."""
        seen = self._connection.read(self._version)
        if self._seen is not None and seen != self._seen:
            self.ring()
        self._seen = seen

    def tick(self) -> float:
        """Seconds until the next look."""
        return (
            ACTIVE_TICK_SECONDS if self._clock.monotonic() - self._changed_at < ACTIVE_PERIOD_SECONDS else TICK_SECONDS
        )

    def ring(self) -> None:
        self._changed_at = self._clock.monotonic()
        super().ring()

    async def wait_since(self, known_wakes: int, timeout: float) -> bool:
        deadline = self._clock.monotonic() + timeout
        while not await self._sleepers.wait(
            known_wakes, min(self.tick(), max(deadline - self._clock.monotonic(), 0.0))
        ):
            self.look()
            if self._clock.monotonic() >= deadline:
                return self._sleepers.wakes != known_wakes
        return True

    def close(self) -> None:
        self._seen = None
        self._connection.close()

    def _version(self, on: OnConnection) -> tuple[int, int]:
        # The number means something only within one connection, so which connection it is belongs to it.
        try:
            (version,) = on.raw.execute("PRAGMA data_version").fetchone()
        except sqlite3.OperationalError as error:
            # Without write-ahead logging no connection can look during a commit: the next look sees it.
            if not is_busy(error):
                raise
            return self._seen or (self._connection.open_count, UNKNOWN_VERSION)
        return self._connection.open_count, version
