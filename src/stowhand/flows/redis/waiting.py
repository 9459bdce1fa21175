"""How an idle worker waits for jobs: it blocks on the waiting lists.

``BLMOVE waiting moved LEFT RIGHT`` answers as soon as the list has a head, pushed by any program (the original
implementation included), and it answers one caller: a new job wakes one idle worker, not all of them. A job in
``moved`` is not claimed yet. Any claim takes it first, so nothing is lost when the call is cut off, or the worker dies
or freezes right then; if no claim comes within a second, the sweep puts it back, which wakes another worker. (Moved
into ``processing`` it would look like a job whose worker has died.) Each list has a connection of its own, which is
blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from stowhand.errors import StoreError
from stowhand.flows.redis.dialing import Client
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.trouble import translated

SHORTEST = 0.01
"""Seconds; none would be for ever."""
PAUSED_POLL = 1.0
"""Seconds between two claims of a worker whose queue is paused."""
MOST_MOVED = 100
IDLE = 0.005
"""Seconds that a call blocks where nothing waits."""


class Waiting:
    """``longest``: seconds that one call blocks at most.

    A list that has jobs answers at once. So while the last claim was full (there may be more, and the worker knows) the
    lists are not asked at all; and not between an answer and the claim that follows it.
    """

    def __init__(self, server: Server, bases: Sequence[str], longest: float) -> None:
        self._server = server
        self._longest = longest
        self._bases = bases
        self._clients: dict[str, Client] = {}
        self._dry = asyncio.Event()
        self._dry.set()
        self._closing = asyncio.Event()
        self._tick = asyncio.Event()
        self._clock = server.clock
        self.woken = False
        """Something has come since the last claim."""
        self.alone = False
        """It came to an idle worker: nothing else waited."""
        self.is_paused = False
        """The last claim found the queue paused: its lists are not asked, since they may have jobs."""
        self.is_listening = True
        """No blocking call has failed since one was answered; a busy worker makes none, and that is no trouble."""

    def open(self) -> None:
        """Waiting is possible (again)."""
        self._closing.clear()

    def claimed(self, *, dry: bool) -> None:
        """A claim has brought less than was asked for (``dry``), or all of it."""
        self.woken = self.alone = False
        if dry:
            self._dry.set()
        else:
            self._dry.clear()

    async def wait(self, timeout: float) -> bool:
        """True as soon as one of the lists has a head."""
        if self.is_paused:
            return await self._pass(min(timeout, self._longest, PAUSED_POLL))
        ends = self._clock.monotonic() + min(timeout, self._longest)
        if not await self._till_dry(ends):
            return False
        began = self._clock.monotonic()
        left = max(ends - began, SHORTEST)
        if not await self._first_of([self._head(name, left) for name in self._bases]):
            return False
        self.woken, self.alone = True, self._clock.monotonic() - began > IDLE
        self._dry.clear()
        return True

    async def close(self) -> None:
        """End what waits, and let it go; what has come for it is for others. The dialer closes the connections."""
        self._closing.set()
        used, self._clients = self._clients, {}
        if self.is_listening:
            with suppress(StoreError):  # the sweep does it too
                for base, client in used.items():
                    await self._put_back(client, base)

    async def _put_back(self, client: Client, base: str) -> None:
        with translated(self._server.address):
            for _ in range(MOST_MOVED):
                if await client.execute_command("LMOVE", f"{base}:moved", f"{base}:waiting", "RIGHT", "LEFT") is None:
                    return

    async def _pass(self, seconds: float) -> bool:
        """True after this time, so that the worker claims again; False where the store closes."""
        timer = self._clock.call_later(seconds, self._tick.set)
        try:
            return await self._first_of([_set(self._tick)])
        finally:
            timer.cancel()
            self._tick.clear()

    async def _till_dry(self, ends: float) -> bool:
        """There is a reason to ask, before the time is over."""
        if self._dry.is_set():
            return not self._closing.is_set()
        timer = self._clock.call_later(ends - self._clock.monotonic(), self._tick.set)
        try:
            return await self._first_of([_set(self._dry), _set(self._tick)]) and self._dry.is_set()
        finally:
            timer.cancel()
            self._tick.clear()

    async def _first_of(self, calls: Sequence[Coroutine[Any, Any, bool]]) -> bool:
        """True with the first that is; False when none is, or when the store closes. The others are cut off."""
        closing = asyncio.ensure_future(_set(self._closing))
        pending = {asyncio.ensure_future(call) for call in calls}
        everything = {closing, *pending}
        try:
            while pending and not self._closing.is_set():
                done, _ = await asyncio.wait({closing, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending -= done
                if any(one.result() for one in done - {closing}):
                    return True
            return False
        finally:
            for one in everything:
                one.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _head(self, base: str, longest: float) -> bool:
        """Block until its list has one."""
        if base not in self._clients:
            self._clients[base] = self._server.dialer.blocking_call(self._longest)
        lists = (f"{base}:waiting", f"{base}:moved")
        try:
            with translated(self._server.address):
                head = await self._clients[base].execute_command("BLMOVE", *lists, "LEFT", "RIGHT", longest)
        except StoreError:
            self.is_listening = False
            raise
        self.is_listening = True
        return head is not None


async def _set(event: asyncio.Event) -> bool:
    return await event.wait()
