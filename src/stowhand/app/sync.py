"""The App's methods for code without an event loop: scripts, Django views, tests. Each calls the asynchronous one."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Unpack

from stowhand.app.portal import Portal, Waited
from stowhand.jobs.job import Job, NewJob
from stowhand.protocols.offered import there
from stowhand.protocols.operating import Operator
from stowhand.protocols.queue_store import Administrator, Inspector, Producer, QueueStore, Schema, Timetable
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.task import ConfiguredTask

if TYPE_CHECKING:
    from stowhand.app.app import App

P = ParamSpec("P")


class Sync:
    """Calls the app's methods and waits, from any number of threads; all share one loop thread and its connections.

    Inside a running event loop it would block that loop: it raises RuntimeError that names what to await instead.
    """

    opened = "(await app.open())"

    def __init__(self, app: App) -> None:
        self._app = app
        self._portal = Portal(app.close)

    def enqueue(self, task: ConfiguredTask[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Job:
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

    def wait_for(self, ask: Callable[[QueueStore], Any], instead: str) -> Any:
        """Call ``ask`` with the open store; ``instead``: what to write in an event loop."""

        async def answer() -> Any:
            return await ask(await self._app.open())

        return self._portal.run(answer, instead)

    def set_default_max_attempts(self, attempts: int) -> None:
        """As ``Settings.set_default_max_attempts``. Raises ConfigurationError where there is no such setting."""
        self.wait_for(
            lambda store: there(store, "settings", store.settings).set_default_max_attempts(attempts),
            "await (await app.open()).settings.set_default_max_attempts(…)",
        )

    get = Waited(Producer.get)
    tries = Waited(Producer.tries)
    list = Waited(Inspector.list)
    counts = Waited(Inspector.counts)
    failures = Waited(Inspector.failures)
    oldest_due = Waited(Inspector.oldest_due)
    explain = Waited(Inspector.explain)
    figures = Waited(Inspector.figures)
    throughput = Waited(Inspector.throughput)
    workers = Waited(Inspector.workers)
    queues = Waited(Inspector.queues)
    pauses = Waited(Inspector.pauses)
    now = Waited(Timetable.now)
    known_items = Waited(Timetable.known_items)
    ticks = Waited(Timetable.ticks)
    status = Waited(Schema.status)
    default_max_attempts = Waited(Schema.default_max_attempts)

    retry = Waited(Administrator.retry)
    retry_failed = Waited(Administrator.retry_failed)
    cancel = Waited(Administrator.cancel)
    remove = Waited(Administrator.remove)
    remove_key = Waited(Administrator.remove_key)
    retry_jobs = Waited(Administrator.retry_jobs)
    cancel_jobs = Waited(Administrator.cancel_jobs)
    remove_jobs = Waited(Administrator.remove_jobs)
    complete_jobs = Waited(Administrator.complete_jobs)
    permanently_fail_jobs = Waited(Administrator.permanently_fail_jobs)
    reschedule_jobs = Waited(Administrator.reschedule_jobs)
    force_unlock_workers = Waited(Administrator.force_unlock_workers)
    pause_queue = Waited(Operator.pause_queue)
    resume_queue = Waited(Operator.resume_queue)
    pause_task = Waited(Operator.pause_task)
    resume_task = Waited(Operator.resume_task)
    pause_unqueued = Waited(Operator.pause_unqueued)
    resume_unqueued = Waited(Operator.resume_unqueued)
    purge = Waited(Operator.purge)
    add_built_in = Waited(Administrator.add_built_in)
