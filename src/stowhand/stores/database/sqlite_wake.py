"""Wake-ups by the commits of other connections. SQLite counts these in ``PRAGMA data_version``, which is cheap.

Within the process an enqueue wakes sleepers directly.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from stowhand.clock import Clock, SystemClock
from stowhand.sleepers import Sleepers
from stowhand.stores.database.sqlite_connection import OnConnection, SqliteConnection
from stowhand.stores.database.sqlite_errors import is_busy

TICK_SECONDS = 0.02
"""Interval of the checks while a worker waits. They use about 0.8 % of one processor, almost all of it for the wake-up.
The check itself takes 4 microseconds."""
ACTIVE_TICK_SECONDS = 0.005
UNKNOWN_VERSION = -1
"""Differs from every version, so the next check wakes sleepers."""
ACTIVE_PERIOD_SECONDS = 2.0
"""Checks are more frequent during this time after the last change."""


class DirectWake:
    """Wakes sleepers on ``ring``, and at no other time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sleepers = Sleepers(clock)
        self._last_wakes = 0
        """The number of wakes when ``wait`` was last called. Later wakes end the next call."""

    @property
    def wakes(self) -> int:
        """The number of wakes so far."""
        return self._sleepers.wakes

    def look(self) -> None:
        """Wake sleepers if there was a commit without a call of ``ring``."""

    def ring(self) -> None:
        """Wake sleepers, as there may be work. Any thread may call this."""
        self._sleepers.wake()

    async def wait(self, timeout: float) -> bool:
        """Return True on a wake since the last call; False after ``timeout`` seconds."""
        known_wakes, self._last_wakes = self._last_wakes, self._sleepers.wakes
        return await self.wait_since(known_wakes, timeout)

    async def wait_since(self, known_wakes: int, timeout: float) -> bool:
        """Return True once ``wakes`` differs from ``known_wakes``. Any number of callers may wait."""
        return await self._sleepers.wait(known_wakes, timeout)

    def close(self) -> None:
        """Close the connection that it checks with."""


class Wake(DirectWake):
    """Wakes sleepers after every commit of another connection. Its connection does not see its own commits."""

    def __init__(self, connection: SqliteConnection[Any]) -> None:
        super().__init__(SystemClock())
        self._connection = connection
        self._last_version: tuple[int, int] | None = None
        self._changed_at = float("-inf")

    def look(self) -> None:
        """Wake sleepers if another connection committed since the last check. The first check stores the version."""
        version = self._connection.read(self._read_version)
        if self._last_version is not None and version != self._last_version:
            self.ring()
        self._last_version = version

    def tick(self) -> float:
        """Return the seconds until the next check."""
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
        self._last_version = None
        self._connection.close()

    def _read_version(self, context: OnConnection) -> tuple[int, int]:
        # A version is comparable only within one connection, so return it with the connection's number.
        try:
            (version,) = context.raw.execute("PRAGMA data_version").fetchone()
        except sqlite3.OperationalError as error:
            # Without write-ahead logging no connection can read during a commit: the next check sees it.
            if not is_busy(error):
                raise
            return self._last_version or (self._connection.open_count, UNKNOWN_VERSION)
        return self._connection.open_count, version
