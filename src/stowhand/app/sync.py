"""The App's methods for code without an event loop: scripts, Django views, tests. Each calls the asynchronous one."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from stowhand.app.portal import Portal
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.offered import there
from stowhand.protocols.operating import Operator
from stowhand.protocols.queue_store import Administrator, Inspector, Producer, QueueStore, Schema, Timetable
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.task import ConfiguredTask

if TYPE_CHECKING:
    from stowhand.app.app import App

P = ParamSpec("P")
R = TypeVar("R")


_PARTS = {
    "Producer": "jobs",
    "Inspector": "inspect",
    "Timetable": "timetable",
    "Schema": "schema",
    "Administrator": "admin",
    "Operator": "operate",
}
"""By protocol."""


class OfTheStore(Generic[P, R]):
    """A method of a part of the store, waited for. Its name, parameters and types are those of the protocol."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        self.method = method
        self._part = _PARTS[method.__qualname__.partition(".")[0]]
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, sync: None, kind: type) -> OfTheStore[P, R]: ...
    @overload
    def __get__(self, sync: Sync, kind: type) -> Callable[P, R]: ...
    def __get__(self, sync: Sync | None, kind: type) -> Any:
        if sync is None:
            return self
        part, name = self._part, self.method.__name__

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            def ask(store: QueueStore) -> Any:
                return methodcaller(name, *args, **kwargs)(attrgetter(part)(store))

            return cast("R", sync.wait_for_store(ask, f"await (await app.open()).{part}.{name}(…)"))

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

    def set_default_max_attempts(self, attempts: int) -> None:
        """As ``Settings.set_default_max_attempts``. Raises ConfigurationError where there is no such setting."""
        self.wait_for_store(
            lambda store: there(store, "settings", store.settings).set_default_max_attempts(attempts),
            "await (await app.open()).settings.set_default_max_attempts(…)",
        )

    get = OfTheStore(Producer.get)
    list = OfTheStore(Inspector.list)
    counts = OfTheStore(Inspector.counts)
    oldest_due = OfTheStore(Inspector.oldest_due)
    explain = OfTheStore(Inspector.explain)
    figures = OfTheStore(Inspector.figures)
    workers = OfTheStore(Inspector.workers)
    queues = OfTheStore(Inspector.queues)
    pauses = OfTheStore(Inspector.pauses)
    now = OfTheStore(Timetable.now)
    known_items = OfTheStore(Timetable.known_items)
    ticks = OfTheStore(Timetable.ticks)
    status = OfTheStore(Schema.status)
    default_max_attempts = OfTheStore(Schema.default_max_attempts)

    retry = OfTheStore(Administrator.retry)
    retry_failed = OfTheStore(Administrator.retry_failed)
    cancel = OfTheStore(Administrator.cancel)
    remove = OfTheStore(Administrator.remove)
    remove_key = OfTheStore(Administrator.remove_key)
    retry_jobs = OfTheStore(Administrator.retry_jobs)
    cancel_jobs = OfTheStore(Administrator.cancel_jobs)
    remove_jobs = OfTheStore(Administrator.remove_jobs)
    complete_jobs = OfTheStore(Administrator.complete_jobs)
    permanently_fail_jobs = OfTheStore(Administrator.permanently_fail_jobs)
    reschedule_jobs = OfTheStore(Administrator.reschedule_jobs)
    force_unlock_workers = OfTheStore(Administrator.force_unlock_workers)
    pause_queue = OfTheStore(Operator.pause_queue)
    resume_queue = OfTheStore(Operator.resume_queue)
    pause_task = OfTheStore(Operator.pause_task)
    resume_task = OfTheStore(Operator.resume_task)
    pause_unqueued = OfTheStore(Operator.pause_unqueued)
    resume_unqueued = OfTheStore(Operator.resume_unqueued)
    purge = OfTheStore(Operator.purge)
    add_built_in = OfTheStore(Administrator.add_built_in)
