"""Repeats a few times what was definitely not done: a deadlock, a server that is shutting down or full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from stowhand.clock import Clock
from stowhand.stores.database import trouble

T = TypeVar("T")

TRIES = 4
PAUSE = 0.05
"""Seconds after the first try; twice as many after the second, and so on."""


async def repeated(action: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The result of ``action``. Raises any other error at once, and a transient one when it does not pass."""
    for attempt in range(1, TRIES):
        try:
            return await action()
        except psycopg.Error as error:
            if not trouble.is_transient(error):
                raise
            await clock.sleep(PAUSE * attempt)
    return await action()
