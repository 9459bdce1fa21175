"""The schema's operator: pauses queues and tasks, purges, lists workers, explains why a job does not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from stowhand.jobs.job import Job
from stowhand.protocols.figures import MINUTES, NAMES, Amount, EndedCounts, Figures, LiveCounts, Pauses
from stowhand.protocols.operating import (
    MOST_AHEAD,
    Ages,
    Explanation,
    Purged,
    QueueChange,
    QueueRow,
    TaskChange,
    WorkerCard,
    WorkerRow,
    read_queue,
    read_task,
    worker_row,
)
from stowhand.protocols.validation import validate_id, validate_ids
from stowhand.stores.database.link import Values
from stowhand.stores.explaining import Busy, ClaimScope, Facts, Holder, claim_scope, explain
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.rows import Row, plain_array, read_job, text_array

PURGE_AT_ONCE = 5000
"""Rows looked at in one transaction: some tens of milliseconds, so that nothing waits long for their locks."""
STANDING = ("queued", "errored", "due", "processing", "failed")
ENDED = ("completed", "canceled", "failed")


class Operator:
    """Every call is a transaction of its own; a purge is one for each page."""

    def __init__(self, context: PostgresContext) -> None:
        self._context = context

    async def pause_queue(self, name: str) -> QueueChange:
        """A running job goes on."""
        ((changed,),) = await self._ask("pause_queue", read_queue(name), self._context.now())
        return QueueChange(name, changed)

    async def resume_queue(self, name: str) -> QueueChange:
        """Workers are woken."""
        ((changed,),) = await self._ask("resume_queue", read_queue(name), self._context.now())
        return QueueChange(name, changed)

    async def pause_task(self, name: str) -> TaskChange:
        """In whatever queue; a running job goes on."""
        ((changed,),) = await self._ask("pause_task", read_task(name), self._context.now())
        return TaskChange(name, changed)

    async def resume_task(self, name: str) -> TaskChange:
        """Workers are woken."""
        ((changed,),) = await self._ask("resume_task", read_task(name), self._context.now())
        return TaskChange(name, changed)

    async def pause_unqueued(self) -> TaskChange:
        """A running job goes on."""
        ((changed,),) = await self._ask("pause_unqueued", self._context.now())
        return TaskChange(None, changed)

    async def resume_unqueued(self) -> TaskChange:
        """Workers are woken."""
        ((changed,),) = await self._ask("resume_unqueued", self._context.now())
        return TaskChange(None, changed)

    async def pauses(self) -> Pauses:
        """By name."""
        return Pauses.read(dict(await self._ask("pauses")))

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        """All or, if another transaction keeps one of them locked, none."""
        return [
            row[0] for row in await self._ask("retry_failed", plain_array(validate_ids(job_ids)), self._context.now())
        ]

    async def queues(self) -> Sequence[QueueRow]:
        """By name."""
        return [
            QueueRow(
                name=name, paused_since=paused, held_by=held, waiting=waiting, due=due, running=running, failed=failed
            )
            for name, paused, held, waiting, due, running, failed in await self._ask("queues", self._context.now())
        ]

    async def figures(self) -> Figures:
        """Exact while the tables are small; then what a sample of their pages says."""
        now = self._context.now()
        standing: defaultdict[str, list[LiveCounts]] = defaultdict(list)
        over: defaultdict[int | None, list[EndedCounts]] = defaultdict(list)
        for what, name, *numbers, exact in await self._ask("standing_jobs", NAMES, now):
            standing[what].append(LiveCounts(name=name, **_amounts(STANDING, numbers, exact)))
        for minutes, name, *numbers, exact in await self._ask("ended_jobs", plain_array(MINUTES), NAMES, now):
            over[minutes].append(EndedCounts(name=name, **_amounts(ENDED, numbers, exact)))
        return Figures(
            tasks=standing["task"],
            queues=standing["queue"],
            workers=standing["worker"],
            history=over[None],
            lately={minutes: over[minutes] for minutes in MINUTES},
            paused=dict(await self._ask("paused_queues")),
            pauses=await self.pauses(),
        )

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """Page by page."""
        now = self._context.now()
        if dry_run:
            limits = (now, ages.completed, ages.canceled, now, ages.failed)
            ((completed, failed, canceled),) = await self._ask("purgeable", *limits)
            return Purged(completed=completed, failed=failed, canceled=canceled)
        completed = canceled = failed = 0
        after = 0 if ages.completed is not None or ages.canceled is not None else None
        while after is not None:
            page = (ages.completed, ages.canceled, after, PURGE_AT_ONCE, now)
            ((some, others, after),) = await self._ask("purge_history", *page)
            completed, canceled = completed + some, canceled + others
        gone = PURGE_AT_ONCE if ages.failed is not None else 0
        while gone == PURGE_AT_ONCE:
            ((gone,),) = await self._ask("purge_failed", ages.failed, PURGE_AT_ONCE, now)
            failed += gone
        return Purged(completed=completed, failed=failed, canceled=canceled)

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return [_worker(row) for row in await self._ask("workers", self._context.now())]

    async def explain(self, job_id: int) -> Explanation | None:
        """From several statements, a moment apart: for people, who need no snapshot."""
        found = await self._ask("get", validate_id(job_id))
        if not found:
            return None
        job: Job = read_job(found[0])
        around = await self._ask("circumstances", self._context.now(), job.id)
        if not around:  # it is over
            return explain(Facts(job=job, now=job.run_at))
        ((at, lease_until, paused, holder, worker, since, until),) = around
        held = None if holder is None else Holder(holder, worker, since, until)
        workers, pauses = await self.workers(), await self.pauses()
        return explain(
            Facts(
                job=job,
                now=at,
                lease_until=lease_until,
                paused_since=paused,
                pauses=pauses,
                holder=held,
                ahead=await self._ahead(job, claim_scope(job, workers, pauses), at),
                workers=workers,
                busy={name: Busy(*held) for name, *held in await self._ask("busy")},
            )
        )

    async def _ahead(self, job: Job, scope: ClaimScope | None, at: datetime) -> int:
        if scope is None:
            return 0
        given = {
            "queue": job.queue,
            "priority": job.priority,
            "run_at": job.run_at,
            "id": job.id,
            "at": at,
            "tasks": None if scope.tasks is None else text_array(scope.tasks),
            "forbidden": text_array(scope.forbidden),
            "most": MOST_AHEAD + 1,
        }
        ((ahead,),) = await self._ask_with("ahead", given)
        return int(ahead)

    async def _ask(self, name: str, *values: object) -> list[Row]:
        return await self._ask_with(name, values)

    async def _ask_with(self, name: str, values: Values) -> list[Row]:
        with self._context.translated():
            row = "one of the jobs" if name == "retry_failed" else "the queue"
            return await self._context.ask("inspect", name, values, row=row)


def _amounts(parts: Sequence[str], numbers: Sequence[int], exact: bool) -> dict[str, Amount]:
    return {part: Amount(number, exact) for part, number in zip(parts, numbers, strict=True)}


def _worker(row: Row) -> WorkerRow:
    name, host, pid, version, tasks, concurrency, stopping, flags, started_at, seen_at, now = row
    card = WorkerCard(
        name=name,
        host=host,
        pid=pid,
        version=version,
        tasks=None if tasks is None else tuple(tasks),
        concurrency=concurrency,
        stopping=stopping,
        forbidden_flags=None if flags is None else tuple(flags),
    )
    return worker_row(card, started_at, seen_at, now)
