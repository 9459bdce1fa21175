"""The running attempt of a task: ``Context`` and ``SyncContext`` (typed style), ``helpers`` (folder style)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from stowhand.clock import SystemClock, sleep_blocking
from stowhand.errors import ConfigurationError, Misuse, a_type, explain_foreign_attributes
from stowhand.jobs import limits
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Raisable
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.retry import AnyBackoff
from stowhand.tasks.options import EnqueueOptions, TaskSpec, read_spec

if TYPE_CHECKING:
    from stowhand.tasks.task import ConfiguredTask
    from stowhand.tasks.workflow import ChildFailed, Children, Failures, StepRecorder, Workflow

P = ParamSpec("P")
T = TypeVar("T")
_CLOCK = SystemClock()
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


class AttemptContext:
    """What ``Context`` and ``SyncContext`` have in common: the running attempt of a job."""

    __slots__ = ("_attempt", "_logger", "_new_logger", "_recorder")

    def __init__(self, attempt: Attempt[Job], new_logger: LoggerFactory, recorder: StepRecorder | None = None) -> None:
        self._attempt = attempt
        self._new_logger = new_logger
        self._recorder = recorder
        self._logger: JobLogger | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._attempt.record

    @property
    def attempt(self) -> int:
        """Number of this attempt, starting with 1. A wait of a workflow starts the count again."""
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
        self._attempt.enqueue_after(_job_of("ctx.enqueue_after", task, args, kwargs))

    def _workflow(self) -> Workflow:
        """Return the steps of this attempt. Raises ConfigurationError where none can be recorded."""
        control = control_of(self._attempt)
        if control.workflow is None:
            if self._recorder is None:
                raise ConfigurationError("ctx.step: this handler has no store to record steps in; use a task of an App")
            # This import is here, because workflow.py reads values by the types of tasks, whose shape has a Context.
            from stowhand.tasks.workflow import Workflow

            control.workflow = Workflow(self._attempt, self._recorder)
        workflow: Workflow = control.workflow
        return workflow


@explain_foreign_attributes
class Context(AttemptContext):
    """The running attempt of a job, passed to a task that has a parameter annotated ``Context``.

    @app.task
    async def export(ctx: Context, customer: int) -> None:
        for page in range(100):
            ctx.progress(page / 100)

    Its asynchronous methods are for ``async def`` tasks; a ``def`` task takes a ``SyncContext``.
    """

    __slots__ = ("_connect",)

    def __init__(
        self,
        attempt: Attempt[Job],
        new_logger: LoggerFactory,
        connect: Connect = no_connection,
        recorder: StepRecorder | None = None,
    ) -> None:
        super().__init__(attempt, new_logger, recorder)
        self._connect = connect

    async def until_canceled(self) -> str:
        """Wait until the task should stop, and return the reason. Call it only in asynchronous tasks."""
        return await self._attempt.until_canceled()

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

    # -- workflows -------------------------------------------------------------------------------

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        attempts: int = 1,
        backoff: AnyBackoff | str | None = None,
        connection: object = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        attempts: int = 1,
        backoff: AnyBackoff | str | None = None,
        connection: object = None,
        **kwargs: Any,
    ) -> T: ...
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        attempts: int = 1,
        backoff: AnyBackoff | str | None = None,
        connection: object = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function and record its value, or return the value that an earlier attempt has recorded.

        The value is stored as JSON, and is returned in the type that the function is annotated to return, in this
        attempt as in later ones. Code between steps runs again in every attempt. If the process dies after the function
        and before the value is recorded, the function runs again, unless ``connection`` makes both one transaction.

        Args:
            name: Name of the step. A name that is used again in the attempt becomes ``name#2``. Rename a step to run it
                again in jobs that have recorded it.
            function: The function or task to call; a plain function blocks the loop while it runs.
            args: Its positional arguments.
            attempts: Number of calls of the function in this attempt, in case it raises.
            backoff: Delay between these calls, as for a task; by default 1 s, 2 s, 4 s … 60 s.
            connection: A connection or session of yours with an open transaction, as for ``enqueue_in``: the value is
                recorded in it, so it exists if and only if you commit. The transaction must be shorter than the lease.
            kwargs: Keyword arguments of the function.

        Returns:
            The value.

        Raises:
            InvalidJob: The value cannot be written as JSON, or has more than 1 MiB. The job fails permanently.
            LeaseLost: The attempt has lost its lease; nothing was recorded.

        Example:
            payment = await ctx.step("charge", charge, order_id, attempts=3)

        """
        step = await self._workflow().start(name, function, attempts, backoff)
        with step.running():
            while not step.is_recorded:
                try:
                    value = function(*args, **kwargs)
                    if inspect.isawaitable(value):
                        value = await value
                except Exception as error:  # noqa: BLE001 - raised again after the last call
                    await _CLOCK.sleep(step.delay_after(error))
                else:
                    await step.record(value, connection)
        return step.value

    async def sleep(self, delay: Duration) -> None:
        """End the attempt, and continue after this time. The job holds no slot, lease or connection meanwhile.

        Args:
            delay: Seconds, a timedelta, or a phrase such as "1d". The first attempt that gets here records the end.

        """
        await self._workflow().sleep(delay, None, "ctx.sleep")

    async def sleep_until(self, time: datetime) -> None:
        """End the attempt, and continue at this time, which has a time zone. As ``sleep``."""
        await self._workflow().sleep(None, time, "ctx.sleep_until")

    @overload
    async def event(self, name: str, kind: type[T], /, *, timeout: Duration | None = None) -> T: ...
    @overload
    async def event(self, name: str, kind: None = None, /, *, timeout: Duration | None = None) -> Any: ...
    async def event(self, name: str, kind: type[Any] | None = None, /, *, timeout: Duration | None = None) -> Any:
        """Return the payload of an event; until it is emitted, the attempt ends and the job waits.

        Events are emitted by ``app.emit``, by ``emit_event`` in SQL, and by ``handle.send`` for one job. The first one
        with a name counts, even if it was emitted before.

        Args:
            name: Name of the event, such as ``f"paid:{order_id}"``.
            kind: Type of the payload; ``None``: plain JSON values.
            timeout: Longest wait; ``None``: without end.

        Raises:
            TimeoutError: The event was not emitted in time. This is recorded: later attempts raise it too.

        Example:
            paid = await ctx.event(f"paid:{order_id}", timeout="7d")

        """
        return await self._workflow().event(name, kind, timeout)

    async def call(self, name: str, task: ConfiguredTask[P, T | Raisable], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a task as a child job and return its result; the attempt ends and the job waits for it.

        Args:
            name: Name of the step.
            task: The task; ``task.options(queue="slow")`` for options of the child.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Raises:
            ChildrenFailed: The child has failed or was canceled. A retry of this job creates it anew.

        """
        child = _child_of_call(task, args, kwargs)
        results = await self._workflow().children("ctx.call", name, child, "raise")
        return cast("T", results[0])

    @overload
    async def map(
        self,
        name: str,
        task: ConfiguredTask[..., T | Raisable],
        items: Iterable[object],
        /,
        *,
        failures: Literal["raise"] = "raise",
    ) -> list[T]: ...
    @overload
    async def map(
        self,
        name: str,
        task: ConfiguredTask[..., T | Raisable],
        items: Iterable[object],
        /,
        *,
        failures: Literal["collect"],
    ) -> list[T | ChildFailed]: ...
    @overload
    async def map(
        self, name: str, jobs: Iterable[NewJob], /, *, failures: Literal["raise", "collect"] = "raise"
    ) -> list[Any]: ...
    async def map(
        self, name: str, task: object, items: Iterable[object] | None = None, /, *, failures: Failures = "raise"
    ) -> list[Any]:
        """Run a task once for each item, as child jobs, and return their results in the order of the items.

        The children are created in the transaction that ends this attempt, so each exists once. They run on any worker,
        with their own limits and queues. Canceling this job cancels them.

        Args:
            name: Name of the step.
            task: The task, which takes an item as its only argument; or jobs instead of task and items.
            items: The items.
            failures: ``"raise"``, or ``"collect"`` to get a ``ChildFailed`` in the place of each failed child.

        Raises:
            ChildrenFailed: All children have ended, and some have failed or were canceled. A retry of this job creates
                those anew.

        Example:
            parts = await ctx.map("pack", pack, [1, 2, 3])

        """
        return await self._workflow().children("ctx.map", name, _children_of_map(task, items), failures)


class SyncContext(AttemptContext):
    """The running attempt of a job, passed to a ``def`` task that has a parameter annotated ``SyncContext``.

    @app.task
    def order(ctx: SyncContext, order_id: int) -> str:
        payment = ctx.step("charge", charge, order_id)
        ctx.sleep("1d")
        return payment

    It has the methods of ``Context``, without ``await``.
    """

    __slots__ = ("_loop",)

    def __init__(
        self,
        attempt: Attempt[Job],
        new_logger: LoggerFactory,
        recorder: StepRecorder | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(attempt, new_logger, recorder)
        self._loop = loop

    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        attempts: int = 1,
        backoff: AnyBackoff | str | None = None,
        connection: object = None,
        **kwargs: Any,
    ) -> T:
        """Run a function in this thread and record its value, or return the recorded one, like ``Context.step``."""
        step = self._run(lambda workflow: workflow.start(name, function, attempts, backoff))
        with step.running():
            while not step.is_recorded:
                try:
                    value = function(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - raised again after the last call
                    sleep_blocking(step.delay_after(error))
                else:
                    if inspect.iscoroutine(value):
                        value.close()
                        raise Misuse(f"ctx.step: {name!r} is an async function; use it in an async def task")
                    if connection is None:
                        self._run(lambda workflow: step.record(value, None))  # noqa: B023 - called at once
                    else:  # in this thread: a connection of sqlite3 belongs to the thread that has opened it
                        step.record_in(self._run(lambda workflow: workflow.part()), value, connection)
        return cast("T", step.value)

    def sleep(self, delay: Duration) -> None:
        """End the attempt, and continue after this time, like ``Context.sleep``."""
        self._run(lambda workflow: workflow.sleep(delay, None, "ctx.sleep"))

    def sleep_until(self, time: datetime) -> None:
        """End the attempt, and continue at this time, like ``Context.sleep_until``."""
        self._run(lambda workflow: workflow.sleep(None, time, "ctx.sleep_until"))

    @overload
    def event(self, name: str, kind: type[T], /, *, timeout: Duration | None = None) -> T: ...
    @overload
    def event(self, name: str, kind: None = None, /, *, timeout: Duration | None = None) -> Any: ...
    def event(self, name: str, kind: type[Any] | None = None, /, *, timeout: Duration | None = None) -> Any:
        """Return the payload of an event, like ``Context.event``."""
        return self._run(lambda workflow: workflow.event(name, kind, timeout))

    def call(self, name: str, task: ConfiguredTask[P, T | Raisable], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a task as a child job and return its result, like ``Context.call``."""
        child = _child_of_call(task, args, kwargs)
        results = self._run(lambda workflow: workflow.children("ctx.call", name, child, "raise"))
        return cast("T", results[0])

    @overload
    def map(
        self,
        name: str,
        task: ConfiguredTask[..., T | Raisable],
        items: Iterable[object],
        /,
        *,
        failures: Literal["raise"] = "raise",
    ) -> list[T]: ...
    @overload
    def map(
        self,
        name: str,
        task: ConfiguredTask[..., T | Raisable],
        items: Iterable[object],
        /,
        *,
        failures: Literal["collect"],
    ) -> list[T | ChildFailed]: ...
    @overload
    def map(
        self, name: str, jobs: Iterable[NewJob], /, *, failures: Literal["raise", "collect"] = "raise"
    ) -> list[Any]: ...
    def map(
        self, name: str, task: object, items: Iterable[object] | None = None, /, *, failures: Failures = "raise"
    ) -> list[Any]:
        """Run a task once for each item, as child jobs, like ``Context.map``."""
        children = _children_of_map(task, items)
        return self._run(lambda workflow: workflow.children("ctx.map", name, children, failures))

    def _run(self, call: Callable[[Workflow], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the worker's loop and wait for it."""
        return wait_for(self._loop, call(self._workflow()))


def _job_of(
    call: str, task: ConfiguredTask[..., Any] | NewJob, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> NewJob:
    # This import is here, because task.py imports this module.
    from stowhand.tasks.task import job_of

    return job_of(task, None, f"{call}(task, …)", args, kwargs)


def _function_of(task: object) -> Callable[..., Any] | None:
    """Return the function of a task; ``None`` for a ``NewJob``."""
    from stowhand.tasks.task import definition_of

    definition = definition_of(task)
    return None if definition is None else definition.function


def _child_of_call(task: ConfiguredTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Children:
    from stowhand.tasks.workflow import Children

    job = _job_of("ctx.call", task, args, kwargs)
    return Children(1, lambda place: job, _function_of(task), are_written=not isinstance(task, NewJob))


def _children_of_map(task: object, items: Iterable[object] | None) -> Children:
    from stowhand.tasks.workflow import Children

    if items is not None:
        arguments = list(items)
        return Children(
            len(arguments),
            lambda place: _job_of("ctx.map", cast("ConfiguredTask[..., Any]", task), (arguments[place],), {}),
            _function_of(task),
            are_written=True,
        )
    if not isinstance(task, Iterable):
        raise Misuse(f"ctx.map: got {a_type(task)} without items; use a task and items, or a list of jobs")
    jobs = list(task)
    for job in jobs:
        if not isinstance(job, NewJob):
            raise Misuse(f"ctx.map: got {a_type(job)} in the list of jobs; use task.new_job(…)")
    return Children(len(jobs), jobs.__getitem__)


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
