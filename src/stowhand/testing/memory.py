"""A store in memory: the specification as an example, and the fastest store for tests of your own.

The rules are in ``leasing``, ``enqueueing`` and ``acting``, as plain functions over ``rows``; here they get a lock,
a clock and a way to wake who sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime, timedelta
from typing import NoReturn

from stowhand import limits
from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import InvalidJob, SchemaMissing, StoreError
from stowhand.job import Job, NewJob, State
from stowhand.lifecycle import Settlement
from stowhand.store import (
    Answer,
    Claim,
    ClaimRequest,
    JobFilter,
    Lease,
    Pulse,
    ResetJob,
    SchemaStatus,
    StoreOptions,
    Verdict,
)
from stowhand.testing import acting, enqueueing, leasing
from stowhand.testing.rows import Row, Rows

SCHEMA = 1
LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""


class MemoryStore:
    """Jobs in this process, gone with it. Behaves as every other store of ours does.

    Its heart may be used from another thread; what several workers share is one ``MemoryStore``.
    """

    description = "memory"
    hears = True

    def __init__(self, clock: Clock | None = None, options: StoreOptions | None = None) -> None:
        self._clock = clock or SystemClock()
        self._options = options or StoreOptions()
        self._rows = Rows(self._options.history)
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
        with self.transaction() as (rows, now):
            return [claimed(row) for row in leasing.claim(rows, request, now)]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Verdict]:
        with self.transaction() as (rows, now):
            return [leasing.settle(rows, lease, what, now, repeat=repeat) for lease, what in batch]

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        with self.transaction() as (rows, now):
            due = [row.run_at for row in rows.live.values() if row.waits() and (tasks is None or row.task in tasks)]
            return max((min(due) - now).total_seconds(), 0.0) if due else None

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

    def heart(self) -> MemoryHeart:
        return MemoryHeart(self)

    async def enqueue(self, job: NewJob) -> Job:
        with self.transaction() as (rows, now):
            return enqueueing.add(rows, limits.check(job), now).job()

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        wanted = [job async for job in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        keys = [job.key for job in wanted if job.key is not None]
        if len(keys) != len(set(keys)):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidJob(f"the key {twice!r} is given twice in one call")
        with self.transaction() as (rows, now), rows.all_or_nothing():
            return [enqueueing.add(rows, limits.check(job), now).id for job in wanted]

    def enqueue_in(self, connection: object, job: NewJob) -> NoReturn:
        raise StoreError(
            f"a memory store has no transactions, so {job.task!r} cannot be enqueued in that "
            f"{type(connection).__name__}; use enqueue()"
        )

    async def get(self, job_id: int) -> Job | None:
        with self.transaction() as (rows, _):
            row = rows.find(job_id)
            return row.job() if row is not None else None

    async def list(self, wanted: JobFilter) -> Sequence[Job]:
        with self.transaction() as (rows, _):
            everything = sorted([*rows.live.values(), *rows.history.values()], key=lambda row: row.id)
            return [row.job() for row in everything if matches(row, wanted)][: wanted.limit]

    async def counts(self) -> dict[State, int]:
        with self.transaction() as (rows, _):
            states = [row.state for row in (*rows.live.values(), *rows.history.values())]
            return {state: states.count(state) for state in State}

    async def retry(self, job_id: int) -> Answer:
        with self.transaction() as (rows, now):
            return acting.retry(rows, job_id, now)

    async def cancel(self, job_id: int) -> Answer:
        with self.transaction() as (rows, now):
            return acting.cancel(rows, job_id, now)

    async def remove(self, job_id: int) -> Answer:
        with self.transaction() as (rows, _):
            return acting.remove(rows, job_id)

    async def remove_key(self, key: str) -> Answer:
        with self.transaction() as (rows, _):
            return acting.remove_key(rows, key)

    async def install(self) -> SchemaStatus:
        self._installed = True
        return await self.status()

    async def status(self) -> SchemaStatus:
        return SchemaStatus(installed=SCHEMA if self._installed else None, expected=SCHEMA)

    async def plan(self) -> str:
        return "" if self._installed else "-- a memory store runs no statements"

    async def uninstall(self) -> None:
        with self._lock:
            self._installed, self._rows = False, Rows(self._options.history)

    def rows(self) -> Sequence[Row]:
        """Copies of all rows, those in the history too, leases included: for tests that look inside."""
        with self.transaction() as (rows, _):
            return [copy(row) for row in (*rows.live.values(), *rows.history.values())]

    @contextmanager
    def transaction(self) -> Iterator[tuple[Rows, datetime]]:
        """The rows and the time, for one caller at a time; afterwards, sleepers hear of what became claimable."""
        with self._lock:
            if not self._installed:
                raise SchemaMissing("nothing is installed in this memory store: call install()")
            yield self._rows, self._now()
            if self._rows.news:
                self._rows.news = False
                self._wake()

    def _wake(self) -> None:
        # Also for who is about to sleep: a hint given once too often costs one empty claim, a lost one a poll.
        self._rung = True
        for woken, loop in self._sleepers.items():
            loop.call_soon_threadsafe(answer, woken, True)

    def _now(self) -> datetime:
        if self._options.pinned is not None:
            return self._options.pinned()
        return self._clock.pinned() or wall_clock()


class MemoryHeart:
    """The store's blocking side; safe in another thread, because every call takes the store's lock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        with self._store.transaction() as (rows, now):
            return leasing.beat(rows, leases, lease, now)

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        with self._store.transaction() as (rows, now):
            leasing.release(rows, leases, now)
        return ()

    def abandon(self, token: str) -> bool:
        with self._store.transaction() as (rows, now):
            leasing.abandon(rows, token, now)
        return True

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        with self._store.transaction() as (rows, now):
            return leasing.reset(rows, leasing.stalled(rows, slack, now), now)

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        with self._store.transaction() as (rows, now):
            return leasing.reset(rows, leasing.held_by(rows, worker), now)

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        with self._store.transaction() as (rows, now):
            return leasing.reset(rows, [lease], now)

    def maintain(self) -> None:
        with self._store.transaction() as (rows, now):
            oldest = now - timedelta(seconds=rows.kept or 0.0)
            rows.history = {
                row.id: row for row in rows.history.values() if row.finished_at is None or row.finished_at >= oldest
            }

    def close(self) -> None:
        pass


def claimed(row: Row) -> Claim[Job]:
    """What a worker gets."""
    lease = Lease(row.id, str(row.token), row.epoch)
    return Claim(lease, row.job(), row.task, row.attempts, row.max_attempts, row.queue)


def matches(row: Row, wanted: JobFilter) -> bool:
    """Is it one of the jobs to list?"""
    return (
        row.id > wanted.after
        and row.state in (wanted.states or LISTED)
        and wanted.task in (None, row.task)
        and wanted.queue in (None, row.queue)
        and wanted.key in (None, row.key)
    )


def answer(woken: asyncio.Future[bool], worth: bool) -> None:
    """Wake a sleeper that has not been woken yet."""
    if not woken.done():
        woken.set_result(worth)
