"""A store whose enqueues are spans: the enqueued jobs carry the context of the span."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Tracer

from stowhand.jobs.job import Job, NewJob
from stowhand.observe.enqueue_span import EnqueueSpan
from stowhand.observe.propagation import CORRELATION_ID, with_carried
from stowhand.protocols.producer import Producer, Transactions
from stowhand.protocols.queue_store import Administrator, LedgerEntry, QueueStore, Tick, Timetable

T = TypeVar("T")
Carry = Callable[[NewJob], NewJob]


def traced_store(store: QueueStore, tracer: Tracer) -> QueueStore:
    """Return the store with tracing. A traced store is returned as is."""
    return store if isinstance(store, TracedStore) else cast("QueueStore", TracedStore(store, tracer))


class _Traced(Generic[T]):
    """Wrapper that passes everything it does not trace to the inner object."""

    def __init__(self, inner: T, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TracedStore(_Traced[QueueStore]):
    """Store with traced enqueues."""

    @property
    def jobs(self) -> TracedProducer:
        return TracedProducer(self._inner.jobs, self._tracer)

    @property
    def transactions(self) -> TracedTransactions | None:
        inner = self._inner.transactions
        return None if inner is None else TracedTransactions(inner, self._tracer)

    @property
    def admin(self) -> TracedAdministrator:
        return TracedAdministrator(self._inner.admin, self._tracer)

    @property
    def timetable(self) -> TracedTimetable:
        return TracedTimetable(self._inner.timetable, self._tracer)


class TracedProducer(_Traced[Producer]):
    """Producer with a span for each call."""

    async def enqueue(self, job: NewJob) -> Job:
        """Create a span ``enqueue <task>``."""
        span = _start_span(self._tracer, job)
        with span.as_current():
            added: Job = await self._inner.enqueue(_carrier(span)(job))
            span.record_job(added.id)
            return added

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Create one span for all jobs. It names the task if they share one."""
        span, tasks = EnqueueSpan(self._tracer), _TaskSet()
        carry = _carrier(span)
        with span.as_current():
            if isinstance(jobs, AsyncIterable):
                ids: list[int] = await self._inner.enqueue_many(_traced_jobs_async(jobs, carry, tasks))
            else:
                ids = await self._inner.enqueue_many(_traced_jobs(jobs, carry, tasks))
            span.record_jobs(len(ids), tasks.only)
            return ids

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Create one span for all jobs, as ``enqueue_many`` does."""
        span, tasks = EnqueueSpan(self._tracer), _TaskSet()
        with span.as_current():
            added: Sequence[Job] = await self._inner.add_jobs(list(_traced_jobs(jobs, _carrier(span), tasks)))
            span.record_jobs(len(added), tasks.only)
            return added


class TracedTransactions(_Traced[Transactions]):
    """Transactional enqueues with a span for each call."""

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """Create a span ``enqueue <task>``, which ends before the caller commits or rolls back."""
        span = _start_span(self._tracer, job)
        with span.as_current(ends_with_block=False):
            added = self._inner.enqueue_in(connection, _carrier(span)(job))
        if inspect.isawaitable(added):
            return _await_job(span, added)
        span.record_job(added.id)
        span.end()
        return added


class TracedAdministrator(_Traced[Administrator]):
    """Administrator with a span for its call that enqueues."""

    async def add_built_in(self, job: NewJob) -> Job:
        """Create a span ``enqueue <task>``."""
        span = _start_span(self._tracer, job)
        with span.as_current():
            added: Job = await self._inner.add_built_in(_carrier(span)(job))
            span.record_job(added.id)
            return added


class TracedTimetable(_Traced[Timetable]):
    """Timetable with a span for each tick."""

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        """Create a span for each tick, in its own trace.

        If another scheduler has created the job, the span never ends, so that it is not exported.
        """
        spans = [_start_span(self._tracer, tick.job, Context(), _cron_attributes(tick)) for tick in ticks]
        traced_ticks = [
            msgspec.structs.replace(tick, job=with_carried(tick.job, span.carried() | {CORRELATION_ID: None}))
            for tick, span in zip(ticks, spans, strict=True)
        ]
        entries: Sequence[LedgerEntry] = await self._inner.schedule(traced_ticks)
        for span, entry in zip(spans, entries, strict=True):
            if entry.is_own:
                span.record_job(entry.job_id)
                span.end()
        return entries


def _start_span(
    tracer: Tracer, job: NewJob, context: Context | None = None, extra_attributes: dict[str, Any] | None = None
) -> EnqueueSpan:
    return EnqueueSpan(tracer, job.task, job.serial, context, extra_attributes)


class _TaskSet:
    """Tasks of a span's jobs."""

    def __init__(self) -> None:
        self._tasks: set[str] = set()

    def add(self, job: NewJob) -> None:
        if len(self._tasks) < 2:
            self._tasks.add(job.task)

    @property
    def only(self) -> str | None:
        """The task that all jobs share; ``None`` if there are several."""
        return next(iter(self._tasks)) if len(self._tasks) == 1 else None


def _carrier(span: EnqueueSpan) -> Carry:
    carried = span.carried()
    return lambda job: with_carried(job, carried)


def _traced_jobs(jobs: Iterable[NewJob], carry: Carry, tasks: _TaskSet) -> Iterator[NewJob]:
    for job in jobs:
        tasks.add(job)
        yield carry(job)


async def _traced_jobs_async(jobs: AsyncIterable[NewJob], carry: Carry, tasks: _TaskSet) -> AsyncIterator[NewJob]:
    async for job in jobs:
        tasks.add(job)
        yield carry(job)


async def _await_job(span: EnqueueSpan, adding: Awaitable[Job]) -> Job:
    with span.as_current():
        job = await adding
        span.record_job(job.id)
        return job


def _cron_attributes(tick: Tick) -> dict[str, Any]:
    return {
        "stowhand.cron.identifier": tick.identifier,
        "stowhand.cron.tick": tick.at.isoformat(),
        "stowhand.cron.backfilled": tick.backfilled,
    }


class TracedEngine(_Traced[Any]):
    """Engine of a flow, with traced creation of jobs."""

    def _task(self) -> str:
        task: str = self._inner.task(self._inner.shape.entry)
        return task

    async def create(self, job: Any) -> str:
        """Create a span ``enqueue <task>`` with the task of the first queue."""
        span = EnqueueSpan(self._tracer, self._task())
        with span.as_current():
            job_id: str = await self._inner.create(_with_span(span, job))
            span.record_job(job_id)
            return job_id

    async def create_many(self, jobs: Sequence[Any]) -> Sequence[str]:
        """Create one span for all jobs."""
        span = EnqueueSpan(self._tracer, self._task())
        with span.as_current():
            ids: Sequence[str] = await self._inner.create_many([_with_span(span, job) for job in jobs])
            span.record_jobs(len(ids))
            return ids


def _with_span(span: EnqueueSpan, job: Any) -> Any:
    """Return the job with the span's context. The job keeps its own correlation id."""
    return msgspec.structs.replace(job, carried=span.carried() | {CORRELATION_ID: job.correlation_id})
