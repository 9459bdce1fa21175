"""Closes connections that nobody has used for a minute: an idle process holds only what it listens and beats with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from stowhand.clock import SystemClock

IDLE_SECONDS = 60.0


class IdleTimer:
    """Calls ``look`` every ``IDLE_SECONDS`` while connections are open.

    ``look`` closes what was not used since its last call, and returns whether anything is left open.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """A connection was made. Harmless when repeated."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a timer of a loop that has ended never fires
            self._loop = loop
            SystemClock().call_later(IDLE_SECONDS, self._run)

    def _run(self) -> None:
        self._loop = None
        if self._look():
            self.start()


def close_now(connection: psycopg.AsyncConnection[Any]) -> None:
    """What ``close`` does, for a caller that cannot await. Nothing is under way on it."""
    connection.pgconn.finish()
