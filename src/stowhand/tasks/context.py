"""The running attempt as its task sees it: ``Context`` (typed style) and ``helpers`` (folder style)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from stowhand.errors import ConfigurationError, Misuse, a_type, explain_foreign_attributes
from stowhand.jobs import limits
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.protocols.attempt import Attempt
from stowhand.tasks.options import EnqueueOptions, TaskSpec, read_spec

if TYPE_CHECKING:
    from stowhand.tasks.task import ConfiguredTask

P = ParamSpec("P")
T = TypeVar("T")
Values = Sequence[object] | Mapping[str, object] | None
"""Values for the placeholders of psycopg: in order, by name, or none."""


class JobLogger(Protocol):
    """Logger of one job. Further values are passed by keyword; a message with ``%s`` or ``{}`` is not formatted."""

    def debug(self, message: object, /, **fields: Any) -> None:
        """Details for debugging."""

    def info(self, message: object, /, **fields: Any) -> None:
        """The normal course of events."""

    def warning(self, message: object, /, **fields: Any) -> None:
        """Something unexpected that needs no immediate action."""

    def error(self, message: object, /, **fields: Any) -> None:
        """A failure that needs action."""


class ScopedJobLogger(JobLogger, Protocol):
    """Logger of a folder task. Fields may also be passed as one mapping, and ``scope`` adds fields to every line."""

    def debug(self, message: object, meta: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Details for debugging."""

    def info(self, message: object, meta: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """The normal course of events."""

    def warning(self, message: object, meta: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Something unexpected that needs no immediate action."""

    def error(self, message: object, meta: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """A failure that needs action."""

    def warn(self, message: object, meta: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Alias of ``warning``."""

    def scope(self, extra: Mapping[str, Any] | None = None, /, **fields: Any) -> ScopedJobLogger:
        """Return a logger that adds these fields to every line."""


LoggerFactory = Callable[[Job], JobLogger]
NewJobMaker = Callable[[str, object, EnqueueOptions], NewJob]
Enqueue = Callable[[NewJob], Awaitable[Job]]
Connect = Callable[[], AbstractAsyncContextManager[Any]]
"""Function that borrows a connection of the store, for a task's own statements."""


def no_connection() -> AbstractAsyncContextManager[Any]:
    """Raise ConfigurationError. This is the default for a handler whose store has no connections to borrow."""
    raise ConfigurationError("no connection to borrow: this handler has no PostgreSQL store")


@explain_foreign_attributes
class Context:
    """The running attempt of a job, passed to a task that has a parameter annotated ``Context``.

    @app.task
    async def export(ctx: Context, customer: int) -> None:
        for page in range(100):
            ctx.progress(page / 100)
    """

    __slots__ = ("_attempt", "_connect", "_logger", "_new_logger")

    def __init__(self, attempt: Attempt[Job], new_logger: LoggerFactory, connect: Connect = no_connection) -> None:
        self._attempt = attempt
        self._new_logger = new_logger
        self._connect = connect
        self._logger: JobLogger | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._attempt.record

    @property
    def attempt(self) -> int:
        """Number of this attempt, starting with 1."""
        return self._attempt.attempt

    @property
    def max_attempts(self) -> int:
        """Number of attempts after which the job fails permanently."""
        return self._attempt.max_attempts

    @property
    def lease(self) -> Lease:
        """The lease of this attempt. With its epoch and token, another system can reject writes of a stale attempt."""
        return self._attempt.lease

    @property
    def canceled(self) -> bool:
        """Whether the task should stop. A synchronous task checks this regularly."""
        return self._attempt.canceled

    async def until_canceled(self) -> str:
        """Wait until the task should stop, and return the reason. Call it only in asynchronous tasks."""
        return await self._attempt.until_canceled()

    @property
    def logger(self) -> JobLogger:
        """A logger whose lines name the task and the job's id."""
        if self._logger is None:
            self._logger = self._new_logger(self.job)
        return self._logger

    def log(self, message: object, **fields: Any) -> None:
        """Log a message about this job at level info.

        Args:
            message: The text of the line.
            fields: Further values, logged by name.

        """
        self.logger.info(message, **fields)

    def progress(self, done: float, text: str | None = None) -> None:
        """Report the progress of this attempt. May be called from any thread.

        ``stowhand jobs show`` and ``stowhand top`` show it within about a second. A retry keeps it; the end of the job
        clears it.

        Args:
            done: Completed part, 0 to 1.
            text: Description, at most 200 characters.

        Raises:
            ConfigurationError: Unless 0 <= done <= 1, or if the store keeps no progress (a remote store).

        Example:
            ctx.progress(40 / 100, "page 40 of 100")

        """
        self._attempt.progress(done, text)

    @overload
    def enqueue_after(self, task: ConfiguredTask[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def enqueue_after(self, task: NewJob, /) -> None: ...
    def enqueue_after(self, task: ConfiguredTask[..., object] | NewJob, /, *args: Any, **kwargs: Any) -> None:
        """Enqueue a job in the transaction that records the outcome of this attempt.

        The job exists if and only if the outcome is recorded, whatever the outcome is.

        Args:
            task: A task, or a NewJob.
            args: Positional arguments of the task.
            kwargs: Keyword arguments of the task.

        Raises:
            InvalidJob: The task does not take these arguments.

        Example:
            ctx.enqueue_after(send, "someone@example.com")

        """
        # This import is here, because task.py imports this module.
        from stowhand.tasks.task import job_of

        self._attempt.enqueue_after(job_of(task, None, "ctx.enqueue_after(task, …)", args, kwargs))

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Borrow a psycopg connection for your own statements, outside the job's transaction (PostgreSQL only).

        The end of the block commits; an error in the block rolls back. Call it only in asynchronous tasks.

        Raises:
            ConfigurationError: The store is not PostgreSQL.

        Example:
            async with ctx.connection() as connection:
                await connection.execute("update orders set paid = true where id = %s", [7])

        """
        return self._connect()


class Helpers:
    """Second argument of a folder task ``async def task(payload, helpers)``."""

    def __init__(self, context: Context, enqueue: Enqueue, new_job: NewJobMaker) -> None:
        self.job = context.job
        """The job as it was claimed."""
        self._context = context
        self._enqueue = enqueue
        self._new_job = new_job

    @property
    def logger(self) -> ScopedJobLogger:
        """A logger whose lines name the task and the job's id."""
        return cast("ScopedJobLogger", self._context.logger)

    async def add_job(self, task: str, payload: object = None, **spec: Unpack[TaskSpec]) -> Job:
        """Enqueue a job at once, outside this job's transaction, and return it. Raises InvalidJob, StoreError."""
        return await self._enqueue(limits.check(self._new_job(task, payload, read_spec(spec))))

    async def with_pg_client(self, callback: Callable[[Any], Awaitable[T]]) -> T:
        """Call ``await callback(connection)`` with a psycopg connection of the pool, and return its result.

        The connection commits when the callback returns, and rolls back when it raises. It is outside the job's own
        transaction.

        Raises:
            ConfigurationError: The store is not PostgreSQL, or the callback returned nothing to await.

        """
        async with self.connection() as connection:
            result = callback(connection)
            if not inspect.isawaitable(result):
                raise ConfigurationError(
                    f"with_pg_client: the callback returned {a_type(result)}, which cannot be awaited; pass an async"
                    " function in an async task, and a plain function in a def task"
                )
            return await result

    def connection(self) -> AbstractAsyncContextManager[Any]:
        """Borrow a connection, like ``Context.connection``."""
        return self._context.connection()

    async def query(self, sql: object, values: Values = None) -> list[dict[str, Any]]:
        """Run one statement in a transaction of its own; return its rows as dicts by column.

        Args:
            sql: Text, or a composed statement of ``psycopg.sql``.
            values: Values for the placeholders: a sequence for ``%s``, a mapping for ``%(name)s``.

        Raises:
            ConfigurationError: The store is not PostgreSQL.

        """
        # This import is here, because tasks may be declared where no driver is installed.
        from stowhand.stores.database.link import ask

        return await self.with_pg_client(lambda connection: ask(connection, sql, values))


class BlockingHelpers:
    """Second argument of a folder task ``def task(payload, helpers)``.

    It is created on the worker's loop. Its methods are called in the task's thread: they run those of ``Helpers`` on
    the loop, and wait for them.
    """

    def __init__(self, helpers: Helpers) -> None:
        self.job = helpers.job
        """The job as it was claimed."""
        self._helpers = helpers
        self._loop = asyncio.get_running_loop()

    @property
    def logger(self) -> ScopedJobLogger:
        """A logger whose lines name the task and the job's id."""
        return self._helpers.logger

    def add_job(self, task: str, payload: object = None, **spec: Unpack[TaskSpec]) -> Job:
        """Enqueue a job at once, wait until it is committed, and return it. Raises InvalidJob, StoreError."""
        return wait_for(self._loop, self._helpers.add_job(task, payload, **spec))

    def with_pg_client(self, callback: Callable[[Any], T]) -> T:
        """Call a synchronous callback with a synchronous connection, like ``Helpers.with_pg_client``.

        Raises:
            ConfigurationError: The store is not PostgreSQL.
            Misuse: The callback is asynchronous.

        """
        with SyncProxy(self._helpers.connection(), self._loop) as connection:
            result = callback(connection)
            if inspect.iscoroutine(result):
                result.close()
                raise Misuse("with_pg_client: an async callback would never run; pass a plain function in a def task")
            return result

    def query(self, sql: object, values: Values = None) -> list[dict[str, Any]]:
        """Run one statement like ``Helpers.query``."""
        return wait_for(self._loop, self._helpers.query(sql, values))


def wait_for(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for its result. In the loop's own thread, it would wait for ever."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


_PLAIN_TYPES = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)
"""Types of results that are never asynchronous, and need no proxy."""


class SyncProxy:
    """Synchronous proxy of an asynchronous object: a psycopg ``AsyncConnection``, its cursors and transactions.

    Its methods run on the loop and wait for the result. ``with`` and ``for`` replace ``async with`` and ``async for``.
    """

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._on_loop(lambda: attribute(*args, **kwargs))

        return call

    def __enter__(self) -> Any:
        return self._on_loop(self._inner.__aenter__)

    def __exit__(self, *exception: object) -> Any:
        return self._on_loop(lambda: self._inner.__aexit__(*exception))

    def __iter__(self) -> Iterator[Any]:
        items = aiter(self._inner)

        async def next_item() -> tuple[Any, ...]:
            """Return a tuple of the next item, which may itself be false; an empty tuple at the end."""
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        while item := wait_for(self._loop, next_item()):
            yield item[0]

    def _on_loop(self, call: Callable[[], Any]) -> Any:
        """Call on the loop, because psycopg's objects belong to it. Return a proxy of an asynchronous result."""

        async def call_and_await() -> Any:
            result = call()
            return await result if inspect.isawaitable(result) else result

        result = wait_for(self._loop, call_and_await())
        if isinstance(result, _PLAIN_TYPES):
            return result
        is_asynchronous = hasattr(result, "__aenter__") or hasattr(result, "__aiter__")
        return SyncProxy(result, self._loop) if is_asynchronous else result
