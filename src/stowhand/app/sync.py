"""The App's methods for code without an event loop, such as scripts, Django views and tests."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from stowhand.app.portal import Portal, SyncMethod
from stowhand.app.results import listed
from stowhand.errors import ConfigurationError, explain_foreign_attributes
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lifecycle import Raisable
from stowhand.protocols.operator import Operator
from stowhand.protocols.producer import Connection, Producer
from stowhand.protocols.queue_store import Administrator, Inspector, QueueStore, Schema, Timetable, require_part
from stowhand.stores.callers.connection_types import is_asynchronous
from stowhand.tasks.job_handle import JobHandle
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.sync_job_handle import SyncJobHandle
from stowhand.tasks.task import ConfiguredTask, name_of

if TYPE_CHECKING:
    from stowhand.app.app import App

P = ParamSpec("P")
R = TypeVar("R")


@explain_foreign_attributes
class Sync:
    """Calls the App's asynchronous methods and waits for them, from any number of threads.

    All threads share one loop thread and its connections. Inside a running event loop, which it would block, a call
    raises Misuse that names the method to await.

        app.sync.add_job("send", {"to": "someone@example.com"})
    """

    opened = "(await app.open())"

    def __init__(self, app: App) -> None:
        self._app = app
        self._portal = Portal(app.close)

    @overload
    def enqueue(
        self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJobHandle[R]: ...
    @overload
    def enqueue(self, task: NewJob, /) -> SyncJobHandle[Any]: ...
    def enqueue(self, task: ConfiguredTask[..., Any] | NewJob, /, *args: Any, **kwargs: Any) -> SyncJobHandle[Any]:
        """Enqueue a job like ``App.enqueue``: ``app.sync.enqueue(send.options(delay=60), "x")``."""
        call = partial(self._app.enqueue, task, *args, **kwargs)
        return SyncJobHandle(self._portal.run(call, f"await {name_of(task)}.enqueue(…)"), self._portal)

    @overload
    def enqueue_in(
        self, connection: Connection, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJobHandle[R]: ...
    @overload
    def enqueue_in(self, connection: Connection, task: NewJob, /) -> SyncJobHandle[Any]: ...
    def enqueue_in(
        self, connection: Connection, task: ConfiguredTask[..., Any] | NewJob, /, *args: Any, **kwargs: Any
    ) -> SyncJobHandle[Any]:
        """Enqueue a job like ``App.enqueue_in``: ``app.sync.enqueue_in(session, send, "x")``."""
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
            """Enqueue and wait like the App's method: ``app.sync.enqueue_and_wait(add, 1, 2, timeout="5s")``."""
            call = partial(self._app.enqueue_and_wait, task, *args, timeout=timeout, **kwargs)
            return self._portal.run(call, f"await {name_of(task)}.enqueue_and_wait(…)")

    def emit(self, event: str, payload: object = None) -> bool:
        """Emit an event like ``App.emit``."""
        return self._portal.run(lambda: self._app.emit(event, payload), "await app.emit(…)")

    def emit_in(self, connection: Connection, event: str, payload: object = None) -> bool:
        """Emit an event in the caller's transaction, like ``App.emit_in``."""
        if is_asynchronous(connection):
            raise ConfigurationError("this connection is asynchronous: await app.emit_in(…)")
        return self._app.emit_in(connection, event, payload)

    @overload
    def job(self, job_id: int) -> SyncJobHandle[Any]: ...
    @overload
    def job(self, job_id: int, task: ConfiguredTask[..., R | Raisable]) -> SyncJobHandle[R]: ...
    def job(self, job_id: int, task: ConfiguredTask[..., Any] | None = None) -> SyncJobHandle[Any]:
        """Return a handle of the job with this id, like ``App.job``."""
        call = partial(self._app.job, job_id) if task is None else partial(self._app.job, job_id, task)
        return SyncJobHandle(self._portal.run(call, "await app.job(…)"), self._portal)

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
        """Wait for many jobs and return their results, like ``App.gather``."""
        handles = [job.handle if isinstance(job, SyncJobHandle) else job for job in listed(jobs, "app.sync.gather")]
        call = partial(self._app.gather, handles, timeout, return_exceptions=return_exceptions)
        return self._portal.run(call, "await app.gather(…)")

    def enqueue_many(self, jobs: Iterable[NewJob]) -> builtins.list[int]:
        """Enqueue jobs like ``App.enqueue_many``. The calling thread iterates ``jobs``, inside its transaction."""
        return self._portal.run_with(self._app.enqueue_many, jobs, "await app.enqueue_many(…)")

    def add_job(self, task: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Job:
        """Enqueue a job by the name of its task, like ``App.add_job``."""
        return self._portal.run(lambda: self._app.add_job(task, payload, **options), "await app.add_job(…)")

    def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue jobs and return them, like ``App.add_jobs``."""
        return self._portal.run(lambda: self._app.add_jobs(jobs), "await app.add_jobs(…)")

    def install(self) -> None:
        """Install the schema if there is none, in scripts and tests. A worker does it by itself."""
        self._portal.run(lambda: self._app.open(install=True), "await app.open(install=True)")

    def close(self) -> None:
        """Close the connections and end the thread. Idempotent; the next use connects again.

        Called automatically when the program exits.
        """
        self._portal.close()

    def wait_for(self, call: Callable[[QueueStore], Any], replacement: str) -> Any:
        """Wait for what ``call`` returns for the open store; ``replacement``: what to write in an event loop."""

        async def answer() -> Any:
            return await call(await self._app.open())

        return self._portal.run(answer, replacement)

    def set_default_max_attempts(self, attempts: int) -> None:
        """Set the default number of attempts, like ``Settings.set_default_max_attempts``.

        Raises ConfigurationError if the store has no such setting.
        """
        self.wait_for(
            lambda store: require_part(store, "settings", store.settings).set_default_max_attempts(attempts),
            "await (await app.open()).settings.set_default_max_attempts(…)",
        )

    get = SyncMethod(Producer.get, "await app.get(…)")
    tries = SyncMethod(Producer.tries)
    list = SyncMethod(Inspector.list, "await app.list(…)")
    counts = SyncMethod(Inspector.counts, "await app.counts(…)")
    search = SyncMethod(Inspector.search, "await app.search(…)")
    amounts = SyncMethod(Inspector.amounts)
    failures = SyncMethod(Inspector.failures)
    oldest_due = SyncMethod(Inspector.oldest_due)
    overdue = SyncMethod(Inspector.overdue)
    explain = SyncMethod(Inspector.explain)
    figures = SyncMethod(Inspector.figures)
    throughput = SyncMethod(Inspector.throughput)
    workers = SyncMethod(Inspector.workers)
    held = SyncMethod(Inspector.held)
    app_versions = SyncMethod(Inspector.app_versions)
    tasks = SyncMethod(Inspector.tasks)
    serials = SyncMethod(Inspector.serials)
    pauses = SyncMethod(Inspector.pauses)
    queues = SyncMethod(Inspector.queues)
    limits = SyncMethod(Inspector.limits)
    now = SyncMethod(Timetable.now)
    known_items = SyncMethod(Timetable.known_items)
    forget_item = SyncMethod(Timetable.forget_item)
    status = SyncMethod(Schema.status)
    default_max_attempts = SyncMethod(Schema.default_max_attempts)

    retry = SyncMethod(Administrator.retry, "await app.retry(…)")
    retry_failed = SyncMethod(Administrator.retry_failed)
    cancel = SyncMethod(Administrator.cancel, "await app.cancel(…)")
    remove = SyncMethod(Administrator.remove, "await app.remove(…)")
    remove_key = SyncMethod(Administrator.remove_key)
    retry_jobs = SyncMethod(Administrator.retry_jobs)
    cancel_jobs = SyncMethod(Administrator.cancel_jobs)
    remove_jobs = SyncMethod(Administrator.remove_jobs)
    complete_jobs = SyncMethod(Administrator.complete_jobs)
    permanently_fail_jobs = SyncMethod(Administrator.permanently_fail_jobs)
    reschedule_jobs = SyncMethod(Administrator.reschedule_jobs)
    force_unlock_workers = SyncMethod(Administrator.force_unlock_workers)
    pause_serial = SyncMethod(Operator.pause_serial)
    resume_serial = SyncMethod(Operator.resume_serial)
    pause_task = SyncMethod(Operator.pause_task)
    resume_task = SyncMethod(Operator.resume_task)
    pause_queue = SyncMethod(Operator.pause_queue, "await app.pause_queue(…)")
    resume_queue = SyncMethod(Operator.resume_queue, "await app.resume_queue(…)")
    set_limit = SyncMethod(Operator.set_limit)
    reset_limit = SyncMethod(Operator.reset_limit)
    purge = SyncMethod(Operator.purge)
    add_built_in = SyncMethod(Administrator.add_built_in)
