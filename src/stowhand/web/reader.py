"""Reads of the dashboard: the only access of its pages to the store.

Values that a visitor may not see are removed here, so that no page and no template can forget it. ``None`` stands for
what a store cannot answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.events import DashboardStoreLost, DashboardStoreRecovered, Events
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job
from stowhand.protocols.operator import HeldJobs, Reason
from stowhand.protocols.queue_store import Failures, Inspector, QueueStore
from stowhand.protocols.search import Search, SearchResult
from stowhand.protocols.throughput import Period
from stowhand.web.request import Forbidden, Permission, Visitor

T = TypeVar("T")
FRESH_SECONDS = 1.0
"""Seconds for which one answer serves all viewers."""
REUSE_FACTOR, MAX_REUSE_SECONDS = 100, 10.0
"""An answer that took long serves for so many times as long, at most for these seconds."""
STORE_TIMEOUT_SECONDS, SCHEMA_CHECK_SECONDS = 10.0, 60.0
"""Seconds after which a store that has not answered counts as away, and after which its schema is checked again."""

_REQUIRED_PARTS = {Permission.ACT: "admin", Permission.ADD: "jobs"}
"""The part of the store without which a right is worth nothing."""


def _shared_query(query: Callable[[Inspector], Awaitable[T]]) -> Callable[[Reader], Awaitable[T | None]]:
    """Make a method that asks this question once a second for all viewers."""

    async def ask(self: Reader) -> T | None:
        return await self._query(query, query)

    return ask


class Reader:
    """Asks a store, which it opens at the first question, and after an error again. Used on one event loop.

    ``open_store``: returns the open store, which the caller closes. ``writer``: reader of the writable store, if this
    one is read-only. ``events``: receive the begin and the end of an outage.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[QueueStore]],
        clock: Clock | None = None,
        writer: Reader | None = None,
        events: Events | None = None,
    ) -> None:
        self._open_store, self._events = open_store, events or Events()
        self._writer = writer or self
        self._clock = clock or SystemClock()
        self._store: QueueStore | None = None
        self._opening, self._check_at = asyncio.Lock(), 0.0
        self._shared: dict[object, asyncio.Task[tuple[Any, float]]] = {}
        """Answers by question, each with the time until which it is fresh."""
        self.away_since: datetime | None = None
        """Begin of the present outage; ``None``: the store has answered."""

    @property
    def place(self) -> str:
        """Where the store is, for people; empty while it has not been opened."""
        return "" if self._store is None else self._store.description

    @property
    def schema_name(self) -> str | None:
        """Where PostgreSQL has ``add_job``; ``None``: the store is another one."""
        return self.place.rpartition(", schema ")[2] if ", schema " in self.place else None

    async def job(self, who: Visitor, job_id: int) -> Job | None:
        """Live, or in the history."""
        job = await self.ask(lambda store: store.jobs.get(job_id))
        return None if job is None else visible_job(who, job)

    async def tries(self, who: Visitor, job_id: int) -> Sequence[FailedAttempt]:
        """What its attempts left that did not complete."""
        tries = await self.ask(lambda store: store.jobs.tries(job_id))
        return tries if who.may(Permission.PAYLOADS) else [msgspec.structs.replace(one, error=None) for one in tries]

    async def search(self, who: Visitor, search_filter: Search) -> SearchResult | None:
        """Who may not see payloads cannot ask by what is in them."""
        if (search_filter.error or search_filter.key) and not who.may(Permission.PAYLOADS):
            raise Forbidden("error, key: filtering by them needs the right “payloads”, which you do not have")
        found = await self._query(lambda inspect: inspect.search(search_filter))
        if found is None:
            return None
        return msgspec.structs.replace(found, jobs=[visible_job(who, job) for job in found.jobs])

    async def explain(self, who: Visitor, job_id: int) -> Sequence[Reason]:
        """Why it does not run."""
        found = await self._query(lambda inspect: inspect.explain(job_id))
        if found is None:
            return ()
        error = "" if who.may(Permission.PAYLOADS) else (found.job.last_error or "").strip().partition("\n")[0][:100]
        return [
            msgspec.structs.replace(one, text=one.text.partition(f": {error}")[0]) if error else one
            for one in found.reasons
        ]

    amounts = _shared_query(lambda inspect: inspect.amounts())
    tasks = _shared_query(lambda inspect: inspect.tasks())
    app_versions = _shared_query(lambda inspect: inspect.app_versions())
    oldest_due = _shared_query(lambda inspect: inspect.oldest_due())
    workers = _shared_query(lambda inspect: inspect.workers())
    queues = _shared_query(lambda inspect: inspect.queues())
    serials = _shared_query(lambda inspect: inspect.serials())
    paused = _shared_query(lambda inspect: inspect.serials(paused=True))
    pauses = _shared_query(lambda inspect: inspect.pauses())
    _held = _shared_query(lambda inspect: inspect.held())
    _failures = _shared_query(lambda inspect: inspect.failures())

    async def held(self, who: Visitor) -> Sequence[HeldJobs] | None:
        """What each worker has under its leases."""
        found = await self._held()
        if found is None:
            return None
        return [msgspec.structs.replace(one, longest=[visible_job(who, job) for job in one.longest]) for one in found]

    async def failures(self, who: Visitor) -> Sequence[Failures] | None:
        found = await self._failures()
        if found is None or who.may(Permission.PAYLOADS):
            return found
        return [msgspec.structs.replace(one, error=None) for one in found]

    async def throughput(
        self, since: datetime, until: datetime, step: float = 60.0, *, by_task: bool = True
    ) -> Sequence[Period] | None:
        """Nothing is counted in a store that keeps no throughput."""
        return await self._query(
            lambda inspect: inspect.throughput(since, until, step=step, by_task=by_task), (since, until, step, by_task)
        )

    async def now(self) -> datetime:
        """The store's clock, to a second; of a store that has none to ask, this machine's."""

        async def now(store: QueueStore) -> datetime:
            try:
                return await store.timetable.now()
            except ConfigurationError:
                return wall_clock()

        return await self.shared("now", now)

    def offers(self, right: Permission) -> bool:
        """Can this right be used on the store? As far as is known: it may not have been opened yet."""
        return self._store is None or _REQUIRED_PARTS.get(right) not in self._store.capabilities.absent

    async def ask(self, query: Callable[[QueueStore], Awaitable[T]]) -> T:
        """Ask the store, for at most ``PATIENCE``. Raises StoreError, and ConfigurationError for a missing part."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                answer = await query(await self._opened())
        except (StoreUnreachable, TimeoutError) as error:
            message = str(error) or f"the store has not answered for {STORE_TIMEOUT_SECONDS:.0f} s"
            if self.away_since is None:
                self.away_since = wall_clock()
                self._events.emit(DashboardStoreLost(message))
            raise StoreUnreachable(message) from error
        if self.away_since is not None:
            self._events.emit(DashboardStoreRecovered((wall_clock() - self.away_since).total_seconds()))
            self.away_since = None
        return answer

    async def act(self, query: Callable[[QueueStore], Awaitable[T]]) -> T:
        """As ``ask``, for a change."""
        return await self._writer.ask(query)

    async def shared(self, key: object, query: Callable[[QueueStore], Awaitable[T]]) -> T:
        """As ``ask``, once a second for all viewers; of a slow answer once in a hundred times as long as it takes. A
        failed question is repeated at once.
        """

        async def timed(store: QueueStore) -> tuple[T, float]:
            started_at = self._clock.monotonic()
            answer = await query(store)
            seconds = self._clock.monotonic() - started_at
            return answer, started_at + min(max(FRESH_SECONDS, seconds * REUSE_FACTOR), MAX_REUSE_SECONDS)

        now = self._clock.monotonic()
        self._shared = {one: task for one, task in self._shared.items() if not task.done() or _fresh_until(task) > now}
        if key not in self._shared:
            task = asyncio.ensure_future(self.ask(timed))
            self._shared[key] = task
            task.add_done_callback(_fresh_until)
        answer: T = (await asyncio.shield(self._shared[key]))[0]
        return answer

    def forget(self) -> None:
        """Forget the shared answers: something was changed here."""
        self._shared = {}

    async def _query(self, query: Callable[[Inspector], Awaitable[T]], key: object = None) -> T | None:
        """``None``: a lent store, whose jobs are looked at one by one. With a ``key`` once a second for all viewers."""

        async def ask_inspector(store: QueueStore) -> T | None:
            try:
                inspect = store.inspect
            except ConfigurationError:
                return None
            return await query(inspect)

        return await (self.ask(ask_inspector) if key is None else self.shared(key, ask_inspector))

    async def _opened(self) -> QueueStore:
        async with self._opening:
            if self._store is None or self.away_since or self._clock.monotonic() >= self._check_at:
                self._store = self._store or await self._open_store()
                await self._store.open()  # checks its schema, which may be upgraded while pages are open
                self._check_at = self._clock.monotonic() + SCHEMA_CHECK_SECONDS
            return self._store


def _fresh_until(task: asyncio.Task[tuple[Any, float]]) -> float:
    """By the clock; of what went wrong 0. Reads the error: asyncio warns of one that nobody has read."""
    return 0.0 if task.cancelled() or task.exception() else task.result()[1]


def visible_job(who: Visitor, job: Job) -> Job:
    """The job as this visitor may see it."""
    if who.may(Permission.PAYLOADS):
        return job
    return msgspec.structs.replace(
        job, payload_text="", result_text=None, last_error=None, key=None, progress_text=None
    )
