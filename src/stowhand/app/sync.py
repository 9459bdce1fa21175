"""The App's methods for code without an event loop: scripts, Django views, tests. Each calls the asynchronous one."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from stowhand.app.portal import Portal
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.queue_store import QueueStore
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.task import ConfiguredTask

if TYPE_CHECKING:
    from stowhand.app.app import App

P = ParamSpec("P")
R = TypeVar("R")


class OfTheStore(Generic[P, R]):
    """A method of the store, waited for. Its name, parameters and types are those of the protocol."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, sync: None, kind: type) -> OfTheStore[P, R]: ...
    @overload
    def __get__(self, sync: Sync, kind: type) -> Callable[P, R]: ...
    def __get__(self, sync: Sync | None, kind: type) -> Any:
        if sync is None:
            return self
        name = self.method.__name__

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            request = methodcaller(name, *args, **kwargs)
            return cast("R", sync.wait_for_store(request, f"await (await app.open()).{name}(…)"))

        call.__name__, call.__doc__ = name, self.__doc__
        return call


class Sync:
    """Calls the app's methods and waits, from any number of threads; all share one loop thread and its connections.

    Inside a running event loop it would block that loop: it raises RuntimeError that names what to await instead.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._portal = Portal(app.close)

    def enqueue(self, task: ConfiguredTask[P], /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """As ``Task.enqueue``.

        app.sync.enqueue(send, "x")
        app.sync.enqueue(send.options(delay=60), "x")
        """
        return self._portal.run(lambda: task.enqueue(*args, **kwargs), f"await {task.name}.enqueue(…)")

    def enqueue_many(self, jobs: Iterable[NewJob]) -> builtins.list[int]:
        """As ``App.enqueue_many``. ``jobs`` is iterated in the calling thread, inside its transaction if it has one."""
        return self._portal.run_with(self._app.enqueue_many, jobs, "await app.enqueue_many(…)")

    def add_job(self, task: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Job:
        """As ``App.add_job``."""
        return self._portal.run(lambda: self._app.add_job(task, payload, **options), "await app.add_job(…)")

    def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """As ``App.add_jobs``."""
        return self._portal.run(lambda: self._app.add_jobs(jobs), "await app.add_jobs(…)")

    def install(self) -> None:
        """Install the schema if there is none (scripts and tests; a worker does it by itself)."""
        self._portal.run(lambda: self._app.open(install=True), "await app.open(install=True)")

    def close(self) -> None:
        """Close the connections and end the thread. Harmless when repeated; the next use starts anew.

        Called by itself when the program ends.
        """
        self._portal.close()

    def wait_for_store(self, ask: Callable[[QueueStore], Any], instead: str) -> Any:
        """Call ``ask`` with the open store; ``instead``: what to write in an event loop."""

        async def answer() -> Any:
            return await ask(await self._app.open())

        return self._portal.run(answer, instead)

    get = OfTheStore(QueueStore.get)
    list = OfTheStore(QueueStore.list)
    counts = OfTheStore(QueueStore.counts)
    oldest_due = OfTheStore(QueueStore.oldest_due)
    explain = OfTheStore(QueueStore.explain)
    figures = OfTheStore(QueueStore.figures)
    workers = OfTheStore(QueueStore.workers)
    queues = OfTheStore(QueueStore.queues)
    pauses = OfTheStore(QueueStore.pauses)
    now = OfTheStore(QueueStore.now)
    known_items = OfTheStore(QueueStore.known_items)
    ticks = OfTheStore(QueueStore.ticks)
    status = OfTheStore(QueueStore.status)
    default_max_attempts = OfTheStore(QueueStore.default_max_attempts)

    retry = OfTheStore(QueueStore.retry)
    retry_failed = OfTheStore(QueueStore.retry_failed)
    cancel = OfTheStore(QueueStore.cancel)
    remove = OfTheStore(QueueStore.remove)
    remove_key = OfTheStore(QueueStore.remove_key)
    retry_jobs = OfTheStore(QueueStore.retry_jobs)
    cancel_jobs = OfTheStore(QueueStore.cancel_jobs)
    remove_jobs = OfTheStore(QueueStore.remove_jobs)
    complete_jobs = OfTheStore(QueueStore.complete_jobs)
    permanently_fail_jobs = OfTheStore(QueueStore.permanently_fail_jobs)
    reschedule_jobs = OfTheStore(QueueStore.reschedule_jobs)
    force_unlock_workers = OfTheStore(QueueStore.force_unlock_workers)
    pause_queue = OfTheStore(QueueStore.pause_queue)
    resume_queue = OfTheStore(QueueStore.resume_queue)
    pause_task = OfTheStore(QueueStore.pause_task)
    resume_task = OfTheStore(QueueStore.resume_task)
    pause_unqueued = OfTheStore(QueueStore.pause_unqueued)
    resume_unqueued = OfTheStore(QueueStore.resume_unqueued)
    purge = OfTheStore(QueueStore.purge)
    add_built_in = OfTheStore(QueueStore.add_built_in)
    set_default_max_attempts = OfTheStore(QueueStore.set_default_max_attempts)
