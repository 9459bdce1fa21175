"""Observer that makes events of ``WorkerEvents`` from the core's.

The event names are those of graphile-worker. A table of names would not be enough: some events have no counterpart in
the core (a run, its pool), and ``job:…`` contains the error of a task, which no event of the core has.
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
    """Observer of one run. It emits the events of the run to one emitter."""

    def __init__(self, emitter: WorkerEvents, core: Events, pool: WorkerPool, tasks: TaskFunctions) -> None:
        self._emitter = emitter
        self._core = core
        self._pool = pool
        self._tasks = tasks
        self._is_released = False
        self._attempts: dict[int, _Attempt] = {}

    # -- the run as a whole ----------------------------------------------------------------------

    def start(self) -> None:
        """Report the pool and its workers, and listen to the events of the core."""
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
        """Report a request to stop the run."""
        self._emitter.emit("pool:gracefulShutdown", self._pool, message)

    def terminated(self, signal: str) -> None:
        """Report that a signal stops the run."""
        self._emitter.emit("gracefulShutdown", signal)
        self.shutdown(f"worker shutdown due to {signal}")

    async def end(self, error: BaseException | None, *, was_requested: bool) -> None:
        """Report the end of the run. ``error`` ended the worker; ``was_requested``: after a request to stop."""
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
        if not self._is_released:
            self._is_released = True
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
        """Return middleware that keeps each job and its error until the store has recorded the end of the attempt."""

        async def handle(attempt: Attempt[Job], job: Job) -> object:
            started = self._attempts[job.id] = _Attempt(self._pool.start_job(job), job)
            self._emitter.emit("job:start", started.worker, job)
            try:
                return await inner.handle(attempt, job)
            except BaseException as error:
                started.error = error
                raise
            finally:
                self._pool.end_job(started.worker)

        return handle

    def _ended(self, event: JobEnded) -> None:
        attempt = self._attempts.pop(event.job_id, None)
        if attempt is None:
            return
        emit, worker, job = self._emitter.emit, attempt.worker, attempt.job
        error: BaseException | None = None
        if event.outcome is AttemptOutcome.OK:
            emit("job:success", worker, job)
        elif event.outcome is not AttemptOutcome.SNOOZED:
            error = attempt.error_or(event.error)
        if error is not None and event.outcome is not AttemptOutcome.CANCELED:
            emit("job:error", worker, job, error)
            if event.outcome in (AttemptOutcome.FAILED, AttemptOutcome.POISON):
                emit("job:failed", worker, job, error)
        emit("job:complete", worker, job, error)

    def _forget(self, event: JobLost | JobUnknown) -> None:
        self._attempts.pop(event.job_id, None)

    def _returned(self, event: JobsReturned) -> None:
        for job_id in event.job_ids:
            self._attempts.pop(job_id, None)


class _Attempt(msgspec.Struct):
    worker: PoolWorker
    job: Job
    error: BaseException | None = None

    def error_or(self, text: str | None) -> BaseException:
        """Return the error that the task raised; a TaskFailed with the text if it raised none or was cancelled."""
        if isinstance(self.error, Exception):
            return self.error
        return TaskFailed((text or "failed").partition("\n")[0])
