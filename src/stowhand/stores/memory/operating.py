"""What operators ask of the memory store: pause, purge, figures, who works, why a job does not run."""

from __future__ import annotations

from datetime import datetime, timedelta

from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import QUARANTINE_AFTER
from stowhand.protocols.figures import Amount, Pauses
from stowhand.protocols.operating import (
    FORGOTTEN_AFTER,
    MOST_AHEAD,
    PURGE_COUNTED,
    VERSION_GONE,
    VERSIONS_FOR,
    Ages,
    Held,
    Purged,
    QueueChange,
    QueueRow,
    TaskChange,
    WorkerRow,
    read_queue,
    read_task,
    worker_row,
)
from stowhand.stores.explaining import Busy, ClaimScope, Facts, Holder, claim_scope
from stowhand.stores.memory import searching
from stowhand.stores.memory.rows import Row, Rows, Transaction

OVER = (State.COMPLETED, State.FAILED, State.CANCELED)


class Operator:
    """Pauses queues and tasks, and purges."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def pause_queue(self, name: str) -> QueueChange:
        with self._transaction() as rows:
            return QueueChange(name, pause(rows.paused_queues, read_queue(name), rows.now))

    async def resume_queue(self, name: str) -> QueueChange:
        with self._transaction() as rows:
            return QueueChange(name, resume(rows, rows.paused_queues, read_queue(name)))

    async def pause_task(self, name: str) -> TaskChange:
        return self._pause(read_task(name))

    async def resume_task(self, name: str) -> TaskChange:
        return self._resume(read_task(name))

    def _pause(self, task: str) -> TaskChange:
        with self._transaction() as rows:
            return TaskChange(task, pause(rows.paused_tasks, task, rows.now))

    def _resume(self, task: str) -> TaskChange:
        with self._transaction() as rows:
            return TaskChange(task, resume(rows, rows.paused_tasks, task))

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        """Delete what ended longer ago than the age for its state; ``dry_run``: only count it."""
        with self._transaction() as rows:
            old = {state: old_rows(rows, state, getattr(ages, state.value)) for state in OVER}
            if dry_run:
                return Purged(**{state.value: min(len(some), PURGE_COUNTED + 1) for state, some in old.items()})
            rows.forget(row for some in old.values() for row in some)
            return Purged(**{state.value: len(some) for state, some in old.items()})


def pause(paused: dict[str, datetime], name: str, now: datetime) -> bool:
    """A queue or a task, whose running jobs go on. False: it was paused before."""
    is_new = name not in paused
    paused.setdefault(name, now)
    return is_new


def resume(rows: Rows, paused: dict[str, datetime], name: str) -> bool:
    """Wakes workers. False: it was not paused."""
    rows.announce()
    return paused.pop(name, None) is not None


def pauses(rows: Rows) -> Pauses:
    """Of tasks."""
    return Pauses(tasks=dict(sorted(rows.paused_tasks.items())))


def workers(rows: Rows) -> list[WorkerRow]:
    """By name."""
    return [worker_row(card, started, seen, rows.now) for _, (card, started, seen) in sorted(rows.workers.items())]


def prune(rows: Rows, failed_retention: float | None) -> None:
    """For maintenance: failed jobs past their retention, and workers that stopped without saying so."""
    rows.forget(old_rows(rows, State.FAILED, failed_retention))
    oldest = rows.now - timedelta(seconds=FORGOTTEN_AFTER)
    rows.workers = {name: entry for name, entry in rows.workers.items() if entry[2] >= oldest}
    seen_after = rows.now - timedelta(seconds=VERSIONS_FOR)
    rows.app_versions = [one for one in rows.app_versions if one[2] >= seen_after]


def old_rows(rows: Rows, state: State, age: float | None) -> list[Row]:
    """What ended in this state longer ago than that."""
    if age is None:
        return []
    before = rows.now - timedelta(seconds=age)
    return [
        row for row in rows.every() if row.state is state and row.finished_at is not None and row.finished_at < before
    ]


def queue_row(rows: Rows, name: str) -> QueueRow:
    """One queue."""
    own = [row for row in rows.live.values() if row.queue == name]
    waiting = [row for row in own if row.waits()]
    running = [row.id for row in own if row.state is State.PROCESSING]
    return QueueRow(
        name=name,
        paused_since=rows.paused_queues.get(name),
        held_by=running[0] if running else None,
        waiting=len(waiting),
        due=sum(row.run_at <= rows.now for row in waiting),
        running=len(running),
        failed=sum(row.state is State.FAILED for row in own),
        due_since=min((row.run_at for row in waiting if row.run_at <= rows.now), default=None),
    )


def facts(rows: Rows, row: Row) -> Facts:
    """What is known about a job and its surroundings."""
    place = (row.priority, row.run_at, row.id)
    registered, paused = workers(rows), pauses(rows)
    scope = claim_scope(row.job(), registered, paused)
    ahead = [
        one
        for one in rows.live.values()
        if one.waits() and one.queue == row.queue and one.resets < QUARANTINE_AFTER and one.run_at <= rows.now
        if (one.priority, one.run_at, one.id) < place
        if scope is not None and _is_claimed_in(scope, one)
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
        now=rows.now,
        lease_until=row.lease_until,
        paused_since=None if row.queue is None else rows.paused_queues.get(row.queue),
        pauses=paused,
        holder=None if holder is None else Holder(holder.id, holder.worker, holder.started_at, holder.lease_until),
        ahead=min(len(ahead), MOST_AHEAD + 1),
        workers=registered,
        busy=busy(rows),
        expires_at=row.expires_at,
        on_failure=None if row.on_failure is None else row.on_failure.task,
    )


def _is_claimed_in(scope: ClaimScope, row: Row) -> bool:
    return (scope.tasks is None or row.task in scope.tasks) and set(row.flags).isdisjoint(scope.forbidden)


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


def held(rows: Rows, each: int) -> list[Held]:
    """Of each worker, by name."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows.live.values(), key=lambda row: (row.started_at or row.updated_at, row.id)):
        if row.state is State.PROCESSING and row.worker is not None:
            found.setdefault(row.worker, []).append(row)
    return [
        Held(worker=worker, jobs=Amount(len(some)), longest=[searching.head(row) for row in some[:each]])
        for worker, some in sorted(found.items())
    ]


def note_version(rows: Rows, version: str) -> None:
    """A worker has it now."""
    oldest = rows.now - timedelta(seconds=VERSION_GONE)
    known = [one for one in rows.app_versions if one[0] == version and one[2] >= oldest]
    rows.app_versions = [one for one in rows.app_versions if one not in known]
    since = known[0][1] if known else rows.now
    rows.app_versions = sorted([*rows.app_versions, (version, since, rows.now)], key=lambda one: (one[1], one[0]))
