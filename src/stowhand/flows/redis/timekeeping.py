"""The timekeeper of a queue: one of its workers, which wakes an idle worker when a delayed job is ready.

Workers that claim also take delayed jobs that are ready. Idle ones block on the list of waiting jobs; if each of them
set a timer, all would come for one job. So one worker keeps the time for all (``lua/due.lua``): it sleeps until the
next job is ready, or until a push to the list ``bell`` reports an earlier one. If it dies, the next worker whose claim
finds nothing takes its place; until then the sweep moves overdue jobs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from stowhand.errors import StoreError
from stowhand.flows.redis.dialing import Client
from stowhand.flows.redis.queues import QueueAt
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.trouble import translated
from stowhand.protocols.correlation import bound

TERM = 4.0
"""Seconds after which another one may keep the time, unless it has asked again."""
ROUND = 1.5
"""Seconds between two questions while nothing is ready before."""
LISTENING = 30.0
"""Seconds of one call that waits for the bell."""
HANDOVER = 0.002
"""Seconds that an idle worker needs for what was lent to it."""


class Timekeeper:
    """Of one queue; at rest until ``begin``."""

    def __init__(self, server: Server, queue: QueueAt) -> None:
        self._server = server
        self._queue = queue
        self._bell = queue.keys.bell(queue.name)
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._worker = ""

    def begin(self, worker: str) -> None:
        """Become the timekeeper, as the claim found none. Harmless while this is the timekeeper."""
        if self._task is None or self._task.done():
            self._worker = worker
            with bound(None):
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
                    await self._server.clock.sleep(HANDOVER)
                else:
                    await self._sleep(ROUND if due < 0 else min(due / 1000, ROUND))
        except StoreError:
            return
        finally:
            if self._ringing is not None:
                ringing, self._ringing = self._ringing, None
                ringing.cancel()
                await asyncio.gather(ringing, return_exceptions=True)

    async def _ask(self, worker: str, term: float = TERM) -> tuple[int, int]:
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
            self._client = self._server.dialer.blocking_call(LISTENING)
        with translated(self._server.address):
            await self._client.execute_command("BLPOP", self._bell, LISTENING)
