"""``WorkerEvents``: an emitter with a closed list of names, and the record that the listeners of each are given.

The fields are the original's keys in snake_case. A worker is shown as a pool, and in it as many workers as it runs
jobs at once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, cast, overload

import msgspec

from stowhand.errors import ConfigurationError, StowhandError, suggest
from stowhand.jobs.job import Job
from stowhand.observe.job_logger import core_logger

Listener = Callable[[Any], object]
TaskFunctions = Mapping[str, Callable[..., Any]]


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
    tasks: TaskFunctions


class WorkerEvent(msgspec.Struct, frozen=True):
    """An event of one worker."""

    worker: PoolWorker


class WorkerError(msgspec.Struct, frozen=True):
    """A call to the store failed, which is tried again; or a worker has ended, by an error or ``None``."""

    worker: PoolWorker
    error: BaseException | None


class WorkerFatal(msgspec.Struct, frozen=True):
    """A worker broke. ``job_error`` is always ``None``: what a job raises breaks no worker."""

    worker: PoolWorker
    error: BaseException
    job_error: BaseException | None = None


class JobEvent(msgspec.Struct, frozen=True):
    """An event of one job, as it was claimed."""

    worker: PoolWorker
    job: Job


class JobEnded(msgspec.Struct, frozen=True):
    """The store has recorded the end of a job, and what its task raised (else a TaskFailed), if it failed."""

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
    "worker:stop": WorkerError,
    "worker:getJob:start": WorkerEvent,
    "worker:getJob:error": WorkerError,
    "worker:getJob:empty": WorkerEvent,
    "worker:fatalError": WorkerFatal,
    "job:start": JobEvent,
    "job:success": JobEvent,
    "job:error": JobEnded,
    "job:failed": JobEnded,
    "job:complete": JobEnded,
    "gracefulShutdown": Terminated,
    "stop": Stopped,
}
"""Every name, and what its listeners are given."""

PoolName = Literal["pool:create", "pool:listen:connecting", "pool:release"]
WorkerName = Literal["worker:release", "worker:getJob:start", "worker:getJob:empty"]
WorkerErrorName = Literal["worker:getJob:error", "worker:stop"]
JobName = Literal["job:start", "job:success"]
EndName = Literal["job:error", "job:failed", "job:complete"]


class Subscribe(Protocol):
    """``events.on(name, listener)``, typed by the name. The listener may be asynchronous."""

    @overload
    def __call__(self, name: PoolName, listener: Callable[[PoolEvent], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["pool:listen:success"], listener: Callable[[PoolListens], object], /) -> None: ...
    @overload
    def __call__(
        self, name: Literal["pool:listen:error"], listener: Callable[[PoolListenError], object], /
    ) -> None: ...
    @overload
    def __call__(
        self, name: Literal["pool:gracefulShutdown"], listener: Callable[[PoolShutdown], object], /
    ) -> None: ...
    @overload
    def __call__(
        self, name: Literal["pool:gracefulShutdown:error"], listener: Callable[[PoolShutdownError], object], /
    ) -> None: ...
    @overload
    def __call__(self, name: Literal["worker:create"], listener: Callable[[WorkerCreated], object], /) -> None: ...
    @overload
    def __call__(self, name: WorkerName, listener: Callable[[WorkerEvent], object], /) -> None: ...
    @overload
    def __call__(self, name: WorkerErrorName, listener: Callable[[WorkerError], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["worker:fatalError"], listener: Callable[[WorkerFatal], object], /) -> None: ...
    @overload
    def __call__(self, name: JobName, listener: Callable[[JobEvent], object], /) -> None: ...
    @overload
    def __call__(self, name: EndName, listener: Callable[[JobEnded], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["gracefulShutdown"], listener: Callable[[Terminated], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["stop"], listener: Callable[[Stopped], object], /) -> None: ...


class WorkerEvents:
    """Listeners by name. Hand one to ``run`` or ``run_once`` to hear from the very first event on.

        events = WorkerEvents()
        events.on("job:success", lambda event: print(event.worker.worker_id, event.job.id))

    An unknown name is a ConfigurationError. What a listener raises is logged, and stops neither jobs nor others.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[_Subscription]] = {}
        self._running: set[asyncio.Future[Any]] = set()
        self.on = cast("Subscribe", self._on)
        """Call the listener whenever it happens."""
        self.once = cast("Subscribe", self._once)
        """Call the listener the next time it happens, and no more."""
        self.on_listener_error: Callable[[str], None] = core_logger().error
        """Called with a message when a listener raises."""

    def off(self, name: str, listener: Listener) -> None:
        """Call it no more. Harmless when it was never there."""
        for one in self._listeners.get(_known(name), []):
            if one.listener == listener:
                self._remove(name, one)
                return

    def emit(self, name: str, *fields: object) -> None:
        """Call the listeners, with the record of this name made of the facts. Raises nothing that a listener raises."""
        listeners = self._listeners.get(name)
        if not listeners:
            return
        payload = PAYLOADS[name](*fields)
        for one in listeners:
            if one.is_once:
                self._remove(name, one)
            try:
                result = one.listener(payload)
                if inspect.isawaitable(result):
                    self._follow(name, result)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - boundary: the application's code
                self._report_error(name, error)

    async def settled(self) -> None:
        """Wait until every asynchronous listener that was called has ended."""
        while self._running:
            await asyncio.wait(self._running)

    def _on(self, name: str, listener: Listener, /) -> None:
        self._add(name, _Subscription(listener, is_once=False))

    def _once(self, name: str, listener: Listener, /) -> None:
        self._add(name, _Subscription(listener, is_once=True))

    def _add(self, name: str, subscription: _Subscription) -> None:
        self._listeners[_known(name)] = [*self._listeners.get(name, ()), subscription]

    def _remove(self, name: str, subscription: _Subscription) -> None:
        # A new list: an emit that is under way goes through the old one.
        self._listeners[name] = [one for one in self._listeners[name] if one is not subscription]

    def _follow(self, name: str, result: Any) -> None:
        running = asyncio.ensure_future(result)
        self._running.add(running)

        def ended(task: asyncio.Future[Any]) -> None:
            self._running.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._report_error(name, error)

        running.add_done_callback(ended)

    def _report_error(self, name: str, error: BaseException) -> None:
        self.on_listener_error(f"A listener to {name!r} raised {type(error).__name__}: {error}")


class _Subscription(msgspec.Struct, frozen=True, eq=False):
    listener: Listener
    is_once: bool


def _known(name: str) -> str:
    if name not in PAYLOADS:
        raise ConfigurationError(f"no event {name!r}{suggest(name, PAYLOADS)}")
    return name
