"""How long an attempt waits for a connection of a pool: long for its first, and not long for a second.

An attempt that holds nothing can be returned to the queue without using an attempt when none becomes free. One that
holds a connection already keeps other attempts waiting meanwhile: where all do so none ever goes on, so it waits no
longer than any statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

from stowhand.errors import NoConnectionFree, StoreUnreachable

T = TypeVar("T")
FIRST = 300.0
"""Seconds that an attempt waits for the first connection that it asks for."""


class Borrower:
    """One attempt. ``over``: returns when it is to stop. ``timed_out``: it is to stop because its time has run out."""

    __slots__ = ("_over", "held", "refused", "timed_out", "waiting")

    def __init__(self, over: Callable[[], Awaitable[object]], timed_out: Callable[[], bool]) -> None:
        self._over = over
        self.timed_out = timed_out
        self.held = 0
        """Connections that it has borrowed at the moment."""
        self.waiting = 0
        """Its calls that wait for a first one."""
        self.refused = False
        """It waited for a first one in vain."""

    async def over(self) -> None:
        """Returns when the attempt is to stop."""
        await self._over()


BORROWER: ContextVar[Borrower | None] = ContextVar("stowhand borrower", default=None)
"""Set where an attempt runs that may borrow; ``None``: the caller is no attempt, and waits as long as any statement."""


@contextmanager
def holding() -> Iterator[None]:
    """For as long as a connection is borrowed."""
    borrower = BORROWER.get()
    if borrower is None:
        yield
        return
    borrower.held += 1
    borrower.refused = False
    try:
        yield
    finally:
        borrower.held -= 1


async def turn(
    get: Callable[[float], Coroutine[object, object, T]],
    undo: Callable[[T], Awaitable[object]],
    all_in_use: str,
    patience: float,
) -> T:
    """The result of ``get``, called with the seconds that it may take at most, for the BORROWER of this context.

    ``undo`` gives it back where it came too late. ``patience``: seconds for all but a first one. Raises
    NoConnectionFree when an attempt found no first connection, else StoreUnreachable; both begin with ``all_in_use``.
    """
    borrower = BORROWER.get()
    if borrower is not None and not borrower.held:
        return await _first(borrower, get, undo, all_in_use)
    try:
        async with asyncio.timeout(patience):
            return await get(patience)
    except TimeoutError:
        holds = "" if borrower is None else (
            "; this attempt holds one already, and while it waits for another the others wait for it: let it do with"
            " one, or give the pool more"
        )  # fmt: skip
        raise StoreUnreachable(f"{all_in_use}, and none became free within {patience:g} s{holds}") from None


async def _first(
    borrower: Borrower,
    get: Callable[[float], Coroutine[object, object, T]],
    undo: Callable[[T], Awaitable[object]],
    all_in_use: str,
) -> T:
    """Until one is free, the attempt is to stop, or FIRST has passed. It ends the wait of a thread, too."""
    loop = asyncio.get_running_loop()
    getting, over = loop.create_task(get(FIRST)), loop.create_task(borrower.over())
    borrower.waiting += 1
    arrived = False
    try:
        await asyncio.wait({getting, over}, timeout=FIRST, return_when=asyncio.FIRST_COMPLETED)
        arrived = getting.done()
        if arrived:
            with suppress(TimeoutError):
                return getting.result()
        waited = "before the attempt was to stop" if over.done() else f"within {FIRST:g} s"
        raise _refused(borrower, f"{all_in_use}, and none became free {waited}")
    except asyncio.CancelledError:
        if borrower.timed_out():
            raise _refused(borrower, f"{all_in_use}, and none became free before the attempt's timeout") from None
        raise
    finally:
        borrower.waiting -= 1
        over.cancel()
        if not arrived:
            await _withdraw(getting, undo)


def _refused(borrower: Borrower, message: str) -> NoConnectionFree:
    borrower.refused = True
    return NoConnectionFree(message)


async def _withdraw(getting: asyncio.Task[T], undo: Callable[[T], Awaitable[object]]) -> None:
    """Cancels it; a connection that it brings all the same is given back."""
    getting.cancel()
    await asyncio.wait([getting])
    if not getting.cancelled() and getting.exception() is None:
        await undo(getting.result())
