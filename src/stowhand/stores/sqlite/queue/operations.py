"""The seam ``Operator`` on a file: each question on the thread that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stowhand.jobs.job import State
from stowhand.protocols.figures import Figures, Pauses
from stowhand.protocols.operating import (
    Ages,
    Explanation,
    Purged,
    QueueChange,
    QueueRow,
    TaskChange,
    WorkerRow,
    read_queue,
    read_task,
)
from stowhand.protocols.validation import validate_ids
from stowhand.stores.sqlite.queue import administer, counting, operating
from stowhand.stores.sqlite.queue.tables import Tables


class Operations(Tables):
    """What operators ask. A purge is a transaction for each page."""

    async def pause_queue(self, name: str) -> QueueChange:
        """A running job goes on."""
        name = read_queue(name)
        return await self._write(lambda connection, now: operating.pause(connection, now, name))

    async def resume_queue(self, name: str) -> QueueChange:
        """Whoever sleeps hears of it."""
        name = read_queue(name)
        change = await self._write(lambda connection, _: operating.resume(connection, name))
        self._wake.ring()
        return change

    async def pause_task(self, name: str) -> TaskChange:
        """In whatever queue; a running job goes on."""
        return await self._pause(read_task(name))

    async def resume_task(self, name: str) -> TaskChange:
        """Whoever sleeps hears of it."""
        return await self._resume(read_task(name))

    async def pause_unqueued(self) -> TaskChange:
        """A running job goes on."""
        return await self._pause("")

    async def resume_unqueued(self) -> TaskChange:
        """Whoever sleeps hears of it."""
        return await self._resume("")

    async def pauses(self) -> Pauses:
        """By name."""
        return await self._read(lambda connection, _: counting.pauses(connection))

    async def _pause(self, name: str) -> TaskChange:
        return await self._write(lambda connection, now: operating.pause_task(connection, now, name))

    async def _resume(self, name: str) -> TaskChange:
        change = await self._write(lambda connection, _: operating.resume_task(connection, name))
        self._wake.ring()
        return change

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """Page by page; whoever sleeps hears of it."""
        retried: list[int] = []
        for ids in administer.pages(validate_ids(job_ids)):
            retried += await self._write(partial(operating.retry_failed, job_ids=ids))
            self._wake.ring()
        return retried

    async def queues(self) -> Sequence[QueueRow]:
        """By name."""
        return await self._read(operating.queues)

    async def figures(self) -> Figures:
        """From indexes, and of a long history from rows here and there."""
        return await self._read_all(counting.figures)

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return await self._read(operating.workers)

    async def explain(self, job_id: int) -> Explanation | None:
        """Why it is not running."""
        return await self._read(lambda connection, now: operating.explain_job(connection, now, job_id))

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """Page by page."""
        counts = {}
        for state in (State.COMPLETED, State.FAILED, State.CANCELED):
            age = getattr(ages, state.value)
            if age is not None:
                counts[state.value] = await (self._count(state, age) if dry_run else self._purge(state, age))
        return Purged(**counts)

    async def _count(self, state: State, age: float) -> int:
        return await self._read(partial(operating.purgeable, state=state, age=age))

    async def _purge(self, state: State, age: float) -> int:
        total, since = 0, operating.BELOW_ALL
        while True:
            gone, following = await self._write(partial(operating.purge, state=state, age=age, since=since))
            total += gone
            if following is None:
                return total
            since = following
