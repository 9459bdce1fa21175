"""Pauses of serial keys, tasks and queues, overrides of limits, and purges page by page."""

from __future__ import annotations

from stowhand.jobs.job import State
from stowhand.jobs.task_limits import LimitValues, check_changes
from stowhand.protocols.operator import (
    MAX_PURGE_COUNT,
    Ages,
    LimitChange,
    PurgeResult,
    QueueChange,
    SerialChange,
    TaskChange,
    read_limit,
    read_queue,
    read_serial,
    read_task,
)
from stowhand.stores.sqlite.queue import limits
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.transaction import Transaction

MAX_ROWS_PER_PURGE = 2000
"""A transaction with 2000 rows takes well under 50 ms, so that other writers can run in between."""
BEFORE_ALL_TIMES = -(2**63)
"""A time before every valid one, in microseconds."""


class Operator:
    """Operator of pauses, limits and purges. A pause affects every worker from its next claim."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def pause_serial(self, name: str) -> SerialChange:
        """Pause the serial key; a running job continues."""
        return SerialChange(name, await self._change("pause", serial=read_serial(name)))

    async def resume_serial(self, name: str) -> SerialChange:
        """Resume the serial key. Its next job can be claimed unless one of its jobs is running."""
        return SerialChange(name, await self._change("resume", wakes=True, serial=read_serial(name)))

    async def pause_task(self, name: str) -> TaskChange:
        """Pause the task for every serial key; a running job continues."""
        return TaskChange(name, await self._change("pause_kind", kind="task", name=read_task(name)))

    async def resume_task(self, name: str) -> TaskChange:
        return TaskChange(name, await self._change("resume_kind", wakes=True, kind="task", name=read_task(name)))

    async def pause_queue(self, name: str) -> QueueChange:
        """Pause the queue; a running job continues."""
        return QueueChange(name, await self._change("pause_kind", kind="queue", name=read_queue(name)))

    async def resume_queue(self, name: str) -> QueueChange:
        return QueueChange(name, await self._change("resume_kind", wakes=True, kind="queue", name=read_queue(name)))

    async def set_limit(self, name: str, changes: LimitValues) -> LimitChange:
        """Override values of the limit and wake workers."""
        check_changes(read_limit(name), changes)
        changed = await self._connections.write(lambda tx: limits.set_override(tx, name, changes), wakes=True)
        return LimitChange(name, changed)

    async def reset_limit(self, name: str) -> LimitChange:
        """Remove the override of the limit and its hold, and wake workers."""
        read_limit(name)
        return LimitChange(name, await self._connections.write(lambda tx: limits.reset(tx, name), wakes=True))

    async def _change(self, statement: str, *, wakes: bool = False, **values: str) -> bool:
        return await self._connections.write(lambda tx: tx.run(statement, **values).rowcount > 0, wakes=wakes)

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> PurgeResult:
        """Delete ended jobs, in a transaction for each page. ``dry_run``: only count them, up to a limit."""
        counts = {}
        for state in (State.COMPLETED, State.FAILED, State.CANCELED):
            age = getattr(ages, state.value)
            if age is not None:
                counts[state.value] = await (self._count if dry_run else self._purge)(state, age)
        return PurgeResult(**counts)

    async def _count(self, state: State, age: float) -> int:
        def count(tx: Transaction) -> int:
            before = tx.now.wall - micros(age)
            values = {"state": state.value, "before": before, "limit": MAX_PURGE_COUNT + 1}
            (count,) = tx.row(f"purgeable_{_table(state)}", **values)
            return int(count)

        return await self._connections.read(count)

    async def _purge(self, state: State, age: float) -> int:
        total, since = 0, BEFORE_ALL_TIMES
        while True:

            def purge(tx: Transaction, since: int = since) -> list[int]:
                before = tx.now.wall - micros(age)
                page = {"state": state.value, "since": since, "before": before, "limit": MAX_ROWS_PER_PURGE}
                return tx.column(f"purge_{_table(state)}", **page)

            finish_times = await self._connections.write(purge)
            total += len(finish_times)
            if len(finish_times) < MAX_ROWS_PER_PURGE:
                return total
            since = max(finish_times)


def _table(state: State) -> str:
    return "failed" if state is State.FAILED else "history"
