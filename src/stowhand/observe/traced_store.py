"""A store whose enqueues are spans: what is enqueued through it carries the context of its span along."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer, use_span

from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.text import clean
from stowhand.observe.safe_text import scrub, shorten
from stowhand.observe.spans import guarded, message_attributes, name_of, trace_parent
from stowhand.protocols.correlation import current
from stowhand.protocols.propagation import CORRELATION, TRACE_PARENT, load
from stowhand.protocols.queue_store import Entered, QueueStore, Tick

Carry = Callable[[NewJob], NewJob]


def traced_store(store: QueueStore, tracer: Tracer) -> QueueStore:
    """The same store, traced; one that is traced already stays as it is."""
    return store if isinstance(store, TracedStore) else cast("QueueStore", TracedStore(store, tracer))


class Traced:
    """What is not traced is the inner object's own."""

    def __init__(self, inner: Any, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _one(self, enqueue: Callable[[NewJob], Awaitable[Job]], job: NewJob) -> Job:
        span = _begin(self._tracer, job)
        with span.current():
            made = await enqueue(_loader(span)(job))
            span.made(made.id)
            return made


class TracedStore(Traced):
    """Each of its parts that enqueue is traced."""

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


class TracedProducer(Traced):
    """Each call is a span."""

    async def enqueue(self, job: NewJob) -> Job:
        """``enqueue <task>``"""
        return await self._one(self._inner.enqueue, job)

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """One span for all of them; which task, it says if there is but one."""
        span, tasks = EnqueueSpan(self._tracer), _Tasks()
        carry = _loader(span)
        with span.current():
            if isinstance(jobs, AsyncIterable):
                ids: list[int] = await self._inner.enqueue_many(_each_async(jobs, carry, tasks))
            else:
                ids = await self._inner.enqueue_many(_each(jobs, carry, tasks))
            span.made_many(len(ids), tasks.only)
            return ids

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """As ``enqueue_many``."""
        span, tasks = EnqueueSpan(self._tracer), _Tasks()
        with span.current():
            made: Sequence[Job] = await self._inner.add_jobs(list(_each(jobs, _loader(span), tasks)))
            span.made_many(len(made), tasks.only)
            return made


class TracedTransactions(Traced):
    """Each call is a span."""

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """``enqueue <task>``: it has ended before the caller commits, or rolls back."""
        span = _begin(self._tracer, job)
        with span.current(ends=False):
            made: Job | Awaitable[Job] = self._inner.enqueue_in(connection, _loader(span)(job))
        if inspect.isawaitable(made):
            return _awaited(span, made)
        span.made(made.id)
        span.end()
        return made


class TracedAdministrator(Traced):
    """One of its calls enqueues."""

    async def add_built_in(self, job: NewJob) -> Job:
        """``enqueue <task>``"""
        return await self._one(self._inner.add_built_in, job)


class TracedTimetable(Traced):
    """Each tick is a span."""

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """A span for each tick, a trace of its own. Another scheduler's job is another's span: ours is never ended."""
        spans = [_begin(self._tracer, tick.job, Context(), _cron(tick)) for tick in ticks]
        loaded = [
            msgspec.structs.replace(tick, job=load(tick.job, span.carried() | {CORRELATION: None}))
            for tick, span in zip(ticks, spans, strict=True)
        ]
        entered: Sequence[Entered] = await self._inner.schedule(loaded)
        for span, one in zip(spans, entered, strict=True):
            if one.mine:
                span.made(one.job_id)
                span.end()
        return entered


def _begin(
    tracer: Tracer, job: NewJob, context: Context | None = None, more: dict[str, Any] | None = None
) -> EnqueueSpan:
    return EnqueueSpan(tracer, job.task, job.queue, context, more)


class _Tasks:
    """Of what tasks the jobs of a span are: one, or several."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def add(self, job: NewJob) -> None:
        if len(self._found) < 2:
            self._found.add(job.task)

    @property
    def only(self) -> str | None:
        """The one, unless there are several."""
        return next(iter(self._found)) if len(self._found) == 1 else None


def _loader(span: EnqueueSpan) -> Carry:
    carried = span.carried()
    return lambda job: load(job, carried)


def _each(jobs: Iterable[NewJob], carry: Carry, tasks: _Tasks) -> Iterator[NewJob]:
    for job in jobs:
        tasks.add(job)
        yield carry(job)


async def _each_async(jobs: AsyncIterable[NewJob], carry: Carry, tasks: _Tasks) -> AsyncIterator[NewJob]:
    async for job in jobs:
        tasks.add(job)
        yield carry(job)


async def _awaited(span: EnqueueSpan, made: Awaitable[Job]) -> Job:
    with span.current():
        job = await made
        span.made(job.id)
        return job


def _cron(tick: Tick) -> dict[str, Any]:
    return {
        "stowhand.cron.identifier": tick.identifier,
        "stowhand.cron.tick": tick.at.isoformat(),
        "stowhand.cron.backfilled": tick.backfilled,
    }


class TracedEngine(Traced):
    """Everything but creating is the engine's own. From here on its jobs carry a context from step to step."""

    def __init__(self, engine: Any, tracer: Tracer) -> None:
        super().__init__(engine, tracer)
        self._task = engine.task(engine.shape.entry)
        engine.carries = True

    async def create(self, job: Any) -> str:
        """``enqueue <task>``: the task is that of the first queue."""
        span = EnqueueSpan(self._tracer, self._task)
        with span.current():
            job_id: str = await self._inner.create(_loaded(span, job))
            span.made(job_id)
            return job_id

    async def create_many(self, jobs: Sequence[Any]) -> Sequence[str]:
        """One span for all of them."""
        span = EnqueueSpan(self._tracer, self._task)
        with span.current():
            ids: Sequence[str] = await self._inner.create_many([_loaded(span, job) for job in jobs])
            span.made_many(len(ids))
            return ids


def _loaded(span: EnqueueSpan, job: Any) -> Any:
    """Its correlation id is its own: it need not be the one that is bound here."""
    return msgspec.structs.replace(job, carried=span.carried() | {CORRELATION: job.correlation_id})


WIDTH = 500
"""Characters of an error."""


class EnqueueSpan:
    """``enqueue <task>``. ``task``: ``None`` if it is set later; ``more``: further attributes."""

    def __init__(
        self,
        tracer: Tracer,
        task: str | None = None,
        queue: str | None = None,
        context: Context | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        self._span: Span = INVALID_SPAN
        attributes = message_attributes("enqueue", "send", task, queue) | (more or {})
        with guarded():
            name = "enqueue" if task is None else f"enqueue {task}"
            self._span = tracer.start_span(name, context, SpanKind.PRODUCER, attributes)

    def carried(self) -> dict[str, str | None]:
        """What its jobs carry (propagation.py)."""
        return {TRACE_PARENT: trace_parent(self._span), CORRELATION: current()}

    def made(self, job_id: object) -> None:
        """Note the job that was made."""
        with guarded():
            self._span.set_attribute("messaging.message.id", str(job_id))

    def made_many(self, jobs: int, task: str | None = None) -> None:
        """Note how many jobs were made; ``task``: the task of all of them, if it is one."""
        with guarded():
            self._span.set_attribute("messaging.batch.message_count", jobs)
            if task is not None:
                self._span.update_name(f"enqueue {task}")
                self._span.set_attribute("stowhand.task", task)

    def end(self) -> None:
        """End the span without an error."""
        with guarded():
            self._span.end()

    @contextmanager
    def current(self, *, ends: bool = True) -> Iterator[None]:
        """Current in the block, it says what the block raises; it ends with an error, or with the block."""
        try:
            with use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:  # boundary: however the block is left, its span ends
            with guarded():
                self._failed(error)
            self.end()
            raise
        if ends:
            self.end()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            name, words = name_of(error), shorten(scrub(clean(str(error))), WIDTH)
            self._span.add_event("exception", {"exception.type": name, "exception.message": words})
            self._span.set_attribute("error.type", name)
            self._span.set_status(Status(StatusCode.ERROR, words))
