"""Reader of the store for all pages of the dashboard.

It removes values that a visitor may not see, so that no page or template can show them by mistake. ``None`` means that
the store does not support a query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import ConfigurationError, LeaseLost, StoreUnreachable
from stowhand.events import DashboardStoreLost, DashboardStoreRecovered, Events
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, State
from stowhand.protocols.operator import HeldJobs, Reason
from stowhand.protocols.queue_store import Failures, Inspector, JobFilter, QueueStore
from stowhand.protocols.search import Search, SearchResult
from stowhand.protocols.throughput import Period
from stowhand.protocols.workflows import RecordedStep
from stowhand.web.request import Forbidden, Right, Visitor

T = TypeVar("T")
FRESH_SECONDS = 1.0
"""Time for which viewers share one answer."""
REUSE_FACTOR = 100
"""A slow answer is reused for its duration times this factor, up to a maximum."""
MAX_REUSE_SECONDS = 10.0
STORE_TIMEOUT_SECONDS = 10.0
"""Time after which a silent store counts as unreachable."""
SCHEMA_CHECK_SECONDS = 60.0
"""Time between two checks of the schema."""
MAX_CHILDREN = 50
"""Maximum number of children on the page of a job."""

_REQUIRED_PARTS = {Right.ACT: "admin", Right.ADD: "jobs"}
"""The part of the store that a right needs."""


def _shared_query(query: Callable[[Inspector], Awaitable[T]]) -> Callable[[Reader], Awaitable[T | None]]:
    """Return a method that runs this query at most once a second for all viewers."""

    async def query_once(self: Reader) -> T | None:
        return await self._inspect(query, query)

    return query_once


class Reader:
    """Reader of a store on one event loop. The first query opens the store; the first one after an error reopens it.

    ``open_store`` returns the open store, which the caller closes. ``writer``: reader of the writable store, if this
    one is read-only. ``events`` receives the start and the end of an outage.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[QueueStore]],
        clock: Clock | None = None,
        writer: Reader | None = None,
        events: Events | None = None,
    ) -> None:
        self._open_store = open_store
        self._events = events or Events()
        self._writer = writer or self
        self._clock = clock or SystemClock()
        self._store: QueueStore | None = None
        self._opening = asyncio.Lock()
        self._check_at = 0.0
        self._answers: dict[object, asyncio.Task[tuple[Any, float]]] = {}
        """Answers by query, each with the time until which it is fresh."""
        self.outage_since: datetime | None = None
        """Start of the current outage; ``None`` if there is none."""

    @property
    def location(self) -> str:
        """Location of the store, for display; empty until the store is open."""
        return "" if self._store is None else self._store.description

    @property
    def schema_name(self) -> str | None:
        """PostgreSQL schema with ``add_job``; ``None`` for other stores."""
        return self.location.rpartition(", schema ")[2] if ", schema " in self.location else None

    async def job(self, visitor: Visitor, job_id: int) -> Job | None:
        """Return a job from the queue or the history."""
        job = await self.query(lambda store: store.jobs.get(job_id))
        return None if job is None else visible_job(visitor, job)

    async def tries(self, visitor: Visitor, job_id: int) -> Sequence[FailedAttempt]:
        """Return the failed attempts of a job."""
        attempts = await self.query(lambda store: store.jobs.tries(job_id))
        if visitor.may(Right.PAYLOADS):
            return attempts
        return [msgspec.structs.replace(attempt, error=None) for attempt in attempts]

    async def steps(self, visitor: Visitor, job_id: int) -> Sequence[RecordedStep]:
        """Return the recorded steps of a job; none if the store keeps or shows no steps."""

        async def read_steps(store: QueueStore) -> Sequence[RecordedStep]:
            try:
                return () if store.workflows is None else await store.workflows.read(job_id)
            except (ConfigurationError, LeaseLost):  # A remote store shows steps only to the worker of the job.
                return ()

        steps = await self.query(read_steps)
        if visitor.may(Right.PAYLOADS):
            return steps
        return [msgspec.structs.replace(step, value=None, error=None) for step in steps]

    async def children(self, visitor: Visitor, job_id: int) -> Sequence[Job]:
        """Return the newest children of a workflow: one more than MAX_CHILDREN if there are more."""
        children = JobFilter(parent_id=job_id, states=tuple(State), newest_first=True, limit=MAX_CHILDREN + 1)
        jobs = await self._inspect(lambda inspect: inspect.list(children))
        return [visible_job(visitor, job) for job in jobs or ()]

    async def search(self, visitor: Visitor, search_filter: Search) -> SearchResult | None:
        """Search jobs. Filters by payload contents need the right to see payloads."""
        if (search_filter.error or search_filter.key) and not visitor.may(Right.PAYLOADS):
            raise Forbidden("error, key: filtering by them needs the right “payloads”, which you do not have")
        result = await self._inspect(lambda inspect: inspect.search(search_filter))
        if result is None:
            return None
        return msgspec.structs.replace(result, jobs=[visible_job(visitor, job) for job in result.jobs])

    async def explain(self, visitor: Visitor, job_id: int) -> Sequence[Reason]:
        """Return the reasons why a job does not run."""
        explanation = await self._inspect(lambda inspect: inspect.explain(job_id))
        if explanation is None:
            return ()
        hidden_error = (explanation.job.last_error or "").strip().partition("\n")[0][:100]
        if visitor.may(Right.PAYLOADS) or not hidden_error:
            return explanation.reasons
        return [
            msgspec.structs.replace(reason, text=reason.text.partition(f": {hidden_error}")[0])
            for reason in explanation.reasons
        ]

    amounts = _shared_query(lambda inspect: inspect.amounts())
    tasks = _shared_query(lambda inspect: inspect.tasks())
    app_versions = _shared_query(lambda inspect: inspect.app_versions())
    oldest_due = _shared_query(lambda inspect: inspect.oldest_due())
    workers = _shared_query(lambda inspect: inspect.workers())
    queues = _shared_query(lambda inspect: inspect.queues())
    serials = _shared_query(lambda inspect: inspect.serials())
    limits = _shared_query(lambda inspect: inspect.limits())
    paused = _shared_query(lambda inspect: inspect.serials(paused=True))
    pauses = _shared_query(lambda inspect: inspect.pauses())
    _held = _shared_query(lambda inspect: inspect.held())
    _failures = _shared_query(lambda inspect: inspect.failures())

    async def held(self, visitor: Visitor) -> Sequence[HeldJobs] | None:
        """Return the jobs that each worker holds."""
        rows = await self._held()
        if rows is None:
            return None
        return [
            msgspec.structs.replace(row, longest=[visible_job(visitor, job) for job in row.longest]) for row in rows
        ]

    async def failures(self, visitor: Visitor) -> Sequence[Failures] | None:
        rows = await self._failures()
        if rows is None or visitor.may(Right.PAYLOADS):
            return rows
        return [msgspec.structs.replace(row, error=None) for row in rows]

    async def throughput(
        self, since: datetime, until: datetime, step: float = 60.0, *, by_task: bool = True
    ) -> Sequence[Period] | None:
        """Return the throughput by period; no periods if the store keeps no throughput."""
        return await self._inspect(
            lambda inspect: inspect.throughput(since, until, step=step, by_task=by_task), (since, until, step, by_task)
        )

    async def now(self) -> datetime:
        """Return the store's time, at most a second old; this machine's time if the store has no clock."""

        async def now(store: QueueStore) -> datetime:
            try:
                return await store.timetable.now()
            except ConfigurationError:
                return wall_clock()

        return await self.query_shared("now", now)

    def supports(self, right: Right) -> bool:
        """Return whether the store supports this right. Before the store is open, return True."""
        return self._store is None or _REQUIRED_PARTS.get(right) not in self._store.capabilities.absent

    async def query(self, query: Callable[[QueueStore], Awaitable[T]]) -> T:
        """Query the store within STORE_TIMEOUT_SECONDS.

        Raises StoreError, and ConfigurationError if the store does not support the query.
        """
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                answer = await query(await self._opened())
        except (StoreUnreachable, TimeoutError) as error:
            message = str(error) or f"the store has not answered for {STORE_TIMEOUT_SECONDS:.0f} s"
            if self.outage_since is None:
                self.outage_since = wall_clock()
                self._events.emit(DashboardStoreLost(message))
            raise StoreUnreachable(message) from error
        if self.outage_since is not None:
            self._events.emit(DashboardStoreRecovered((wall_clock() - self.outage_since).total_seconds()))
            self.outage_since = None
        return answer

    async def change(self, query: Callable[[QueueStore], Awaitable[T]]) -> T:
        """Change the store, like ``query``."""
        return await self._writer.query(query)

    async def query_shared(self, key: object, query: Callable[[QueueStore], Awaitable[T]]) -> T:
        """Query the store like ``query``, at most once a second for all viewers.

        Viewers with equal keys share an answer. A slow query is repeated only after a hundred times its duration, a
        failed query at once.
        """

        async def timed(store: QueueStore) -> tuple[T, float]:
            started_at = self._clock.monotonic()
            answer = await query(store)
            seconds = self._clock.monotonic() - started_at
            return answer, started_at + min(max(FRESH_SECONDS, seconds * REUSE_FACTOR), MAX_REUSE_SECONDS)

        now = self._clock.monotonic()
        self._answers = {
            other: task for other, task in self._answers.items() if not task.done() or _fresh_until(task) > now
        }
        if key not in self._answers:
            task = asyncio.ensure_future(self.query(timed))
            self._answers[key] = task
            task.add_done_callback(_fresh_until)
        answer: T = (await asyncio.shield(self._answers[key]))[0]
        return answer

    def forget_answers(self) -> None:
        """Forget the shared answers after a change."""
        self._answers = {}

    async def _inspect(self, query: Callable[[Inspector], Awaitable[T]], key: object = None) -> T | None:
        """Query the inspector; ``None`` for a remote store, which has none. With a ``key``, viewers share answers."""

        async def query_inspector(store: QueueStore) -> T | None:
            try:
                inspect = store.inspect
            except ConfigurationError:
                return None
            return await query(inspect)

        return await (self.query(query_inspector) if key is None else self.query_shared(key, query_inspector))

    async def _opened(self) -> QueueStore:
        async with self._opening:
            if self._store is None or self.outage_since or self._clock.monotonic() >= self._check_at:
                self._store = self._store or await self._open_store()
                await self._store.open()  # Checks the schema, which may be upgraded while pages are open.
                self._check_at = self._clock.monotonic() + SCHEMA_CHECK_SECONDS
            return self._store


def _fresh_until(task: asyncio.Task[tuple[Any, float]]) -> float:
    """Return when the answer expires; 0 after an error. Reading the error prevents a warning of asyncio."""
    return 0.0 if task.cancelled() or task.exception() else task.result()[1]


def visible_job(visitor: Visitor, job: Job) -> Job:
    """Return the job with the fields that this visitor may see."""
    if visitor.may(Right.PAYLOADS):
        return job
    return msgspec.structs.replace(
        job, payload_text="", result_text=None, last_error=None, key=None, progress_text=None
    )
