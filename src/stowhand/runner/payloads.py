"""What the listeners of each event are given: frozen records, with the names of the original's keys in snake_case.

A worker is shown as a pool, and in it as many workers as it runs jobs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stowhand.errors import StowhandError
from stowhand.jobs.job import Job

Tasks = Mapping[str, Callable[..., Any]]


class TaskFailed(StowhandError):
    """A job's error where its task raised none: it took too long, or returned ``Retry`` or ``Fail``."""


class PoolWorker:
    """One slot of a pool, which runs one job at a time. It has no thread or connection of its own."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.active_job: Job | None = None
        """What it runs just now."""

    def __repr__(self) -> str:
        return f"<worker {self.worker_id}>"


class WorkerPool:
    """The workers of one run."""

    def __init__(self, worker_id: str, concurrency: int, stop: Callable[[str], None]) -> None:
        self.worker_id = worker_id
        """Name of the worker that holds the jobs, as the store has it (``job.worker``)."""
        self.workers = tuple(PoolWorker(f"{worker_id}.{number}") for number in range(1, concurrency + 1))
        self._free = list(reversed(self.workers))
        self._stop = stop

    def graceful_shutdown(self, message: str = "asked to stop") -> None:
        """Take nothing new, and let running jobs end within their grace. On the runner's loop."""
        self._stop(message)

    def release(self) -> None:
        """The same."""
        self._stop("released")

    def idle_worker(self) -> PoolWorker:
        """The one that would take the next job."""
        return self._free[-1] if self._free else self.workers[0]

    def begin(self, job: Job) -> PoolWorker:
        """A worker begins with a job."""
        worker = self._free.pop() if self._free else PoolWorker(f"{self.worker_id}.0")
        worker.active_job = job
        return worker

    def end(self, worker: PoolWorker) -> None:
        """Note that the worker is free again."""
        worker.active_job = None
        if worker in self.workers:
            self._free.append(worker)


class PoolEvent(msgspec.Struct, frozen=True):
    """An event of the pool as a whole."""

    worker_pool: WorkerPool

    @property
    def pool(self) -> WorkerPool:
        """The same."""
        return self.worker_pool


class PoolListens(msgspec.Struct, frozen=True):
    """The pool hears wake-ups now. ``client``: the connection that listens."""

    worker_pool: WorkerPool
    client: object


class PoolListenError(msgspec.Struct, frozen=True):
    """The pool hears no wake-ups; it polls, and tries again."""

    worker_pool: WorkerPool
    error: BaseException
    client: object


class PoolShutdown(msgspec.Struct, frozen=True):
    """The pool takes nothing new. ``message``: why."""

    pool: WorkerPool
    message: str


class PoolShutdownError(msgspec.Struct, frozen=True):
    """The pool did not end in order."""

    pool: WorkerPool
    error: BaseException


class WorkerCreated(msgspec.Struct, frozen=True):
    """A worker is there. ``tasks``: what it can run, functions by name."""

    worker: PoolWorker
    tasks: Tasks


class WorkerEvent(msgspec.Struct, frozen=True):
    """An event of one worker."""

    worker: PoolWorker


class WorkerStop(msgspec.Struct, frozen=True):
    """A worker has ended. ``error``: what broke it, if anything did."""

    worker: PoolWorker
    error: BaseException | None = None


class WorkerError(msgspec.Struct, frozen=True):
    """A call to the store failed; it is tried again."""

    worker: PoolWorker
    error: BaseException


class WorkerFatal(msgspec.Struct, frozen=True):
    """A worker broke. ``job_error`` is always ``None``: what a job raises breaks no worker."""

    worker: PoolWorker
    error: BaseException
    job_error: BaseException | None = None


class JobEvent(msgspec.Struct, frozen=True):
    """An event of one job, as it was claimed."""

    worker: PoolWorker
    job: Job


class JobErred(msgspec.Struct, frozen=True):
    """An event of one job, and what its task raised (else a TaskFailed)."""

    worker: PoolWorker
    job: Job
    error: BaseException


class JobDone(msgspec.Struct, frozen=True):
    """The store has recorded the end of a job, whatever it was."""

    worker: PoolWorker
    job: Job
    error: BaseException | None


class Terminated(msgspec.Struct, frozen=True):
    """A signal ends the runner. ``signal``: its name, "SIGTERM"."""

    signal: str


class Stopped(msgspec.Struct, frozen=True):
    """The runner has stopped."""


PAYLOADS: dict[str, type[msgspec.Struct]] = {
    "pool:create": PoolEvent,
    "pool:listen:connecting": PoolEvent,
    "pool:listen:success": PoolListens,
    "pool:listen:error": PoolListenError,
    "pool:release": PoolEvent,
    "pool:gracefulShutdown": PoolShutdown,
    "pool:gracefulShutdown:error": PoolShutdownError,
    "worker:create": WorkerCreated,
    "worker:release": WorkerEvent,
    "worker:stop": WorkerStop,
    "worker:getJob:start": WorkerEvent,
    "worker:getJob:error": WorkerError,
    "worker:getJob:empty": WorkerEvent,
    "worker:fatalError": WorkerFatal,
    "job:start": JobEvent,
    "job:success": JobEvent,
    "job:error": JobErred,
    "job:failed": JobErred,
    "job:complete": JobDone,
    "gracefulShutdown": Terminated,
    "stop": Stopped,
}
"""Every name, and what its listeners are given."""
