"""The store of one queue's workers: a view of the flow's one store, so that all workers share its connections.

Claims and settlements queue up on one connection each; heartbeats have a connection for each worker. A wake-up of the
store may reach one waiter only, so one task waits there for all workers, and wakes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from stowhand.clock import SystemClock
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Capabilities, Claim, ClaimRequest, Foreign, Heartbeats, Reply, Terms
from stowhand.sleepers import Sleepers

WAIT_ROUND_SECONDS = 10.0
"""Seconds of one wait at the store."""


class SharedListener:
    """Waits at the store while any worker waits here, and wakes all of them."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._sleepers = Sleepers(SystemClock())
        self._opening = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None

    @property
    def wakes(self) -> int:
        """Number of times that the store has woken the workers."""
        return self._sleepers.wakes

    async def open(self) -> None:
        """Open the store, for one worker after the other."""
        async with self._opening:
            await self._store.open()

    async def wait(self, since: int, timeout: float) -> None:
        """Return as soon as ``wakes`` differs from ``since``, or after ``timeout`` seconds. Raises as the store's."""
        if self.wakes != since:
            return
        before = self._listening
        if before is None or before.done() or before.cancelling():
            self._listening = asyncio.create_task(self._listen(before), name="flow listener")
        try:
            await self._sleepers.wait(since, timeout)
        finally:
            # Stop later, so that a worker that waits again at once finds the call of the store still running.
            asyncio.get_running_loop().call_soon(self._stop_if_alone)

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None

    def _stop_if_alone(self) -> None:
        if self._listening is not None and not self._sleepers:
            self._listening.cancel()

    async def _listen(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        while True:
            try:
                if await self._store.wait(WAIT_ROUND_SECONDS):
                    self._sleepers.wake()
            except Exception as error:  # noqa: BLE001 - the waiting workers get it, and the next one calls again
                self._sleepers.fail(error)
                return


class FlowQueueStore:
    """Store of the jobs of one task. It does not close the shared store."""

    capabilities = Capabilities()
    enclosing = None

    def __init__(self, store: QueueStore, listener: SharedListener, task: str, terms: Terms) -> None:
        self._store, self._listener, self._tasks = store, listener, (task,)
        self.terms = terms
        self._wakes_seen = 0

    async def open(self) -> None:
        """Open the store if necessary."""
        await self._listener.open()
        self._wakes_seen = self._listener.wakes

    async def close(self) -> None:
        """Do nothing: the shared store stays open, and waits end with their callers."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        """Claim jobs of this queue."""
        return await self._store.claim(msgspec.structs.replace(request, tasks=self._tasks, own_leases=None))

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Settle at the shared store."""
        return await self._store.settle(batch, repeat=repeat)

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the next job of this queue is due."""
        return await self._store.next_due(self._tasks)

    def foreign(self) -> Foreign | None:
        """Return ``None``: heartbeats find the expired leases of other workers."""
        return None

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake-up at the shared listener."""
        before = self._wakes_seen
        await self._listener.wait(before, timeout)
        self._wakes_seen = self._listener.wakes
        return self._wakes_seen != before

    @property
    def is_listening(self) -> bool:
        """Whether the shared store is listening."""
        return self._store.is_listening

    def heartbeats(self) -> Heartbeats:
        """Return heartbeats with their own connection."""
        return self._store.heartbeats()
