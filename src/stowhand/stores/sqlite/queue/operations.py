"""Pauses queues and tasks, and purges page by page."""

from __future__ import annotations

from functools import partial

from stowhand.jobs.job import State
from stowhand.protocols.operating import Ages, Purged, QueueChange, TaskChange, read_queue, read_task
from stowhand.stores.sqlite.queue import operating
from stowhand.stores.sqlite.queue.connections import Connections


class Operator:
    """A pause reaches every worker with its next claim."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def pause_queue(self, name: str) -> QueueChange:
        """A running job goes on."""
        return await self._connections.write(partial(operating.pause, queue=read_queue(name)))

    async def resume_queue(self, name: str) -> QueueChange:
        name = read_queue(name)
        return await self._connections.write(lambda connection, _: operating.resume(connection, name), wakes=True)

    async def pause_task(self, name: str) -> TaskChange:
        """In every queue; a running job goes on."""
        return await self._pause(read_task(name))

    async def resume_task(self, name: str) -> TaskChange:
        return await self._resume(read_task(name))

    async def pause_unqueued(self) -> TaskChange:
        """A running job goes on."""
        return await self._pause("")

    async def resume_unqueued(self) -> TaskChange:
        return await self._resume("")

    async def _pause(self, task: str) -> TaskChange:
        return await self._connections.write(partial(operating.pause_task, task=task))

    async def _resume(self, task: str) -> TaskChange:
        return await self._connections.write(lambda connection, _: operating.resume_task(connection, task), wakes=True)

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """A transaction for each page."""
        counts = {}
        for state in (State.COMPLETED, State.FAILED, State.CANCELED):
            age = getattr(ages, state.value)
            if age is not None and dry_run:
                counts[state.value] = await self._connections.read(partial(operating.purgeable, state=state, age=age))
            elif age is not None:
                counts[state.value] = await self._purge(state, age)
        return Purged(**counts)

    async def _purge(self, state: State, age: float) -> int:
        total, since = 0, operating.BELOW_ALL
        while True:
            page = partial(operating.purge, state=state, age=age, since=since)
            gone, following = await self._connections.write(page)
            total += gone
            if following is None:
                return total
            since = following
