"""``WorkerEvents``: an emitter with a closed list of event names, and the record of each event.

The fields of the records are the original's keys in snake_case. A worker appears as a pool that contains one worker for
each of its slots.
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
    """Error of a job whose task has raised none: it took too long, or returned ``Retry`` or ``Fail``."""


class PoolWorker:
    """Slot of a pool, which runs one job at a time. It has no thread or connection of its own."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.active_job: Job | None = None
        """The running job, if any."""

    def __repr__(self) -> str:
        return f"<worker {self.worker_id}>"


class WorkerPool:
    """Workers of one run."""

    def __init__(self, worker_id: str, concurrency: int, stop: Callable[[str], None]) -> None:
        self.worker_id = worker_id
        """Name of the worker that holds the jobs, as in ``job.worker``."""
        self.workers = tuple(PoolWorker(f"{worker_id}.{number}") for number in range(1, concurrency + 1))
        self._free = list(reversed(self.workers))
        self._stop = stop

    def graceful_shutdown(self, message: str = "asked to stop") -> None:
        """Claim nothing more, and let running jobs end within the grace. Call it on the runner's loop."""
        self._stop(message)

    def release(self) -> None:
        """Do the same as ``graceful_shutdown``."""
        self._stop("released")

    def idle_worker(self) -> PoolWorker:
        """Return the worker that would run the next job."""
        return self._free[-1] if self._free else self.workers[0]

    def start_job(self, job: Job) -> PoolWorker:
        """Assign a job to a free worker, and return the worker."""
        worker = self._free.pop() if self._free else PoolWorker(f"{self.worker_id}.0")
        worker.active_job = job
        return worker

    def end_job(self, worker: PoolWorker) -> None:
        """Record that the worker is free again."""
        worker.active_job = None
        if worker in self.workers:
            self._free.append(worker)


class PoolEvent(msgspec.Struct, frozen=True):
    """Event of the whole pool."""

    worker_pool: WorkerPool

    @property
    def pool(self) -> WorkerPool:
        """Other name of ``worker_pool``."""
        return self.worker_pool


class PoolListens(msgspec.Struct, frozen=True):
    """The pool receives wake-ups. ``client``: the listening connection."""

    worker_pool: WorkerPool
    client: object


class PoolListenError(msgspec.Struct, frozen=True):
    """The pool receives no wake-ups. It polls, and tries to listen again."""

    worker_pool: WorkerPool
    error: BaseException
    client: object


class PoolShutdown(msgspec.Struct, frozen=True):
    """The pool claims nothing more. ``message``: the reason."""

    pool: WorkerPool
    message: str


class PoolShutdownError(msgspec.Struct, frozen=True):
    """The shutdown of the pool failed."""

    pool: WorkerPool
    error: BaseException


class WorkerCreated(msgspec.Struct, frozen=True):
    """A worker was created. ``tasks``: the functions that it can run, by name."""

    worker: PoolWorker
    tasks: TaskFunctions


class WorkerEvent(msgspec.Struct, frozen=True):
    """Event of one worker."""

    worker: PoolWorker


class WorkerError(msgspec.Struct, frozen=True):
    """A call to the store failed, and is retried; or a worker has ended, with an error or ``None``."""

    worker: PoolWorker
    error: BaseException | None


class WorkerFatal(msgspec.Struct, frozen=True):
    """A worker failed. ``job_error`` is always ``None``: an error of a job does not end a worker."""

    worker: PoolWorker
    error: BaseException
    job_error: BaseException | None = None


class JobEvent(msgspec.Struct, frozen=True):
    """Event of one job. ``job``: the job at its claim."""

    worker: PoolWorker
    job: Job


class JobEnded(msgspec.Struct, frozen=True):
    """The store has recorded the end of an attempt. ``error``: the error of its task (or a TaskFailed) if it failed."""

    worker: PoolWorker
    job: Job
    error: BaseException | None


class Terminated(msgspec.Struct, frozen=True):
    """A signal stops the runner. ``signal``: its name, such as "SIGTERM"."""

    signal: str


class Stopped(msgspec.Struct, frozen=True):
    """The runner has stopped."""


EVENT_RECORDS: dict[str, type[msgspec.Struct]] = {
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
"""Type of the record that listeners receive, by event name."""

PoolName = Literal["pool:create", "pool:listen:connecting", "pool:release"]
WorkerName = Literal["worker:release", "worker:getJob:start", "worker:getJob:empty"]
WorkerErrorName = Literal["worker:getJob:error", "worker:stop"]
JobName = Literal["job:start", "job:success"]
EndName = Literal["job:error", "job:failed", "job:complete"]


class Subscribe(Protocol):
    """Type of ``events.on(name, listener)``, by name. The listener may be asynchronous."""

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
    """Listeners by event name. Pass one to ``run`` or ``run_once`` to receive all events from the first on.

        events = WorkerEvents()
        events.on("job:success", lambda event: print(event.worker.worker_id, event.job.id))

    An unknown name raises ConfigurationError. An error of a listener is logged. It affects no job and no other
    listener.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[_Subscription]] = {}
        self._running: set[asyncio.Future[Any]] = set()
        self.on = cast("Subscribe", self._on)
        """Call the listener at every event of this name."""
        self.once = cast("Subscribe", self._once)
        """Call the listener only at the next event of this name."""
        self.on_listener_error: Callable[[str], None] = core_logger().error
        """Called with a message when a listener raises."""

    def off(self, name: str, listener: Listener) -> None:
        """Remove the listener. Harmless if it was not added."""
        for subscription in self._listeners.get(_checked_name(name), []):
            if subscription.listener == listener:
                self._remove(name, subscription)
                return

    def emit(self, name: str, *fields: object) -> None:
        """Call the listeners with the record of this event. Errors of listeners are reported, not raised."""
        subscriptions = self._listeners.get(name)
        if not subscriptions:
            return
        record = EVENT_RECORDS[name](*fields)
        for subscription in subscriptions:
            if subscription.is_once:
                self._remove(name, subscription)
            try:
                result = subscription.listener(record)
                if inspect.isawaitable(result):
                    self._follow(name, result)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - boundary: the application's code
                self._report_error(name, error)

    async def settled(self) -> None:
        """Wait until all running asynchronous listeners have ended."""
        while self._running:
            await asyncio.wait(self._running)

    def _on(self, name: str, listener: Listener, /) -> None:
        self._add(name, _Subscription(listener, is_once=False))

    def _once(self, name: str, listener: Listener, /) -> None:
        self._add(name, _Subscription(listener, is_once=True))

    def _add(self, name: str, subscription: _Subscription) -> None:
        self._listeners[_checked_name(name)] = [*self._listeners.get(name, ()), subscription]

    def _remove(self, name: str, subscription: _Subscription) -> None:
        # This makes a new list, because a running ``emit`` iterates over the old one.
        self._listeners[name] = [other for other in self._listeners[name] if other is not subscription]

    def _follow(self, name: str, result: Any) -> None:
        future = asyncio.ensure_future(result)
        self._running.add(future)

        def on_end(future: asyncio.Future[Any]) -> None:
            self._running.discard(future)
            if not future.cancelled() and (error := future.exception()) is not None:
                self._report_error(name, error)

        future.add_done_callback(on_end)

    def _report_error(self, name: str, error: BaseException) -> None:
        self.on_listener_error(f"A listener to {name!r} raised {type(error).__name__}: {error}")


class _Subscription(msgspec.Struct, frozen=True, eq=False):
    listener: Listener
    is_once: bool


def _checked_name(name: str) -> str:
    if name not in EVENT_RECORDS:
        raise ConfigurationError(f"no event {name!r}{suggest(name, EVENT_RECORDS)}")
    return name
