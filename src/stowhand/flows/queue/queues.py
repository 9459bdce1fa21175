"""The store of one queue's workers: a view of the flow's one store, so that all workers share its connections.

Claims and settlements queue up on one connection each; heartbeats have a connection for each worker. A wake-up of the
store reaches one waiter only, so one task waits there for all workers, and wakes all of them.
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
"""Seconds of one wait at the store."""


class SharedListener:
    """Waits at the store while any worker waits here, and wakes all of them."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._clock = SystemClock()
        self._opening = asyncio.Lock()
        self._waiting: dict[object, asyncio.Future[bool]] = {}
        self._missed: set[object] = set()
        """Members that were not waiting at the last wake-up: their next wait returns at once."""
        self._members: set[object] = set()
        self._listening: asyncio.Task[None] | None = None

    async def join(self, member: object) -> None:
        """Open the store, one member after the other, and wake this member from now on."""
        async with self._opening:
            await self._store.open()
        self._members.add(member)

    def leave(self, member: object) -> None:
        """Wake this member no more."""
        self._members.discard(member)
        self._missed.discard(member)

    async def wait(self, member: object, timeout: float) -> bool:
        """As ``Store.wait``."""
        if member in self._missed:
            self._missed.discard(member)
            return True
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[member] = woken
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="flow listener")
        timer = self._clock.call_later(timeout, lambda: _answer(woken, False))
        try:
            return await woken
        finally:
            timer.cancel()
            self._waiting.pop(member, None)

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None

    async def _listen(self) -> None:
        while self._waiting:
            try:
                has_woken = await self._store.wait(ROUND)
            except StoreError as error:
                for woken in self._waiting.values():
                    if not woken.done():
                        woken.set_exception(error)
                return
            if has_woken:
                self._missed = self._members - self._waiting.keys()
                for woken in self._waiting.values():
                    _answer(woken, True)
                await self._clock.sleep(0)  # let the woken members leave the list


class FlowQueueStore:
    """``Store`` of the jobs of one task. It does not close the shared store."""

    def __init__(self, store: QueueStore, listener: SharedListener, task: str, terms: Terms) -> None:
        self._store, self._listener, self._tasks = store, listener, (task,)
        self.terms = terms

    async def open(self) -> None:
        """Open the store if necessary, and listen."""
        await self._listener.join(self)

    async def close(self) -> None:
        """Stop listening for this queue."""
        self._listener.leave(self)

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Of this queue."""
        return await self._store.claim(msgspec.structs.replace(request, tasks=self._tasks, ours=None))

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """As the shared store."""
        return await self._store.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Of this queue."""
        return await self._store.next_due(self._tasks)

    def foreign(self) -> Foreign | None:
        """``None``: what a claim of the shared store saw belongs to no worker; each heartbeat looks by itself."""
        return None

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake-up at the shared listener."""
        return await self._listener.wait(self, timeout)

    @property
    def is_listening(self) -> bool:
        """As the shared store."""
        return self._store.is_listening

    def heartbeats(self) -> Heartbeats:
        """The worker's own."""
        return self._store.heartbeats()


def _answer(woken: asyncio.Future[bool], result: bool) -> None:
    if not woken.done():
        woken.set_result(result)
