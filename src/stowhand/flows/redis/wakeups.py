"""What wakes an idle worker: a job in a waiting list, or the moment at which a delayed job is ready.

An idle worker blocks on the waiting lists. ``BLMOVE waiting moved LEFT RIGHT`` answers as soon as the list has a head,
pushed by any program (the original implementation included), and it answers one caller: a new job wakes one idle
worker, not all of them. A job in ``moved`` is not claimed yet. Any claim takes it first, so nothing is lost when the
call is cut off, or the worker dies or freezes right then; if no claim comes within a second, the sweep puts it back,
which wakes another worker. (Moved into ``processing`` it would look like a job whose worker has died.) Each list has a
connection of its own, which is blocked.

Workers that claim also take delayed jobs that are ready. If each idle worker set a timer, all would come for one job.
So one worker of a queue, its timekeeper, keeps the time for all (``lua/due.lua``): it sleeps until the next job is
ready, or until a push to the list ``bell`` reports an earlier one. If it dies, the next worker whose claim finds
nothing takes its place; until then the sweep moves overdue jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from stowhand.errors import StoreError
from stowhand.flows.redis.dialer import Client
from stowhand.flows.redis.error_translation import translated
from stowhand.flows.redis.layout import QueueLocation
from stowhand.flows.redis.server import Server
from stowhand.observe.propagation import bound_correlation_id

MIN_BLOCK_SECONDS = 0.01
"""Seconds; none would be for ever."""
PAUSED_POLL_SECONDS = 1.0
"""Seconds between two claims of a worker whose queue is paused."""
MAX_MOVED_JOBS = 100
MIN_IDLE_SECONDS = 0.005
"""Seconds that a call blocks where nothing waits."""
TIMEKEEPER_TERM_SECONDS = 4.0
"""Seconds after which another one may keep the time, unless it has asked again."""
MAX_SLEEP_SECONDS = 1.5
"""Seconds between two questions while nothing is ready before."""
LISTEN_TIMEOUT_SECONDS = 30.0
"""Seconds of one call that waits for the bell."""
HANDOVER_SECONDS = 0.002
"""Seconds that an idle worker needs for what was lent to it."""


class ListWaiter:
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
        self._clock = server.clock
        self.was_woken = False
        """Something has come since the last claim."""
        self.was_idle = False
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
        self.was_woken = self.was_idle = False
        if dry:
            self._dry.set()
        else:
            self._dry.clear()

    async def wait(self, timeout: float) -> bool:
        """True as soon as one of the lists has a head."""
        if self.is_paused:
            return await self._first_of([self._passed(min(timeout, self._longest, PAUSED_POLL_SECONDS))])
        ends = self._clock.monotonic() + min(timeout, self._longest)
        if not await self._till_dry(ends):
            return False
        began = self._clock.monotonic()
        left = max(ends - began, MIN_BLOCK_SECONDS)
        if not await self._first_of([self._head(name, left) for name in self._bases]):
            return False
        self.was_woken, self.was_idle = True, self._clock.monotonic() - began > MIN_IDLE_SECONDS
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
            for _ in range(MAX_MOVED_JOBS):
                if await client.execute_command("LMOVE", f"{base}:moved", f"{base}:waiting", "RIGHT", "LEFT") is None:
                    return

    async def _till_dry(self, ends: float) -> bool:
        """There is a reason to ask, before the time is over."""
        if self._dry.is_set():
            return not self._closing.is_set()
        left = ends - self._clock.monotonic()
        return await self._first_of([_set(self._dry), self._passed(left)]) and self._dry.is_set()

    async def _passed(self, seconds: float) -> bool:
        await self._clock.sleep(seconds)
        return True

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


class Timekeeper:
    """Of one queue; at rest until ``begin``."""

    def __init__(self, server: Server, queue: QueueLocation) -> None:
        self._server = server
        self._queue = queue
        self._bell = queue.keys.bell(queue.name)
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._worker = ""

    def start(self, worker: str) -> None:
        """Become the timekeeper, as the claim found none. Harmless while this is the timekeeper."""
        if self._task is None or self._task.done():
            self._worker = worker
            with bound_correlation_id(None):
                self._task = asyncio.create_task(self._keep(worker), name=f"timekeeper {self._queue.name}")

    async def close(self) -> None:
        """Stop, so that another worker takes over; the dialer closes the connection."""
        task, self._task, self._client = self._task, None, None
        if task is not None:
            was_kept = not task.done()
            task.cancel()
            await asyncio.wait([task])
            if was_kept:
                with suppress(StoreError):  # else its term ends by itself
                    await self._ask(self._worker, 0.0)

    async def _keep(self, worker: str) -> None:
        """Keep the time until another worker does, or the server does not answer: a later claim begins anew."""
        try:
            while True:
                mine, due = await self._ask(worker)
                if not mine:
                    return
                if due == 0:
                    await self._server.clock.sleep(HANDOVER_SECONDS)
                else:
                    await self._sleep(MAX_SLEEP_SECONDS if due < 0 else min(due / 1000, MAX_SLEEP_SECONDS))
        except StoreError:
            return
        finally:
            if self._ringing is not None:
                ringing, self._ringing = self._ringing, None
                ringing.cancel()
                await asyncio.gather(ringing, return_exceptions=True)

    async def _ask(self, worker: str, term: float = TIMEKEEPER_TERM_SECONDS) -> tuple[int, int]:
        args = (self._queue.text, worker, round(term * 1000))
        mine, due = await self._server.run("due", (self._queue.root,), *args, unanswered=True)
        return mine, due

    async def _sleep(self, seconds: float) -> None:
        """Until the bell rings, and no longer; by a clock of our own: servers look at timeouts ten times a second."""
        if self._ringing is None:
            self._ringing = asyncio.create_task(self._listen(), name=f"bell {self._queue.name}")
        alarm = asyncio.ensure_future(self._server.clock.sleep(seconds))
        try:
            await asyncio.wait((self._ringing, alarm), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
        if self._ringing.done():
            ringing, self._ringing = self._ringing, None
            ringing.result()

    async def _listen(self) -> None:
        if self._client is None:
            self._client = self._server.dialer.blocking_call(LISTEN_TIMEOUT_SECONDS)
        with translated(self._server.address):
            await self._client.execute_command("BLPOP", self._bell, LISTEN_TIMEOUT_SECONDS)


async def _set(event: asyncio.Event) -> bool:
    return await event.wait()
