"""Observer that makes events of ``WorkerEvents`` from the core's.

The names are those that programs written for graphile-worker know. Some have no event of the core (a run, its pool),
and ``job:…`` gives what a task raised, which no event carries; so they are made here, and not renamed from a table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from stowhand.errors import StoreError
from stowhand.events import (
    ClaimFinished,
    ClaimStarted,
    Event,
    Events,
    JobEnded,
    JobLost,
    JobsReturned,
    JobUnknown,
    Listening,
    StoreCallFailed,
    WorkerStopping,
)
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import Handler
from stowhand.protocols.queue_store import QueueStore
from stowhand.runner.events import PoolWorker, TaskFailed, TaskFunctions, WorkerEvents, WorkerPool


class RunObserver:
    """One run, reported to one emitter."""

    def __init__(self, emitter: WorkerEvents, core: Events, pool: WorkerPool, tasks: TaskFunctions) -> None:
        self._emitter = emitter
        self._core = core
        self._pool = pool
        self._tasks = tasks
        self._released = False
        self._jobs: dict[int, _Run] = {}

    # -- the run as a whole ----------------------------------------------------------------------

    def begin(self) -> None:
        """Report the pool and its workers, and start to listen."""
        listeners: dict[type[Event], Callable[[Any], None]] = {
            WorkerStopping: lambda event: self._release(),
            ClaimStarted: lambda event: self._emit_for_idle_worker("worker:getJob:start"),
            ClaimFinished: self._claimed,
            StoreCallFailed: self._claim_failed,
            JobEnded: self._ended,
            JobLost: self._forget,
            JobUnknown: self._forget,
            JobsReturned: self._returned,
        }
        for kind, listener in listeners.items():
            self._core.on(kind, listener)
        self._emitter.emit("pool:create", self._pool)
        for worker in self._pool.workers:
            self._emitter.emit("worker:create", worker, self._tasks)

    def shutdown(self, message: str) -> None:
        """Report that the run was asked to stop."""
        self._emitter.emit("pool:gracefulShutdown", self._pool, message)

    def terminated(self, signal: str) -> None:
        """Report that a signal stops the run."""
        self._emitter.emit("gracefulShutdown", signal)
        self.shutdown(f"worker shutdown due to {signal}")

    async def end(self, error: BaseException | None, *, was_requested: bool) -> None:
        """Report the end of the run. ``error`` broke the worker; ``was_requested``: while it was stopping."""
        self._release()
        emit = self._emitter.emit
        if error is not None and was_requested:
            emit("pool:gracefulShutdown:error", self._pool, error)
        for worker in self._pool.workers:
            if error is not None:
                emit("worker:fatalError", worker, error)
            emit("worker:stop", worker, error)
        emit("pool:release", self._pool)
        emit("stop")
        await self._emitter.settled()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            for worker in self._pool.workers:
                self._emitter.emit("worker:release", worker)

    # -- listening -------------------------------------------------------------------------------

    def listen(self, store: QueueStore) -> None:
        """Report the state of the store's listening connection."""

        def emit(state: str, error: BaseException | None, client: object) -> None:
            if self._core.wants(Listening):
                self._core.emit(Listening(self._pool.worker_id, state, None if error is None else str(error)))
            match state:
                case "connecting":
                    self._emitter.emit("pool:listen:connecting", self._pool)
                case "success":
                    self._emitter.emit("pool:listen:success", self._pool, client)
                case _ if error is not None:
                    self._emitter.emit("pool:listen:error", self._pool, error, client)

        store.notices.on_listening(emit)

    # -- claims ----------------------------------------------------------------------------------

    def _emit_for_idle_worker(self, name: str) -> None:
        self._emitter.emit(name, self._pool.idle_worker())

    def _claimed(self, event: ClaimFinished) -> None:
        if not event.jobs:
            self._emit_for_idle_worker("worker:getJob:empty")

    def _claim_failed(self, event: StoreCallFailed) -> None:
        if event.operation == "claim":
            error = StoreError(event.error)
            self._emitter.emit("worker:getJob:error", self._pool.idle_worker(), error)

    # -- jobs ------------------------------------------------------------------------------------

    def around(self, inner: Handler) -> Callable[[Attempt[Job], Job], Awaitable[object]]:
        """Middleware: keep the record of an attempt, and what it raises, until the store has recorded its end."""

        async def handle(attempt: Attempt[Job], job: Job) -> object:
            run = self._jobs[job.id] = _Run(self._pool.begin(job), job)
            self._emitter.emit("job:start", run.worker, job)
            try:
                return await inner.handle(attempt, job)
            except BaseException as error:
                run.error = error
                raise
            finally:
                self._pool.end(run.worker)

        return handle

    def _ended(self, event: JobEnded) -> None:
        run = self._jobs.pop(event.job_id, None)
        if run is None:
            return
        emit, worker, job = self._emitter.emit, run.worker, run.job
        error: BaseException | None = None
        if event.outcome is AttemptOutcome.OK:
            emit("job:success", worker, job)
        elif event.outcome is not AttemptOutcome.SNOOZED:
            error = run.error_or(event.error)
        if error is not None and event.outcome is not AttemptOutcome.CANCELED:
            emit("job:error", worker, job, error)
            if event.outcome in (AttemptOutcome.FAILED, AttemptOutcome.POISON):
                emit("job:failed", worker, job, error)
        emit("job:complete", worker, job, error)

    def _forget(self, event: JobLost | JobUnknown) -> None:
        self._jobs.pop(event.job_id, None)

    def _returned(self, event: JobsReturned) -> None:
        for job_id in event.job_ids:
            self._jobs.pop(job_id, None)


class _Run(msgspec.Struct):
    worker: PoolWorker
    job: Job
    error: BaseException | None = None

    def error_or(self, text: str | None) -> BaseException:
        """What the task raised; not a cancellation from outside, nor what it returned."""
        if isinstance(self.error, Exception):
            return self.error
        return TaskFailed((text or "failed").partition("\n")[0])
