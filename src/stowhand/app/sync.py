"""The App's methods for code without an event loop: scripts, Django views, tests. Each calls the asynchronous one."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from stowhand.app.portal import Portal, Waited
from stowhand.app.results import listed
from stowhand.errors import ConfigurationError, unknown_attribute
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lifecycle import Raisable
from stowhand.protocols.operator import Operator
from stowhand.protocols.producer import Connection, Producer
from stowhand.protocols.queue_store import Administrator, Inspector, QueueStore, Schema, Timetable, there
from stowhand.stores.callers.connection_types import is_asynchronous
from stowhand.tasks.job_handle import JobHandle
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.sync_job_handle import SyncJobHandle
from stowhand.tasks.task import ConfiguredTask, name_of

if TYPE_CHECKING:
    from stowhand.app.app import App

P = ParamSpec("P")
R = TypeVar("R")


class Sync:
    """Calls the app's methods and waits, from any number of threads; all share one loop thread and its connections.

    Inside a running event loop it would block that loop: it raises Misuse that names what to await instead.
    """

    opened = "(await app.open())"

    def __init__(self, app: App) -> None:
        self._app = app
        self._portal = Portal(app.close)

    if not TYPE_CHECKING:  # type checkers would take any attribute for one of this class

        def __getattr__(self, name):
            raise unknown_attribute(self, name)

    @overload
    def enqueue(
        self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJobHandle[R]: ...
    @overload
    def enqueue(self, task: NewJob, /) -> SyncJobHandle[Any]: ...
    def enqueue(self, task: ConfiguredTask[..., Any] | NewJob, /, *args: Any, **kwargs: Any) -> SyncJobHandle[Any]:
        """As ``App.enqueue``: ``app.sync.enqueue(send.options(delay=60), "x")``."""
        ask = partial(self._app.enqueue, task, *args, **kwargs)
        return SyncJobHandle(self._portal.run(ask, f"await {name_of(task)}.enqueue(…)"), self._portal)

    @overload
    def enqueue_in(
        self, connection: Connection, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJobHandle[R]: ...
    @overload
    def enqueue_in(self, connection: Connection, task: NewJob, /) -> SyncJobHandle[Any]: ...
    def enqueue_in(
        self, connection: Connection, task: ConfiguredTask[..., Any] | NewJob, /, *args: Any, **kwargs: Any
    ) -> SyncJobHandle[Any]:
        """As ``App.enqueue_in``, on a synchronous connection: ``app.sync.enqueue_in(session, send, "x")``."""
        if is_asynchronous(connection):
            raise ConfigurationError(f"this connection is asynchronous: await {name_of(task)}.enqueue_in(…)")
        return SyncJobHandle(self._app.enqueue_in(connection, task, *args, **kwargs), self._portal)

    if TYPE_CHECKING:

        @overload
        def enqueue_and_wait(
            self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
        ) -> R: ...
        @overload
        def enqueue_and_wait(
            self, task: ConfiguredTask[..., R | Raisable], /, *args: Any, timeout: Duration | None, **kwargs: Any
        ) -> R: ...
        def enqueue_and_wait(self, task: ConfiguredTask[..., R | Raisable], /, *args: Any, **kwargs: Any) -> R: ...
    else:

        def enqueue_and_wait(self, task, /, *args, timeout=None, **kwargs):
            """As ``App.enqueue_and_wait``: ``app.sync.enqueue_and_wait(add, 1, 2, timeout="5s")``."""
            ask = partial(self._app.enqueue_and_wait, task, *args, timeout=timeout, **kwargs)
            return self._portal.run(ask, f"await {name_of(task)}.enqueue_and_wait(…)")

    @overload
    def job(self, job_id: int) -> SyncJobHandle[Any]: ...
    @overload
    def job(self, job_id: int, task: ConfiguredTask[..., R | Raisable]) -> SyncJobHandle[R]: ...
    def job(self, job_id: int, task: ConfiguredTask[..., Any] | None = None) -> SyncJobHandle[Any]:
        """As ``App.job``."""
        ask = partial(self._app.job, job_id) if task is None else partial(self._app.job, job_id, task)
        return SyncJobHandle(self._portal.run(ask, "await app.job(…)"), self._portal)

    @overload
    def gather(
        self,
        jobs: Iterable[SyncJobHandle[R]],
        timeout: Duration | None = None,
        *,
        return_exceptions: Literal[False] = ...,
    ) -> builtins.list[R]: ...
    @overload
    def gather(
        self,
        jobs: Iterable[SyncJobHandle[Any] | JobHandle[Any] | Job | int],
        timeout: Duration | None = None,
        *,
        return_exceptions: bool = ...,
    ) -> builtins.list[Any]: ...
    def gather(
        self, jobs: Iterable[Any], timeout: Duration | None = None, *, return_exceptions: bool = False
    ) -> builtins.list[Any]:
        """As ``App.gather``."""
        given = [job.handle if isinstance(job, SyncJobHandle) else job for job in listed(jobs, "app.sync.gather")]
        ask = partial(self._app.gather, given, timeout, return_exceptions=return_exceptions)
        return self._portal.run(ask, "await app.gather(…)")

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

    get = Waited(Producer.get, "await app.get(…)")
    tries = Waited(Producer.tries)
    list = Waited(Inspector.list, "await app.list(…)")
    counts = Waited(Inspector.counts, "await app.counts(…)")
    search = Waited(Inspector.search, "await app.search(…)")
    amounts = Waited(Inspector.amounts)
    failures = Waited(Inspector.failures)
    oldest_due = Waited(Inspector.oldest_due)
    overdue = Waited(Inspector.overdue)
    explain = Waited(Inspector.explain)
    figures = Waited(Inspector.figures)
    throughput = Waited(Inspector.throughput)
    workers = Waited(Inspector.workers)
    held = Waited(Inspector.held)
    app_versions = Waited(Inspector.app_versions)
    tasks = Waited(Inspector.tasks)
    serials = Waited(Inspector.serials)
    pauses = Waited(Inspector.pauses)
    queues = Waited(Inspector.queues)
    now = Waited(Timetable.now)
    known_items = Waited(Timetable.known_items)
    forget_item = Waited(Timetable.forget_item)
    status = Waited(Schema.status)
    default_max_attempts = Waited(Schema.default_max_attempts)

    retry = Waited(Administrator.retry, "await app.retry(…)")
    retry_failed = Waited(Administrator.retry_failed)
    cancel = Waited(Administrator.cancel, "await app.cancel(…)")
    remove = Waited(Administrator.remove, "await app.remove(…)")
    remove_key = Waited(Administrator.remove_key)
    retry_jobs = Waited(Administrator.retry_jobs)
    cancel_jobs = Waited(Administrator.cancel_jobs)
    remove_jobs = Waited(Administrator.remove_jobs)
    complete_jobs = Waited(Administrator.complete_jobs)
    permanently_fail_jobs = Waited(Administrator.permanently_fail_jobs)
    reschedule_jobs = Waited(Administrator.reschedule_jobs)
    force_unlock_workers = Waited(Administrator.force_unlock_workers)
    pause_serial = Waited(Operator.pause_serial)
    resume_serial = Waited(Operator.resume_serial)
    pause_task = Waited(Operator.pause_task)
    resume_task = Waited(Operator.resume_task)
    pause_queue = Waited(Operator.pause_queue, "await app.pause_queue(…)")
    resume_queue = Waited(Operator.resume_queue, "await app.resume_queue(…)")
    purge = Waited(Operator.purge)
    add_built_in = Waited(Administrator.add_built_in)
