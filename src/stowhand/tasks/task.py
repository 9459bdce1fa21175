"""A declared function, which can be called and enqueued with its own parameters. Type checkers check both."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec

from stowhand.errors import InvalidJob, Misuse, a_type, explain_foreign_attributes
from stowhand.jobs.durations import Duration, seconds
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import Raisable
from stowhand.jobs.task_limits import TaskLimits
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
"""Characters of a text that was passed instead of a task, in its error."""
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
"""The return type of a task; of an ``async def`` the awaited type. It may include outcomes, which are not results. So a
method that returns a result takes ``self`` as ``ConfiguredTask[P, R | Raisable]``, and R is the result."""
Returned_co = TypeVar("Returned_co", covariant=True)
"""The type that calling the function returns; of an ``async def`` a coroutine."""


class SyncProducer(Protocol):
    """The App of a task, for code without an event loop."""

    def enqueue(self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Enqueue and commit one job of the task with these arguments."""


class TaskProducer(Protocol):
    """The App of a task, which enqueues its jobs."""

    @property
    def sync(self) -> SyncProducer:
        """The App's methods for code without an event loop."""

    @property
    def handled(self) -> HandledJobs:
        """Access to its jobs, for handles."""

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number of jobs in one transaction; return their ids."""


@explain_foreign_attributes
class ConfiguredTask(Generic[P, R_co]):
    """A task together with the options that its next jobs will have."""

    def __init__(self, definition: TaskDefinition, producer: TaskProducer, template: NewJob | None = None) -> None:
        self._definition = definition
        self._producer = producer
        self._template = template or definition.template

    @property
    def name(self) -> str:
        """Name of the task in the store."""
        return self._definition.name

    @property
    def definition(self) -> TaskDefinition:
        """The declaration of the task."""
        return self._definition

    @property
    def limits(self) -> TaskLimits:
        """The limits that the task declares."""
        return self._definition.limits

    @property
    def producer(self) -> TaskProducer:
        """The App that declared the task."""
        return self._producer

    @property
    def template(self) -> NewJob:
        """A job with the task's options, without payload."""
        return self._template

    @needs_loop("{0.name}.enqueue_sync(…)")
    async def enqueue(self: ConfiguredTask[P, R | Raisable], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue and commit one job that calls the task with these arguments.

        An absent argument has the function's default at the time when the job runs.

        Returns:
            A handle of the job.

        Raises:
            InvalidJob: The task does not take these arguments, or a value exceeds a limit.
            OutcomeUnknown: The connection was lost during the commit; the job may exist.
            SchemaMissing: The store has no schema yet.
            StoreUnreachable: The store does not answer.

        Example:
            handle = await send.enqueue("someone@example.com")

        """
        return await self._producer.handled.enqueue(self.new_job(*args, **kwargs), self._definition)

    def enqueue_sync(self: ConfiguredTask[P, R | Raisable], *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Enqueue and commit one job like ``enqueue``, from a thread without an event loop.

        Returns:
            A handle whose methods need no event loop.

        Raises:
            Misuse: Called inside a running event loop.
            InvalidJob, OutcomeUnknown, SchemaMissing, StoreUnreachable: As ``enqueue``.

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
            """Enqueue a job and wait for its result, like ``enqueue`` followed by ``JobHandle.result``.

            Type checkers check the arguments only without ``timeout``; ``asyncio.timeout(…)`` is an alternative.

            Args:
                args: Positional arguments of the task.
                timeout: Seconds, a timedelta or a phrase ("30s"); ``None`` waits without limit.
                kwargs: Keyword arguments of the task.

            Returns:
                The result of the job.

            Raises:
                ConfigurationError: The store keeps no results. No job is enqueued.
                InvalidJob, TimeoutError, JobFailed: As those two methods, with all their other errors.

            """
            refuse_inside("enqueue_and_wait()")
            if timeout is not None and "timeout" in self._definition.shape.names:
                raise InvalidJob(
                    f"task {self.name!r} has its own parameter 'timeout'; use enqueue(…), and wait with"
                    " result(timeout=…)"
                )
            limit, jobs = None if timeout is None else seconds(timeout), self._producer.handled
            handle = await jobs.enqueue_awaited(self.new_job(*args, **kwargs), self._definition)
            return await handle.result(limit)

    def options(self, **options: Unpack[EnqueueOptions]) -> ConfiguredTask[P, R_co]:
        """Return the task with options for its next jobs.

        Args:
            options: Fields of ``EnqueueOptions``: ``delay``, ``priority``, ``key`` and others.

        Raises:
            InvalidJob: An option is unknown, or its value is invalid.

        Example:
            await send.options(delay=60).enqueue("someone@example.com")

        """
        template, unique = apply_options(self._template, options), self._definition.unique
        if unique is not None:
            unique.refuse_key(template)
        return ConfiguredTask(self._definition, self._producer, template)

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job without enqueueing it, for ``App.enqueue_many``. Raises InvalidJob."""
        text = self._definition.shape.write(args, kwargs)
        job = msgspec.structs.replace(self._template, payload=text)
        definition = self._definition
        return definition.with_job_rules(job) if definition.has_job_rules else job

    @needs_loop("app.sync.enqueue_many({0.name}.new_job(…) for …)")
    async def enqueue_many(
        self: ConfiguredTask[P, R | Raisable], payloads: Iterable[object] | AsyncIterable[object]
    ) -> list[JobHandle[R]]:
        """Enqueue one job per payload in one transaction, streamed: all of them or none.

        For arguments that type checkers check: ``app.enqueue_many(send.new_job(n) for n in numbers)``.

        Args:
            payloads: Objects keyed by parameter name, or the values of a parameter called ``payload``.

        Returns:
            Handles in the order of the payloads. They have ``id`` and ``task`` at once, and the other fields after
            ``refresh``, ``wait`` or ``result``.

        Raises:
            InvalidJob: The task does not take a payload.

        """
        if isinstance(payloads, AsyncIterable):
            ids = await self._producer.enqueue_many(self._job_of(payload) async for payload in payloads)
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
        """Enqueue a job in the caller's transaction. The job exists if and only if the caller commits.

        Args:
            connection: A connection to the queue's database, of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy (also
                a session) or Django.
            args: Positional arguments of the task.
            kwargs: Keyword arguments of the task.

        Returns:
            A handle of the job, or an awaitable of it for an asynchronous connection.

        Raises:
            InvalidJob: The task does not take these arguments.
            SchemaMissing: The database has no schema yet.
            ConfigurationError: The caller could not commit on this connection.

        Example:
            with engine.begin() as connection:
                send.enqueue_in(connection, "someone@example.com")

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
    """Raise ``error`` for a task that another App declared, because its jobs go to the store of that App."""
    if task.producer is not app:
        raise error(
            f"{call}: task {task.name!r} is declared by another App, whose store has its jobs; call that App's method"
        )


def job_of(task: object, app: TaskProducer | None, call: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
    """Return the job that a call enqueues: a new job of the task, or the ``NewJob`` itself. Raises InvalidJob.

    ``app``: The App that must have declared the task; ``None`` accepts any. ``call``: The call, for errors.
    """
    if isinstance(task, NewJob):
        if args or kwargs:
            raise InvalidJob(f"{call}: a NewJob has its payload already; use arguments to a task only")
        return task
    return read_task(task, app, call).new_job(*args, **kwargs)


def read_task(task: object, app: TaskProducer | None, call: str) -> ConfiguredTask[..., Any]:
    """Return the task. Raises InvalidJob for anything else, and for a task that another App declared."""
    if not isinstance(task, ConfiguredTask):
        description = repr(task[:MAX_NAME_CHARACTERS]) if isinstance(task, str) else a_type(task)
        raise InvalidJob(
            f"{call}: {description} is not a task; use a task declared with @app.task, or a NewJob;"
            " to enqueue by a task's name write app.add_job(name, payload)"
        )
    if app is not None:
        refuse_foreign(task, app, call)
    return task


def definition_of(task: object) -> TaskDefinition | None:
    """Return the declaration of a task; ``None`` for anything else."""
    return task.definition if isinstance(task, ConfiguredTask) else None


def name_of(task: object) -> str:
    """Return the name of a task for an error message; ``app`` for anything else."""
    return task.name if isinstance(task, ConfiguredTask) else "app"


class Task(ConfiguredTask[P, R_co], Generic[P, R_co, Returned_co]):
    """A function declared as a task. Calling it calls the function; ``enqueue`` enqueues a job."""

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


@explain_foreign_attributes
class ContextTask(ConfiguredTask[P, R_co], Generic[P, R_co, Returned_co]):
    """A task whose first parameter is a Context. A direct call passes one; enqueue calls leave it out."""

    def __init__(self, definition: TaskDefinition, producer: TaskProducer) -> None:
        super().__init__(definition, producer)
        _copy_metadata(self, definition.function)

    if TYPE_CHECKING:

        def __call__(self, context: Context, /, *args: P.args, **kwargs: P.kwargs) -> Returned_co: ...
    else:
        # The Context may be passed by position or by name, which a type cannot express.
        __call__ = Task.__call__

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


def _copy_metadata(task: ConfiguredTask[..., object], function: object) -> None:
    """Copy name, docstring and attributes of the function to the task, except attributes that a task has itself.

    An object that is called, or a task of another App, needs its own attributes.
    """
    functools.update_wrapper(cast("Callable[..., object]", task), cast("Callable[..., object]", function), updated=())
    for name, value in getattr(function, "__dict__", {}).items():
        if not hasattr(task, name):
            setattr(task, name, value)
