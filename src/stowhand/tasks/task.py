"""A declared function: called as before, and enqueued with its own parameters, which type checkers check."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec

from stowhand.errors import InvalidJob, Misuse, a_type, unknown_attribute
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import Raisable
from stowhand.protocols.producer import AsyncConnection, Connection
from stowhand.tasks.context import Context
from stowhand.tasks.handled_jobs import HandledJobs
from stowhand.tasks.job_handle import EnqueuedJob, JobHandle
from stowhand.tasks.needs_loop import needs_loop
from stowhand.tasks.options import EnqueueOptions, apply_options
from stowhand.tasks.registry import TaskDefinition
from stowhand.tasks.sync_job_handle import SyncJobHandle
from stowhand.worker.host import refuse_inside

MAX_NAME_CHARACTERS = 60
"""Characters of a text that was given instead of a task."""
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
"""What a task's job comes to: of an ``async def``, what awaiting it gives. Outcomes in it are no part of a result, so a
method that promises one takes ``self`` as ``ConfiguredTask[P, R | Raisable]``, and R is the result."""
Returned_co = TypeVar("Returned_co", covariant=True)
"""What calling the function gives here and now: of an ``async def``, a coroutine."""


class SyncProducer(Protocol):
    """The App of a task, for code without an event loop."""

    def enqueue(self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Commit one job of the task with these arguments."""


class TaskProducer(Protocol):
    """The App of a task, which enqueues its jobs."""

    @property
    def sync(self) -> SyncProducer:
        """The same without an event loop."""

    @property
    def handled(self) -> HandledJobs:
        """Its jobs, for handles."""

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number in one transaction; return their ids."""


class ConfiguredTask(Generic[P, R_co]):
    """A task together with the options that its next jobs will have."""

    def __init__(self, definition: TaskDefinition, producer: TaskProducer, template: NewJob | None = None) -> None:
        self._definition = definition
        self._producer = producer
        self._template = template or definition.template

    if not TYPE_CHECKING:  # type checkers would take any attribute for one of this class

        def __getattr__(self, name):
            raise unknown_attribute(self, name)

    @property
    def name(self) -> str:
        """Name of the task in the store."""
        return self._definition.name

    @property
    def definition(self) -> TaskDefinition:
        """Everything that was declared about the task."""
        return self._definition

    @property
    def producer(self) -> TaskProducer:
        """The App that declared it."""
        return self._producer

    @property
    def template(self) -> NewJob:
        """Its jobs, without payload."""
        return self._template

    @needs_loop("{0.name}.enqueue_sync(…)")
    async def enqueue(self: ConfiguredTask[P, R | Raisable], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Commit one job that will call the task with these arguments; return its handle.

        What is not given keeps the function's default, as it is when the job runs. Raises InvalidJob, OutcomeUnknown,
        SchemaMissing, StoreUnreachable.
        """
        return await self._producer.handled.enqueue(self.new_job(*args, **kwargs), self._definition)

    def enqueue_sync(self: ConfiguredTask[P, R | Raisable], *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Commit one job as ``enqueue`` does, without an event loop; return a handle whose methods need none.

        From any thread in which no event loop runs. Raises as ``enqueue``; Misuse in an event loop.
        """
        return self._producer.sync.enqueue(self, *args, **kwargs)

    if TYPE_CHECKING:

        @overload
        async def enqueue_and_wait(self: ConfiguredTask[P, R | Raisable], *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        async def enqueue_and_wait(
            self: ConfiguredTask[P, R | Raisable], *args: Any, timeout: Duration | None, **kwargs: Any
        ) -> R: ...
        async def enqueue_and_wait(self, *args: Any, **kwargs: Any) -> Any: ...
    else:

        @needs_loop("app.sync.enqueue_and_wait({0.name}, …)")
        async def enqueue_and_wait(self, *args, timeout=None, **kwargs):
            """Enqueue a job and wait for its result: ``enqueue`` and ``JobHandle.result`` in one.

            Checkers look at the arguments where no ``timeout`` is given; ``async with asyncio.timeout(…)`` does as
            well. Raises as those two do; ConfigurationError where the store keeps no results: no job is made then.
            """
            refuse_inside("enqueue_and_wait()")
            if timeout is not None and "timeout" in self._definition.shape.names:
                raise InvalidJob(
                    f"task {self.name!r} has a parameter 'timeout' of its own: enqueue it, and wait with"
                    " result(timeout=…)"
                )
            limit, jobs = None if timeout is None else seconds(timeout), self._producer.handled
            handle = await jobs.enqueue_awaited(self.new_job(*args, **kwargs), self._definition)
            return await handle.result(limit)

    def options(self, **options: Unpack[EnqueueOptions]) -> ConfiguredTask[P, R_co]:
        """Return the same task with these options: ``send.options(delay=60).enqueue("x")``. Raises InvalidJob."""
        template, unique = apply_options(self._template, options), self._definition.unique
        if unique is not None:
            unique.refuse_key(template)
        return ConfiguredTask(self._definition, self._producer, template)

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job without enqueuing it, for ``App.enqueue_many``. Raises InvalidJob."""
        text = self._definition.shape.write(args, kwargs)
        job = msgspec.structs.replace(self._template, payload=text)
        definition = self._definition
        return job if definition.unique is None and definition.on_failure is None else definition.with_job_rules(job)

    @needs_loop("app.sync.enqueue_many({0.name}.new_job(…) for …)")
    async def enqueue_many(
        self: ConfiguredTask[P, R | Raisable], payloads: Iterable[object] | AsyncIterable[object]
    ) -> list[JobHandle[R]]:
        """Enqueue a job per payload in one transaction, streamed; their handles in the order given. All, or none.

        A handle has ``id`` and ``task`` at once, and the other fields after ``refresh``, ``wait`` or ``result``.

        A payload is an object keyed by parameter name (or whatever the parameter ``payload`` takes). With arguments
        checked by type: ``app.enqueue_many(send.new_job(n) for n in numbers)``.
        """
        if isinstance(payloads, AsyncIterable):
            ids = await self._producer.enqueue_many(self._job_of(one) async for one in payloads)
        else:
            ids = await self._producer.enqueue_many(self._jobs_of(payloads))
        jobs, read = self._producer.handled, self._definition.read_result
        return [JobHandle(EnqueuedJob(job_id, self.name), jobs, read) for job_id in ids]

    @overload
    def enqueue_in(
        self: ConfiguredTask[P, R | Raisable], connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[JobHandle[R]]: ...
    @overload
    def enqueue_in(
        self: ConfiguredTask[P, R | Raisable], connection: Connection, /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    def enqueue_in(
        self, connection: Connection | AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[Any] | Awaitable[JobHandle[Any]]:
        """Enqueue inside the caller's transaction: the job is there when, and only if, the caller commits.

        ``connection``: of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy (a session, too) or Django, to the queue's
        database. Gives the job, or an awaitable of it when the connection is asynchronous. Raises InvalidJob,
        SchemaMissing; ConfigurationError for what its owner could not commit.
        """
        return self._producer.handled.enqueue_in(connection, self.new_job(*args, **kwargs), self._definition)

    def _jobs_of(self, payloads: Iterable[object]) -> Iterator[NewJob]:
        return map(self._job_of, payloads)

    def _job_of(self, payload: object) -> NewJob:
        job = msgspec.structs.replace(self._template, payload=self._definition.shape.write_value(payload))
        return self._definition.with_job_rules(job)


def refuse_foreign(
    task: ConfiguredTask[..., object], app: TaskProducer, call: str, error: type[Misuse] = InvalidJob
) -> None:
    """Raise ``error`` for a task that another App declared: its jobs go to the store of that App."""
    if task.producer is not app:
        raise error(
            f"{call}: task {task.name!r} is declared by another App, whose store has its jobs; call that App's method"
        )


def job_of(task: object, app: TaskProducer | None, call: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
    """Return the job that a call enqueues: of a task with these arguments, or a ``NewJob`` as it is.

    ``app``: whose task it must be; ``None``: of any App. ``call``: what was called, as in "enqueue(task, …)". Raises
    InvalidJob.
    """
    if isinstance(task, NewJob):
        if args or kwargs:
            raise InvalidJob(f"{call}: a NewJob has its payload already; give arguments to a task only")
        return task
    return read_task(task, app, call).new_job(*args, **kwargs)


def read_task(task: object, app: TaskProducer | None, call: str) -> ConfiguredTask[..., Any]:
    """Return the task. Raises InvalidJob for anything else, and for a task that another App declared."""
    if not isinstance(task, ConfiguredTask):
        description = repr(task[:MAX_NAME_CHARACTERS]) if isinstance(task, str) else a_type(task)
        raise InvalidJob(
            f"{call}: {description} is no task; give what @app.task made of a function, or a NewJob;"
            " by a task's name: app.add_job(name, payload)"
        )
    if app is not None:
        refuse_foreign(task, app, call)
    return task


def definition_of(task: object) -> TaskDefinition | None:
    """Return what was declared about a task; ``None`` for anything else."""
    return task.definition if isinstance(task, ConfiguredTask) else None


def name_of(task: object) -> str:
    """Return the name of a task for an error message; ``app`` for anything else."""
    return task.name if isinstance(task, ConfiguredTask) else "app"


class Task(ConfiguredTask[P, R_co], Generic[P, R_co, Returned_co]):
    """A function declared as a task. Calling it calls the function, here and now."""

    def __init__(self, definition: TaskDefinition, producer: TaskProducer) -> None:
        super().__init__(definition, producer)
        _copy_metadata(self, definition.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Returned_co:
        for name, resource in self._definition.shape.injected.resources:
            if name not in kwargs:
                raise Misuse(f"{self.name}() called directly needs {name}=…: only a worker opens {resource!r}")
        return cast("Returned_co", self._definition.function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


class ContextTask(ConfiguredTask[P, R_co], Generic[P, R_co, Returned_co]):
    """A task whose first parameter is a Context: given by the caller in a direct call, never enqueued."""

    def __init__(self, definition: TaskDefinition, producer: TaskProducer) -> None:
        super().__init__(definition, producer)
        _copy_metadata(self, definition.function)

    if TYPE_CHECKING:

        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> Returned_co: ...
    else:
        # By position or by name, wherever the function has it: what a type cannot say stays possible.
        __call__ = Task.__call__

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


def _copy_metadata(task: ConfiguredTask[..., object], function: object) -> None:
    """Let a task show its function's name, words and attributes, but for those that a task has itself: the attributes
    of an object, or of another App's task, are what it works with."""
    functools.update_wrapper(cast("Callable[..., object]", task), cast("Callable[..., object]", function), updated=())
    for name, value in getattr(function, "__dict__", {}).items():
        if not hasattr(task, name):
            setattr(task, name, value)
