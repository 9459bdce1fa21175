"""A store in memory: the specification as an example, and the fastest store for tests of your own.

The rules are plain functions over the one state, ``rows.Rows``: ``enqueueing``, ``leasing`` (claim, settle, beat,
reset), ``acting`` (what each call does in each state), ``timetable`` and ``operating``. Here they get a lock, a clock
and a way to wake workers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from typing import NoReturn

from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing, StoreError
from stowhand.jobs import limits
from stowhand.jobs.conditions import refuse_conditions
from stowhand.jobs.job import MAX_ATTEMPTS, Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
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
from stowhand.protocols.queue_store import NEWEST, Answer, Entered, JobFilter, KnownItem, Reschedule, SchemaStatus, Tick
from stowhand.protocols.store import Claim, ClaimRequest, Foreign, Reply, StoreOptions
from stowhand.protocols.validation import (
    refuse_default_attempts,
    validate_filter,
    validate_id,
    validate_ids,
    validate_reason,
    validate_reschedule,
    validate_workers,
)
from stowhand.stores.foreign_leases import ForeignLeases
from stowhand.stores.memory import acting, enqueueing, leasing, operating, timetable
from stowhand.stores.memory.flow_tables import MemoryFlowTables
from stowhand.stores.memory.heartbeats import MemoryHeartbeats
from stowhand.stores.memory.rows import Refuses, Row, Rows

SCHEMA = 1
LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""


class MemoryStore:
    """Jobs in this process, gone with it. Behaves as every other store of ours does.

    Several workers share jobs by sharing one ``MemoryStore``. Its heartbeats may be used from another thread.
    """

    description = "memory"
    is_listening = True
    on_listening: Callable[[str, BaseException | None], None] | None = None
    """Never called: no wake-up is ever lost."""
    on_warning: Callable[[str, str], None] | None = None

    def __init__(self, clock: Clock | None = None, options: StoreOptions | None = None) -> None:
        self._clock = clock or SystemClock()
        self._options = options or StoreOptions()
        self._rows = Rows(self._options.history, self._options.max_attempts)
        self._flows = MemoryFlowTables(self, keeps=self._options.history is not None)
        self._foreign_leases = ForeignLeases()
        self._installed = True
        self._lock = threading.RLock()
        self._sleepers: dict[asyncio.Future[bool], asyncio.AbstractEventLoop] = {}
        self._rung = False

    async def open(self) -> None:
        with self.transaction():
            pass

    async def close(self) -> None:
        pass

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        refuse_conditions(request.conditions)
        self._foreign_leases.ask(request)
        with self.transaction() as (rows, now):
            return [claimed(row) for row in leasing.claim(rows, request, now)]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        with self.transaction() as (rows, now):
            return [leasing.settle(rows, lease, what, now, repeat=repeat) for lease, what in batch]

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        with self.transaction() as (rows, now):
            waiting = [row for row in rows.live.values() if row.waits() and (tasks is None or row.task in tasks)]
            due = [row.run_at for row in waiting if not rows.is_paused(row)]
            if (question := self._foreign_leases.take()) is not None:
                self._foreign_leases.see(leasing.foreign(rows, question.ours, question.slack, now).ends_in)
            return max((min(due) - now).total_seconds(), 0.0) if due else None

    def foreign(self) -> Foreign | None:
        return self._foreign_leases.take_answer()

    async def wait(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self._rung:
                self._rung = False
                return True
            self._sleepers[woken] = loop
        timer = self._clock.call_later(timeout, lambda: answer(woken, False))
        try:
            return await woken
        finally:
            timer.cancel()
            with self._lock:
                del self._sleepers[woken]

    @property
    def failed_retention(self) -> float | None:
        return self._options.failed_retention

    def refuse(self, refuses: Refuses) -> None:
        """Behave as a database whose owner's trigger refuses to write some jobs."""
        with self.transaction() as (rows, _):
            rows.refuses = refuses

    def heartbeats(self) -> MemoryHeartbeats:
        return MemoryHeartbeats(self)

    async def enqueue(self, job: NewJob) -> Job:
        with self.transaction() as (rows, now):
            return enqueueing.add(rows, limits.check(job), now).job()

    async def add_built_in(self, job: NewJob) -> Job:
        with self.transaction() as (rows, now):
            return enqueueing.add(rows, limits.check_built_in(job), now).job()

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        wanted = [job async for job in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        return [job.id for job in await self.add_jobs(wanted)]

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        keys = [job.key for job in jobs if job.key is not None]
        if len(keys) != len(set(keys)):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidJob(f"the key {twice!r} is given twice in one call")
        with self.transaction() as (rows, now), rows.all_or_nothing():
            return [enqueueing.add(rows, limits.check(job), now).job() for job in jobs]

    def enqueue_in(self, connection: object, job: NewJob) -> NoReturn:
        raise StoreError(
            f"a memory store has no transactions, so {job.task!r} cannot be enqueued in that "
            f"{type(connection).__name__}; use enqueue()"
        )

    async def get(self, job_id: int) -> Job | None:
        with self.transaction() as (rows, _):
            row = rows.find(validate_id(job_id))
            return row.job() if row is not None else None

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        with self.transaction() as (rows, _):
            wanted = validate_filter(wanted)
            ordered = sorted(rows.every(), key=lambda row: row.id, reverse=wanted.newest_first)
            return [row.job() for row in ordered if matches(row, wanted)][: wanted.limit]

    async def counts(self) -> dict[State, int]:
        with self.transaction() as (rows, _):
            states = [row.state for row in rows.every()]
            return {state: states.count(state) for state in State}

    async def oldest_due(self) -> float:
        with self.transaction() as (rows, now):
            waiting = (row for row in rows.live.values() if row.waits() and not rows.is_paused(row))
            waited = [(now - row.run_at).total_seconds() for row in waiting]
            return max([0.0, *waited])

    async def retry(self, job_id: int) -> Answer:
        with self.transaction() as (rows, now):
            return acting.retry(rows, job_id, now)

    async def cancel(self, job_id: int) -> Answer:
        with self.transaction() as (rows, now):
            return acting.cancel(rows, job_id, now)

    async def remove(self, job_id: int) -> Answer:
        with self.transaction() as (rows, _):
            return acting.remove(rows, job_id)

    async def retry_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return [await self.retry(job_id) for job_id in validate_ids(job_ids)]

    async def cancel_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return [await self.cancel(job_id) for job_id in validate_ids(job_ids)]

    async def remove_jobs(self, job_ids: Sequence[int]) -> Sequence[Answer]:
        return [await self.remove(job_id) for job_id in validate_ids(job_ids)]

    async def remove_key(self, key: str) -> Answer:
        with self.transaction() as (rows, _):
            return acting.remove_key(rows, key)

    async def complete_jobs(self, job_ids: Sequence[int]) -> Sequence[Job]:
        with self.transaction() as (rows, now):
            return acting.complete(rows, validate_ids(job_ids), now)

    async def permanently_fail_jobs(self, job_ids: Sequence[int], reason: str | None = None) -> Sequence[Job]:
        with self.transaction() as (rows, now):
            return acting.fail(rows, validate_ids(job_ids), validate_reason(reason), now)

    async def reschedule_jobs(self, job_ids: Sequence[int], to: Reschedule) -> Sequence[Job]:
        with self.transaction() as (rows, now):
            return acting.reschedule(rows, validate_ids(job_ids), validate_reschedule(to), now)

    async def force_unlock_workers(self, workers: Sequence[str]) -> Sequence[Job]:
        with self.transaction() as (rows, now):
            return acting.force_unlock(rows, validate_workers(workers), now)

    async def now(self) -> datetime:
        return self._now().astimezone(UTC)

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        with self.transaction() as (rows, now):
            return timetable.register(rows, items, now)

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        with self.transaction() as (rows, now):
            return timetable.schedule(rows, ticks, now)

    async def known_items(self) -> Sequence[KnownItem]:
        with self.transaction() as (rows, _):
            return sorted(rows.known.values(), key=lambda item: item.identifier)

    async def ticks(self, identifier: str, since: datetime) -> Sequence[datetime]:
        with self.transaction() as (rows, _):
            return timetable.ticks(rows, identifier, since)

    async def pause_queue(self, name: str) -> QueueChange:
        with self.transaction() as (rows, now):
            return QueueChange(name, operating.pause(rows.paused_queues, read_queue(name), now))

    async def resume_queue(self, name: str) -> QueueChange:
        with self.transaction() as (rows, _):
            return QueueChange(name, operating.resume(rows, rows.paused_queues, read_queue(name)))

    async def pause_task(self, name: str) -> TaskChange:
        return self._pause(read_task(name))

    async def resume_task(self, name: str) -> TaskChange:
        return self._resume(read_task(name))

    async def pause_unqueued(self) -> TaskChange:
        return self._pause("")

    async def resume_unqueued(self) -> TaskChange:
        return self._resume("")

    def _pause(self, task: str) -> TaskChange:
        with self.transaction() as (rows, now):
            return TaskChange(task or None, operating.pause(rows.paused_tasks, task, now))

    def _resume(self, task: str) -> TaskChange:
        with self.transaction() as (rows, _):
            return TaskChange(task or None, operating.resume(rows, rows.paused_tasks, task))

    async def pauses(self) -> Pauses:
        with self.transaction() as (rows, _):
            return operating.pauses(rows)

    async def retry_failed(self, job_ids: Sequence[int]) -> Sequence[int]:
        with self.transaction() as (rows, now):
            return operating.retry_failed(rows, validate_ids(job_ids), now)

    async def queues(self) -> Sequence[QueueRow]:
        with self.transaction() as (rows, now):
            return operating.queues(rows, now)

    async def purge(self, ages: Ages, *, dry_run: bool = False) -> Purged:
        with self.transaction() as (rows, now):
            return operating.purge(rows, ages, now, dry_run=dry_run)

    async def workers(self) -> Sequence[WorkerRow]:
        with self.transaction() as (rows, now):
            return operating.workers(rows, now)

    async def explain(self, job_id: int) -> Explanation | None:
        with self.transaction() as (rows, now):
            return operating.explain_job(rows, validate_id(job_id), now)

    async def figures(self) -> Figures:
        with self.transaction() as (rows, now):
            return operating.figures(rows, now)

    def connection(self) -> NoReturn:
        raise ConfigurationError("a memory store has no connections to lend; PostgreSQL has")

    def seat(self, slots: int) -> None:
        return None

    def flow_tables(self) -> MemoryFlowTables:
        return self._flows

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        refuse_roles(roles)
        self._installed = True
        return await self.status()

    async def status(self) -> SchemaStatus:
        return SchemaStatus(installed=SCHEMA if self._installed else None, expected=SCHEMA)

    async def plan(self, *, roles: bool = False) -> str:
        refuse_roles(roles)
        return "" if self._installed else "-- a memory store runs no statements"

    async def foreign_changes(self) -> Sequence[str]:
        return []

    async def default_max_attempts(self) -> int:
        return MAX_ATTEMPTS

    async def set_default_max_attempts(self, attempts: int) -> NoReturn:
        refuse_default_attempts()

    async def uninstall(self) -> None:
        with self._lock:
            self._installed, self._rows = False, Rows(self._options.history)
            self._flows = MemoryFlowTables(self, keeps=self._options.history is not None)

    def rows(self) -> Sequence[Row]:
        """Copies of all rows, those in the history too, leases included: for tests that look inside."""
        with self.transaction() as (rows, _):
            return [copy(row) for row in rows.every()]

    @contextmanager
    def transaction(self) -> Iterator[tuple[Rows, datetime]]:
        """The rows and the time, for one caller at a time; then wakes workers if something became claimable."""
        with self._lock:
            if not self._installed:
                raise SchemaMissing("nothing is installed in this memory store: call install()")
            yield self._rows, self._now()
            if self._rows.take_news():
                self._wake()

    def _wake(self) -> None:
        # Kept for a worker about to sleep: one wake-up too many costs an empty claim, a lost one a poll interval.
        self._rung = True
        for woken, loop in self._sleepers.items():
            loop.call_soon_threadsafe(answer, woken, True)

    def _now(self) -> datetime:
        if self._options.pinned is not None:
            return self._options.pinned()
        return self._clock.pinned() or wall_clock()


def refuse_roles(roles: bool) -> None:
    """Refused: only this process has access."""
    if roles:
        raise ConfigurationError("a memory store has no roles")


def claimed(row: Row) -> Claim[Job]:
    """What a worker receives."""
    lease = Lease(row.id, str(row.token), row.epoch)
    return Claim(lease, row.job(), row.task, row.attempts, row.max_attempts, row.queue, row.resets)


def matches(row: Row, wanted: JobFilter) -> bool:
    """Whether it is one of the jobs to list."""
    below = wanted.newest_first and wanted.after > 0
    at = row.finished_at or row.created_at
    return (
        (row.id < wanted.after if below else wanted.newest_first or row.id > wanted.after)
        and row.state in (wanted.states or LISTED)
        and wanted.task in (None, row.task)
        and wanted.queue in (None, row.queue)
        and wanted.key in (None, row.key)
        and wanted.worker in (None, row.worker)
        and (wanted.error is None or wanted.error.lower() in (row.last_error or "").lower())
        and (wanted.since is None or at >= wanted.since)
        and (wanted.until is None or at < wanted.until)
    )


def answer(woken: asyncio.Future[bool], worth: bool) -> None:
    """Wake a sleeper that has not been woken yet."""
    if not woken.done():
        woken.set_result(worth)
