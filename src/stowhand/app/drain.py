"""Runs the due jobs of an App in tests, with a worker that stops when none is due."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from stowhand.app.built_in import with_built_in
from stowhand.app.presets import preset_worker
from stowhand.clock import Clock
from stowhand.cron.agenda import ONE_MINUTE, Agenda, next_minute, this_minute
from stowhand.cron.item import ParsedItem
from stowhand.cron.scheduler import TickWriter
from stowhand.events import Events, JobEnded
from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import AttemptOutcome, Outcome, RaisableOutcome
from stowhand.jobs.outcomes import from_raised, from_returned
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import HOOK_NAMES, Function, Handler
from stowhand.protocols.store import Claim
from stowhand.tasks.middleware import MiddlewareChain
from stowhand.worker.host import is_inside_worker
from stowhand.worker.policy import Policy, outcome_of
from stowhand.worker.worker import Worker

if TYPE_CHECKING:
    from stowhand.app.app import App


MAX_JOBS_PER_DRAIN = 1000
"""Maximum number of jobs that may follow one job."""


class RecordedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a job whose outcome the store has recorded."""

    job: Job
    """As it was claimed."""
    ended: AttemptOutcome
    """The recorded outcome: ``ok``, ``retry``, ``failed``, …"""
    outcome: Outcome
    """The outcome that the task returned or raised, or that follows from its error."""
    error: BaseException | None
    """The error that the task raised; ``None`` for a raised outcome."""


class Recorder:
    """Keeps the outcome of each attempt until it is recorded. ``policy``: the handler's policy."""

    def __init__(self, policy: Callable[[Claim[Job]], Policy]) -> None:
        self._policy = policy
        self._unrecorded: dict[int, tuple[Job, Outcome, BaseException | None]] = {}
        self.ran: list[RecordedAttempt] = []
        """Recorded attempts, in the order in which they finished."""

    async def watch(self, attempt: Attempt[Job], returned: Awaitable[object]) -> Outcome:
        """Return the outcome of an attempt. Raises what the handler raises."""
        job = attempt.record
        try:
            outcome = from_returned(await returned)
        except RaisableOutcome as raised:
            outcome = from_raised(raised)
        except BaseException as error:
            self._unrecorded[job.id] = job, outcome_of(error, attempt.claim, self._policy), error
            raise
        self._unrecorded[job.id] = job, outcome, None
        return outcome

    def recorded(self, event: JobEnded) -> None:
        """Add the attempt, whose outcome the store has written."""
        if event.job_id in self._unrecorded:
            job, outcome, error = self._unrecorded.pop(event.job_id)
            if event.outcome in (AttemptOutcome.RETRY, AttemptOutcome.FAILED) and isinstance(error, CancelledError):
                error = TimeoutError((event.error or "").partition("\n")[0])
            self.ran.append(RecordedAttempt(job=job, ended=event.outcome, outcome=outcome, error=error))


class Drain:
    """Runs the due jobs of an App's tasks one after another, in any number of calls. Close it at the end.

    It applies middleware, timeouts and retries like a worker of the App. It opens a resource for the first job that
    uses it, and closes it at the end. Only the App's own options count: it reads no environment and no settings file.
    ``retries``: whether failed jobs are retried.
    """

    def __init__(self, app: App, clock: Clock | None = None, *, retries: bool = True) -> None:
        from stowhand.app.app import task_handler

        app.discover()
        self._app, self._clock, self._retries = app, clock, retries
        self._events = Events()
        self.tasks = with_built_in(app.registry.names, is_remote=False)
        keywords = {"tasks": self.tasks, "concurrency": 1, "once": True}
        self._options = preset_worker(app.own_store.options.get("preset", "default"), keywords)
        policy = Policy(timeout=self._options.timeout, backoff=self._options.backoff)
        self._inner = task_handler(app, policy)
        self._recorder = Recorder(self._inner.policy)
        self._events.on(JobEnded, self._recorder.recorded)

    async def run(self, limit: int) -> list[RecordedAttempt]:
        """Run the due jobs and the jobs that they enqueue, at most ``limit``."""
        ran = self._recorder.ran = []
        chain = MiddlewareChain(middleware=(self._watched, *self._app.registry.middleware.middleware))
        # A job of ``App.immediate`` runs when it is enqueued, whatever the limits of its task.
        hooks = {} if self._retries else {"policy": self._once, "declarations": NO_DECLARATIONS}
        handler = HandlerWithoutResources(chain.wrap(self._inner), **hooks)
        options = msgspec.structs.replace(self._options, max_jobs=limit)
        store = await self._app.open()
        await Worker(store, handler, options, events=self._events, clock=self._clock).run()
        return ran

    async def aclose(self) -> None:
        """Close the opened resources. Raises the error of one that cannot be closed."""
        self._inner.close()
        if self._inner.resources is not None:
            for _, error in await self._inner.resources.close(lambda: self._options.grace):
                raise error

    def _watched(self, handler: Handler) -> Function[Job]:
        async def handle(attempt: Attempt[Job], job: Job) -> object:
            return await self._recorder.watch(attempt, self._run(handler, attempt, job))

        return handle

    def _once(self, claim: Claim[Job]) -> Policy:
        return msgspec.structs.replace(self._inner.policy(claim), backoff=lambda attempt: MAX_DURATION_SECONDS)

    async def _run(self, handler: Handler, attempt: Attempt[Job], job: Job) -> object:
        if self._inner.resources is not None:
            await self._inner.resources.open((attempt.claim.task,), _ended)
        return await handler.handle(attempt, job)


class ImmediateRunner:
    """Runs the jobs of an App when they are enqueued."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def run(self, enqueued: int = 1) -> None:
        """Run the due jobs, and raise the error of a task. Within an attempt do nothing: its jobs run after it."""
        if is_inside_worker():
            return
        limit = MAX_JOBS_PER_DRAIN + enqueued - 1
        async with aclosing(Drain(self._app, retries=False)) as drain:
            ran = await drain.run(limit)
        for attempt in ran:
            if attempt.error is not None and attempt.ended not in (AttemptOutcome.OK, AttemptOutcome.CANCELED):
                raise attempt.error
        if len(ran) >= limit:
            raise RuntimeError(
                f"{MAX_JOBS_PER_DRAIN} jobs followed one enqueued job; {ran[-1].job.task!r} may enqueue itself forever"
            )

    async def ran(self, enqueued: Sequence[Job]) -> list[Job]:
        """Run the jobs just enqueued; return them as they are afterwards."""
        await self.run(len(enqueued))
        jobs = (await self._app.open()).jobs
        return [await jobs.get(job.id) or job for job in enqueued]


class HandlerWithoutResources:
    """A handler without the hook by which a worker opens all resources. ``hooks`` replace other hooks."""

    def __init__(self, handler: Handler, **hooks: object) -> None:
        self.handle = handler.handle
        for hook in HOOK_NAMES:
            if hook != "resources" and (value := hooks.get(hook) or getattr(handler, hook, None)) is not None:
                setattr(self, hook, value)


def _ended(error: BaseException) -> None:
    """Ignore the error of a resource that ends by itself, because the task that uses it raises."""


class RecurringItems:
    """Enqueues the App's recurring items at times that the caller chooses."""

    def __init__(self, app: App, clock: Clock) -> None:
        self._app, self._clock = app, clock
        self._agenda = Agenda((), _raise)

    def follow(self, now: datetime) -> None:
        """Update the items from the App. A new item starts with the next minute."""
        self._app.discover()
        self._agenda.replace(self._app.cron_items)
        self._agenda.start(next_minute(now))

    def next(self, until: datetime) -> datetime | None:
        """Return when the next item is due; ``None`` if none is due by ``until``."""
        return next((at for at, _ in self._agenda.due(until)), None)

    async def enqueue(self, now: datetime) -> None:
        """Enqueue the items that are due now."""
        if self._agenda.items:
            store = await self._app.open()
            await store.timetable.register([(item.identifier, item.spec) for item in self._agenda.items])
            writer = TickWriter(store, Events(), self._clock, self._app.registry.apply_on_enqueue)
            await writer.enter(self._agenda.due(now), now)
            self._agenda.done_until(this_minute(now) + ONE_MINUTE)


def _raise(item: ParsedItem, error: Exception) -> None:
    """Raise the error of a recurring item's own function."""
    error.add_note(f"raised by the recurring item {item.identifier!r}")
    raise error
