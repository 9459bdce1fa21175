"""A store whose enqueues are spans: what is enqueued through it carries the context of its span along."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, use_span

from stowhand.carried import CORRELATION, TRACE_PARENT, load
from stowhand.correlation import current
from stowhand.job import Job, NewJob
from stowhand.observe.attempt_span import message_attributes, name_of, trace_parent
from stowhand.observe.safe_text import scrub, shorten
from stowhand.queue_store import Entered, Tick
from stowhand.text import clean

Carry = Callable[[NewJob], NewJob]
WIDTH = 500
"""Characters of an error."""


class TracedStore:
    """Everything but enqueueing is the store's own."""

    def __init__(self, store: Any, tracer: Tracer) -> None:
        self._store, self._tracer = store, tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, job: NewJob) -> Job:
        """``enqueue <task>``"""
        span = self._begin(job)
        with _within(span):
            made: Job = await self._store.enqueue(_loader(span)(job))
            _made(span, made)
            return made

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """One span for all of them; which task, it says if there is but one."""
        span, tasks = self._begin_many(), _Tasks()
        carry = _loader(span)
        with _within(span):
            if isinstance(jobs, AsyncIterable):
                ids: list[int] = await self._store.enqueue_many(_each_async(jobs, carry, tasks))
            else:
                ids = await self._store.enqueue_many(_each(jobs, carry, tasks))
            tasks.tell(span, len(ids))
            return ids

    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """As ``enqueue_many``."""
        span, tasks = self._begin_many(), _Tasks()
        with _within(span):
            made: Sequence[Job] = await self._store.add_jobs(list(_each(jobs, _loader(span), tasks)))
            tasks.tell(span, len(made))
            return made

    def enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        """``enqueue <task>``: it has ended before the caller commits, or rolls back."""
        span = self._begin(job)
        with _within(span, ends=False):
            made = self._store.enqueue_in(connection, _loader(span)(job))
        if inspect.isawaitable(made):
            return _awaited(span, made)
        _made(span, made)
        span.end()
        return made  # type: ignore[no-any-return]

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[Entered]:
        """A span for each tick, a trace of its own. Another scheduler's job is another's span: ours is never ended."""
        spans = [self._begin(tick.job, Context(), _cron(tick)) for tick in ticks]
        loaded = [
            msgspec.structs.replace(tick, job=_loader(span, correlation_id=None)(tick.job))
            for tick, span in zip(ticks, spans, strict=True)
        ]
        entered: Sequence[Entered] = await self._store.schedule(loaded)
        for span, one in zip(spans, entered, strict=True):
            if one.mine:
                span.set_attribute("messaging.message.id", str(one.job_id))
                span.end()
        return entered

    def _begin(self, job: NewJob, context: Context | None = None, more: dict[str, Any] | None = None) -> Span:
        attributes = message_attributes("enqueue", "send", job.task, job.queue) | (more or {})
        return self._tracer.start_span(f"enqueue {job.task}", context, SpanKind.PRODUCER, attributes)

    def _begin_many(self) -> Span:
        attributes = message_attributes("enqueue", "send", None, None)
        return self._tracer.start_span("enqueue", None, SpanKind.PRODUCER, attributes)


class _Tasks:
    """Of what tasks the jobs of a span are: one, or several."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def add(self, job: NewJob) -> None:
        if len(self._found) < 2:
            self._found.add(job.task)

    def tell(self, span: Span, jobs: int) -> None:
        span.set_attribute("messaging.batch.message_count", jobs)
        if len(self._found) == 1:
            (task,) = self._found
            span.update_name(f"enqueue {task}")
            span.set_attribute("stowhand.task", task)


def _loader(span: Span, **instead: str | None) -> Carry:
    carried = {TRACE_PARENT: trace_parent(span), CORRELATION: current(), **instead}
    return lambda job: load(job, carried)


def _each(jobs: Iterable[NewJob], carry: Carry, tasks: _Tasks) -> Iterator[NewJob]:
    for job in jobs:
        tasks.add(job)
        yield carry(job)


async def _each_async(jobs: AsyncIterable[NewJob], carry: Carry, tasks: _Tasks) -> AsyncIterator[NewJob]:
    async for job in jobs:
        tasks.add(job)
        yield carry(job)


async def _awaited(span: Span, made: Awaitable[Job]) -> Job:
    with _within(span):
        job = await made
        _made(span, job)
        return job


def _made(span: Span, job: Job) -> None:
    span.set_attribute("messaging.message.id", str(job.id))


def _cron(tick: Tick) -> dict[str, Any]:
    return {
        "stowhand.cron.identifier": tick.identifier,
        "stowhand.cron.tick": tick.at.isoformat(),
        "stowhand.cron.backfilled": tick.backfilled,
    }


@contextmanager
def _within(span: Span, *, ends: bool = True) -> Iterator[None]:
    """The span is current in the block, and says what the block raises; it ends with an error, or with the block."""
    try:
        with use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:  # boundary: however the block is left, its span ends
        if isinstance(error, Exception):
            name, words = name_of(error), shorten(scrub(clean(str(error))), WIDTH)
            span.add_event("exception", {"exception.type": name, "exception.message": words})
            span.set_attribute("error.type", name)
            span.set_status(Status(StatusCode.ERROR, words))
        span.end()
        raise
    if ends:
        span.end()
