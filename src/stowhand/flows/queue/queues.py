"""The store of one queue's workers: a view of the flow's one store, so that all of them share its connections.

Claims and settlements queue up on one connection each, heartbeats have one for every worker. What may be shared less
simply is the waiting: a wake-up is heard by one, so one listens, and tells all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Claim, ClaimRequest, Foreign, Heartbeats, Reply, Terms

ROUND = 10.0
"""Seconds for which the one that listens waits at a time."""


class QueueWake:
    """Waits at the store while somebody waits here, and wakes all."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._clock = SystemClock()
        self._opening = asyncio.Lock()
        self._waiting: dict[object, asyncio.Future[bool]] = {}
        self._news: set[object] = set()
        """Who was not waiting when there was something to hear."""
        self._known: set[object] = set()
        self._listening: asyncio.Task[None] | None = None

    async def join(self, who: object) -> None:
        """It is to be woken from now on, if the store can be worked on. One asks after the other, on one connection."""
        async with self._opening:
            await self._store.open()
        self._known.add(who)

    def leave(self, who: object) -> None:
        """It waits no more."""
        self._known.discard(who)
        self._news.discard(who)

    async def wait(self, who: object, timeout: float) -> bool:
        """As ``Store.wait``."""
        if who in self._news:
            self._news.discard(who)
            return True
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[who] = woken
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="flow bell")
        timer = self._clock.call_later(timeout, lambda: _answer(woken, False))
        try:
            return await woken
        finally:
            timer.cancel()
            self._waiting.pop(who, None)

    async def close(self) -> None:
        """Listen no more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None

    async def _listen(self) -> None:
        while self._waiting:
            try:
                heard = await self._store.wait(ROUND)
            except StoreError as error:
                for woken in self._waiting.values():
                    if not woken.done():
                        woken.set_exception(error)
                return
            if heard:
                self._news = self._known - self._waiting.keys()
                for woken in self._waiting.values():
                    _answer(woken, True)
                await self._clock.sleep(0)  # whoever was woken takes itself off the list


class FlowQueueStore:
    """``Store`` of the jobs of one task. Opening and closing leaves the shared store to its owner."""

    def __init__(self, store: QueueStore, bell: QueueWake, task: str, terms: Terms) -> None:
        self._store, self._bell, self._tasks = store, bell, (task,)
        self.terms = terms

    async def open(self) -> None:
        """Check the store."""
        await self._bell.join(self)

    async def close(self) -> None:
        """Wait no more."""
        self._bell.leave(self)

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Of this queue."""
        return await self._store.claim(msgspec.structs.replace(request, tasks=self._tasks, ours=None))

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """As the store does."""
        return await self._store.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Of this queue."""
        return await self._store.next_due(self._tasks)

    def foreign(self) -> Foreign | None:
        """Each worker's heart looks by itself: what a claim saw is not told apart by worker."""
        return None

    async def wait(self, timeout: float) -> bool:
        """With the others."""
        return await self._bell.wait(self, timeout)

    @property
    def is_listening(self) -> bool:
        """As the store does."""
        return self._store.is_listening

    def heartbeats(self) -> Heartbeats:
        """One of its own."""
        return self._store.heartbeats()


def _answer(woken: asyncio.Future[bool], heard: bool) -> None:
    if not woken.done():
        woken.set_result(heard)
