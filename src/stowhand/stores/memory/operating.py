"""The memory store's answers to operators: pause queues and tasks, purge, who works, why does a job not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import QUARANTINE_AFTER
from stowhand.protocols.figures import MINUTES, Amount, EndedCounts, Figures, Pauses, Tallies
from stowhand.protocols.operating import (
    FORGOTTEN_AFTER,
    MOST_AHEAD,
    Ages,
    Explanation,
    Purged,
    QueueChange,
    QueueRow,
    TaskChange,
    WorkerRow,
    read_queue,
    read_task,
    worker_row,
)
from stowhand.protocols.validation import validate_id, validate_ids
from stowhand.stores.explaining import Busy, Facts, Holder, Takers, explain, takers
from stowhand.stores.memory import acting
from stowhand.stores.memory.rows import Row, Rows


class MemoryOperations:
    """The seam ``Operator``."""

    def transaction(self) -> AbstractContextManager[tuple[Rows, datetime]]:
        """The rows and the time, for one caller at a time."""
        raise NotImplementedError

    async def pause_queue(self, name: str) -> QueueChange:
        name = read_queue(name)
        with self.transaction() as (rows, now):
            is_new = name not in rows.paused
            rows.paused.setdefault(name, now)
            return QueueChange(name, is_new)

    async def resume_queue(self, name: str) -> QueueChange:
        name = read_queue(name)
        with self.transaction() as (rows, _):
            rows.news = True
            return QueueChange(name, rows.paused.pop(name, None) is not None)

    async def pause_task(self, name: str) -> TaskChange:
        return self._pause(read_task(name))

    async def resume_task(self, name: str) -> TaskChange:
        return self._resume(read_task(name))

    async def pause_unqueued(self) -> TaskChange:
        return self._pause("")

    async def resume_unqueued(self) -> TaskChange:
        return self._resume("")

    async def pauses(self) -> Pauses:
        with self.transaction() as (rows, _):
            return Pauses.read(dict(sorted(rows.pauses.items())))

    def _pause(self, name: str) -> TaskChange:
        with self.transaction() as (rows, now):
            is_new = name not in rows.pauses
            rows.pauses.setdefault(name, now)
            return TaskChange(name or None, is_new)

    def _resume(self, name: str) -> TaskChange:
        with self.transaction() as (rows, _):
            rows.news = True
            return TaskChange(name or None, rows.pauses.pop(name, None) is not None)

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        with self.transaction() as (rows, now):
            found = (rows.live.get(job_id) for job_id in validate_ids(job_ids))
            failed = [row.id for row in found if row is not None and row.state is State.FAILED]
            for job_id in failed:
                acting.retry(rows, job_id, now)
            return failed

    async def queues(self) -> Sequence[QueueRow]:
        with self.transaction() as (rows, now):
            names = {row.queue for row in rows.live.values() if row.queue is not None}
            return [queue_row(rows, name, now) for name in sorted(names | rows.paused.keys())]

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        with self.transaction() as (rows, now):
            old = {state: old_rows(rows, state, getattr(ages, state.value), now) for state in OVER}
            if not dry_run:
                for row in (row for some in old.values() for row in some):
                    rows.live.pop(row.id, None)
                    rows.history.pop(row.id, None)
            return Purged(**{state.value: len(some) for state, some in old.items()})

    async def workers(self) -> Sequence[WorkerRow]:
        with self.transaction() as (rows, now):
            return roll(rows, now)

    async def explain(self, job_id: int) -> Explanation | None:
        with self.transaction() as (rows, now):
            row = rows.find(validate_id(job_id))
            return None if row is None else explain(facts(rows, row, now))

    async def figures(self) -> Figures:
        with self.transaction() as (rows, now):
            tasks, queues, workers = Tallies(), Tallies(), Tallies()
            for row in rows.live.values():
                running = row.worker if row.state is State.PROCESSING else None
                for tallies, name in ((tasks, row.task), (queues, row.queue), (workers, running)):
                    if name is not None:
                        tallies.add(name, row.state.value, Amount(1))
                        tallies.add(name, "due", Amount(int(row.waits() and row.run_at <= now)))
            return Figures(
                tasks=tasks.live(),
                queues=queues.live(),
                workers=workers.live(),
                history=ended_rows(rows.history.values(), datetime.min.replace(tzinfo=UTC)),
                lately={
                    minutes: ended_rows([*rows.live.values(), *rows.history.values()], now - timedelta(minutes=minutes))
                    for minutes in MINUTES
                },
                paused=dict(sorted(rows.paused.items())),
                pauses=Pauses.read(dict(sorted(rows.pauses.items()))),
            )


OVER = (State.COMPLETED, State.FAILED, State.CANCELED)


def prune(rows: Rows, now: datetime, failed_retention: float | None) -> None:
    """What maintenance does of it: failed jobs past their time, and workers that said no goodbye."""
    for row in old_rows(rows, State.FAILED, failed_retention, now):
        del rows.live[row.id]
    oldest = now - timedelta(seconds=FORGOTTEN_AFTER)
    rows.roll = {name: entry for name, entry in rows.roll.items() if entry[2] >= oldest}


def old_rows(rows: Rows, state: State, age: float | None, now: datetime) -> list[Row]:
    """What ended in this state longer ago than that."""
    if age is None:
        return []
    before = now - timedelta(seconds=age)
    every = [*rows.live.values(), *rows.history.values()]
    return [row for row in every if row.state is state and row.finished_at is not None and row.finished_at < before]


def queue_row(rows: Rows, name: str, now: datetime) -> QueueRow:
    """One queue."""
    own = [row for row in rows.live.values() if row.queue == name]
    waiting = [row for row in own if row.waits()]
    running = [row.id for row in own if row.state is State.PROCESSING]
    return QueueRow(
        name=name,
        paused_since=rows.paused.get(name),
        held_by=running[0] if running else None,
        waiting=len(waiting),
        due=sum(row.run_at <= now for row in waiting),
        running=len(running),
        failed=sum(row.state is State.FAILED for row in own),
    )


def ended_rows(rows: Iterable[Row], since: datetime) -> Sequence[EndedCounts]:
    """By task, what ended after that."""
    tallies = Tallies()
    for row in rows:
        if row.finished_at is not None and row.finished_at > since:
            tallies.add(row.task, row.state.value, Amount(1))
    return tallies.ended()


def roll(rows: Rows, now: datetime) -> list[WorkerRow]:
    """By name."""
    return [worker_row(card, started, seen, now) for _, (card, started, seen) in sorted(rows.roll.items())]


def facts(rows: Rows, row: Row, now: datetime) -> Facts:
    """What is known about a job and its surroundings."""
    place = (row.priority, row.run_at, row.id)
    workers = roll(rows, now)
    pauses = Pauses.read(rows.pauses)
    taken = takers(row.job(), workers, pauses)
    ahead = [
        one
        for one in rows.live.values()
        if one.waits() and one.queue == row.queue and one.resets < QUARANTINE_AFTER and one.run_at <= now
        if (one.priority, one.run_at, one.id) < place
        if taken is not None and _takes(taken, one)
    ]
    holder = next(
        (
            one
            for one in rows.live.values()
            if row.queue is not None and one.queue == row.queue and one.state is State.PROCESSING and one is not row
        ),
        None,
    )
    return Facts(
        job=row.job(),
        now=now,
        lease_until=row.lease_until,
        paused_since=None if row.queue is None else rows.paused.get(row.queue),
        pauses=pauses,
        holder=None if holder is None else Holder(holder.id, holder.worker, holder.started_at, holder.lease_until),
        ahead=min(len(ahead), MOST_AHEAD + 1),
        workers=workers,
        busy=busy(rows),
    )


def _takes(taken: Takers, row: Row) -> bool:
    return (taken.tasks is None or row.task in taken.tasks) and set(row.flags).isdisjoint(taken.forbidden)


def busy(rows: Rows) -> dict[str, Busy]:
    """By worker."""
    held: dict[str, list[Row]] = {}
    for row in rows.live.values():
        if row.state is State.PROCESSING and row.worker is not None:
            held.setdefault(row.worker, []).append(row)
    found = {}
    for worker, some in held.items():
        oldest = min(some, key=lambda row: (row.started_at or row.updated_at, row.id))
        found[worker] = Busy(len(some), oldest.id, oldest.task, oldest.started_at or oldest.updated_at)
    return found
