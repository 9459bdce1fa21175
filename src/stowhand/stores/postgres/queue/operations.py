"""Pauses of serial keys, tasks and queues, overrides of limits, and purges."""

from __future__ import annotations

import msgspec

from stowhand.jobs import task_limits
from stowhand.jobs.task_limits import LimitValues
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
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import Row

MAX_ROWS_PER_PURGE = 5000
"""A transaction with this number of rows takes some tens of milliseconds, so others wait only briefly for locks."""


class Operator:
    """Operator of pauses, limits and purges. A pause is one transaction; a purge is one for each page."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    async def pause_serial(self, name: str) -> SerialChange:
        """Pause the serial key; a running job continues."""
        ((changed,),) = await self._ask("pause_serial", read_serial(name), self._context.now())
        return SerialChange(name, changed)

    async def resume_serial(self, name: str) -> SerialChange:
        """Resume the serial key and wake workers."""
        ((changed,),) = await self._ask("resume_serial", read_serial(name), self._context.now())
        return SerialChange(name, changed)

    async def pause_task(self, name: str) -> TaskChange:
        """Pause the task for every serial key; a running job continues."""
        ((changed,),) = await self._ask("pause_task", read_task(name), self._context.now())
        return TaskChange(name, changed)

    async def resume_task(self, name: str) -> TaskChange:
        """Resume the task and wake workers."""
        ((changed,),) = await self._ask("resume_task", read_task(name), self._context.now())
        return TaskChange(name, changed)

    async def pause_queue(self, name: str) -> QueueChange:
        """Pause the queue for every task and serial key; a running job continues."""
        ((changed,),) = await self._ask("pause_queue", read_queue(name), self._context.now())
        return QueueChange(name, changed)

    async def resume_queue(self, name: str) -> QueueChange:
        """Resume the queue and wake workers."""
        ((changed,),) = await self._ask("resume_queue", read_queue(name), self._context.now())
        return QueueChange(name, changed)

    async def set_limit(self, name: str, changes: LimitValues) -> LimitChange:
        """Override values of the limit and wake workers."""
        task_limits.check_changes(read_limit(name), changes)
        task_limits.refuse_undeclared(name, await self._declared(name), changes)
        ((changed,),) = await self._ask("set_limit", name, *msgspec.structs.astuple(changes))
        return LimitChange(name, changed)

    async def reset_limit(self, name: str) -> LimitChange:
        """Remove the override of the limit and its hold, and wake workers."""
        await self._declared(read_limit(name))
        ((changed,),) = await self._ask("reset_limit", name)
        return LimitChange(name, changed)

    async def _declared(self, name: str) -> LimitValues:
        """Return what the tasks of a limit declare. Raises InvalidJob, with the same sentence as the other engine."""
        for (declared,) in await self._ask("declared_limit", name):
            return msgspec.convert(declared, LimitValues)
        raise task_limits.unknown_limit(name)

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> PurgeResult:
        """Delete ended jobs page by page. ``dry_run``: only count them, up to a limit."""
        now = self._context.now()
        if dry_run:
            limits = {"now": now, "limit": MAX_PURGE_COUNT + 1, **msgspec.structs.asdict(ages)}
            with self._context.translated():
                rows = await self._context.ask("inspect", "purgeable", limits, row="the queue")
            ((completed, canceled, failed),) = rows
            return PurgeResult(completed=completed, failed=failed, canceled=canceled)
        completed = canceled = failed = 0
        after = 0 if ages.completed is not None or ages.canceled is not None else None
        while after is not None:
            page = (ages.completed, ages.canceled, after, MAX_ROWS_PER_PURGE, now)
            ((some, others, after),) = await self._ask("purge_history", *page)
            completed, canceled = completed + some, canceled + others
        deleted = MAX_ROWS_PER_PURGE if ages.failed is not None else 0
        while deleted == MAX_ROWS_PER_PURGE:
            ((deleted,),) = await self._ask("purge_failed", ages.failed, MAX_ROWS_PER_PURGE, now)
            failed += deleted
        return PurgeResult(completed=completed, failed=failed, canceled=canceled)

    async def _ask(self, name: str, *values: object) -> list[Row]:
        with self._context.translated():
            return await self._context.ask("inspect", name, values, row="the queue")
