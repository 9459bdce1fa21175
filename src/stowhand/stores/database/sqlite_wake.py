"""Learning that another connection committed. SQLite counts such commits (``PRAGMA data_version``), and reading the
count is cheap.

Within the process an enqueue rings at once. Hints are kept until they are read: one given once too often costs an
empty claim, a lost one a poll.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

from stowhand.clock import Cancelable, SystemClock
from stowhand.stores.database.sqlite_connection import Connection
from stowhand.stores.database.sqlite_trouble import is_busy

TICK = 0.02
"""Seconds between two looks while a worker waits: about 0.8 % of one processor, nearly all of it for being woken; the
look itself takes 4 microseconds."""
LIVELY_TICK = 0.005
UNSEEN = -1
"""No version: the next one is news."""
LIVELY = 2.0
"""Seconds after the last news in which looks are closer together."""


class Wake:
    """Sleepers, and what wakes them. The connection is its own: a connection does not see its own commits."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._sleepers: dict[asyncio.Future[bool], asyncio.AbstractEventLoop] = {}
        self._rung = False
        self._seen: tuple[int, int] | None = None
        self._news = float("-inf")

    def look(self) -> None:
        """Ring if another connection committed since the last look. The first look after opening only remembers."""
        seen = self._connection.read(self._version)
        if self._seen is not None and seen != self._seen:
            self.ring()
        self._seen = seen

    def tick(self) -> float:
        """Seconds until the next look."""
        return LIVELY_TICK if self._clock.monotonic() - self._news < LIVELY else TICK

    def ring(self) -> None:
        """There may be work. Any thread may say so."""
        with self._lock:
            self._rung, self._news = True, self._clock.monotonic()
            sleepers = list(self._sleepers.items())
        for woken, loop in sleepers:
            loop.call_soon_threadsafe(_answer, woken, True)

    async def wait(self, timeout: float) -> bool:
        """True once any connection has committed since the last call; False after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self._rung:
                self._rung = False
                return True
            self._sleepers[woken] = loop
        ticking = _Ticking(self, woken, self._clock, self._clock.monotonic() + timeout)
        try:
            return await woken
        finally:
            ticking.stop()
            with self._lock:
                del self._sleepers[woken]

    def close(self) -> None:
        """Let the connection go."""
        self._seen = None
        self._connection.close()

    def _version(self, connection: sqlite3.Connection, _now: Any) -> tuple[int, int]:
        # The number means something only within one connection, so which connection it is belongs to it.
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.OperationalError as error:
            # Without write-ahead logging no connection can look during a commit: the next look sees it.
            if not is_busy(error):
                raise
            return self._seen or (self._connection.opened, UNSEEN)
        return self._connection.opened, version


class _Ticking:
    """Looks every tick, on the sleeper's own loop, until it is woken or its time is up."""

    def __init__(self, wake: Wake, woken: asyncio.Future[bool], clock: SystemClock, deadline: float) -> None:
        self._wake = wake
        self._woken = woken
        self._clock = clock
        self._deadline = deadline
        self._timer: Cancelable
        self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    def _schedule(self) -> None:
        left = self._deadline - self._clock.monotonic()
        self._timer = self._clock.call_later(max(min(self._wake.tick(), left), 0.0), self._tick)

    def _tick(self) -> None:
        if self._woken.done():
            return
        try:
            self._wake.look()
        except Exception as error:  # noqa: BLE001 - the loop's boundary: the waiting caller gets it
            self._woken.set_exception(error)
            return
        if self._clock.monotonic() >= self._deadline:
            _answer(self._woken, False)
        else:
            self._schedule()


def _answer(woken: asyncio.Future[bool], worth: bool) -> None:
    if not woken.done():
        woken.set_result(worth)
