"""The App: declare tasks, enqueue jobs, embed a worker."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from stowhand.app.app_worker import AppFlow, AppWorker, read_flows
from stowhand.app.built_in import built_in
from stowhand.app.drain import ImmediateRunner
from stowhand.app.loop_stores import LoopStores
from stowhand.app.options import StoreKeywords, WorkerKeywords, worker_options
from stowhand.app.own_store import OwnStore
from stowhand.app.results import gathered, listed
from stowhand.app.start import (
    attempt_logger,
    report_listening,
    report_worker_error,
    reserve_connections,
    store_at,
    traced,
    traced_events,
    warn_of_long_tasks,
    warn_of_tasks_without_worker,
    warn_of_unknown_queues,
)
from stowhand.app.store import AppStore, checked_store
from stowhand.app.store_method import StoreMethod
from stowhand.app.sync import Sync
from stowhand.clock import Clock
from stowhand.cron.crontab import refuse_duplicates
from stowhand.cron.item import Match, ParsedItem
from stowhand.cron.scheduler import Scheduler
from stowhand.cron.sources import CronKeywords, declare_item, declared, items_of, schedulable
from stowhand.errors import ConfigurationError, InvalidJob, explain_foreign_attributes
from stowhand.events import Events, Settled
from stowhand.jobs import limits
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lifecycle import Raisable
from stowhand.protocols.handler import Middleware
from stowhand.protocols.operator import Operator
from stowhand.protocols.producer import AsyncConnection, Connection, Producer
from stowhand.protocols.queue_store import Administrator, Inspector, QueueStore, lent_connection, require_part
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import MEMORY_URL
from stowhand.tasks.context import Context, LoggerFactory
from stowhand.tasks.declaration_site import declaration_errors
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.handled_jobs import HandledJobs
from stowhand.tasks.job_handle import JobHandle
from stowhand.tasks.loader import import_modules, read_modules
from stowhand.tasks.middleware import AroundThread, OnEnqueue, read_middleware
from stowhand.tasks.needs_loop import needs_loop
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.registry import Registry, TaskOptions, define
from stowhand.tasks.resource import AnyContextManager, Factory
from stowhand.tasks.task import ConfiguredTask, ContextTask, Task, definition_of, job_of, read_task, refuse_foreign
from stowhand.tasks.workflow import check_event_name, encode_payload
from stowhand.worker.host import refuse_inside
from stowhand.worker.policy import Policy
from stowhand.worker.worker import Worker

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

P = ParamSpec("P")
R = TypeVar("R")
_REFUSED_IN_IMMEDIATE = (
    "enqueue_in is not allowed within app.immediate(), because a job runs after the commit of its transaction. Use the"
    " fixture `jobs`, and call jobs.drain() after the commit; or enqueue the job after the commit:"
    " await task.enqueue(…), task.enqueue_sync(…)"
)


@explain_foreign_attributes
class App:
    """Declares tasks, enqueues their jobs, and makes workers that run them.

    An App connects to its store when it first needs it, once per event loop.

        app = App("postgresql:///shop")

        @app.task(serial="mail")
        async def send(to: str, subject: str = "Hello") -> None: ...

        await send.enqueue("someone@example.com")
        send.enqueue_sync("someone@example.com")  # from a script

    Args:
        url: URL of the store. Without it, the App uses ``STOWHAND_CONNECTION``, ``stowhand.toml``, ``DATABASE_URL``,
            ``PGDATABASE``, or else the file ``stowhand.db``, like the command line. Options that are not passed come
            from there too. ``memory://`` is for experiments and tests.
        store: A store object to use on every event loop, instead of ``url``.
        include: Modules that declare tasks, which a worker imports before it starts: ``"shop.mail"``, or
            ``"shop.tasks.*"`` for every module of a package.
        logger_factory: Function of a job that returns the logger of its attempt.
        traces: Makes OpenTelemetry spans of enqueue calls and attempts.
        around_thread: Function that returns a context manager, entered in the thread of each attempt of a ``def`` task.
            It releases what a thread must not keep from one job to the next.
        middleware: Functions of a handler that return a handler, around every attempt. The first is outermost.
        on_enqueue: Functions of a ``NewJob`` that return one, applied to every job that this App enqueues.
        flows: ``Flow`` objects, whose workers every worker of this App runs beside its own jobs.
        options: Fields of ``StoreOptions``, and ``preset``.

    Raises:
        ConfigurationError: An argument is invalid.

    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: QueueStore | None = None,
        include: Iterable[str] = (),
        logger_factory: LoggerFactory | None = None,
        traces: Traces | None = None,
        around_thread: AroundThread | None = None,
        middleware: Iterable[Middleware] = (),
        on_enqueue: Iterable[OnEnqueue] = (),
        flows: Iterable[AppFlow] = (),
        **options: Unpack[StoreKeywords],
    ) -> None:
        self.registry, self.traces = Registry(read_middleware(around_thread, middleware, on_enqueue)), traces
        self.sync = Sync(self)
        """The App's methods for code without an event loop."""
        self._app_store = AppStore(url, store, options)
        self._modules = read_modules(include)
        self.flows = read_flows(flows)
        """Flows whose workers run beside the App's worker."""
        self._new_logger = logger_factory or attempt_logger
        self._stores = LoopStores(self._app_store.make, self._traced, self._app_store.maker_to_read)
        self.handled = self._new_handled_jobs(self._stores)
        """Access to the App's jobs, for handles."""
        self._immediate: ImmediateRunner | None = None
        self._handlers: builtins.list[TaskHandler] = []
        self.cron_items: tuple[ParsedItem, ...] = ()
        """Recurring items that ``cron`` declared."""

    # -- declaring -------------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]  # the more specific overload comes first
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> ContextTask[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        cron: str | Match | None = None,
        **options: Unpack[TaskOptions],
    ) -> Declaring: ...
    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        cron: str | Match | None = None,
        **options: Any,
    ) -> Any:
        """Declare a function as a task. Calling the task still calls the function.

        Args:
            function: The function, if used as ``@app.task`` without arguments.
            name: Name of the task; by default the function's name.
            cron: Cron pattern. At every matching minute a job without arguments is enqueued, as by ``App.cron``.
            options: Fields of ``TaskOptions``: defaults for its jobs (``serial``, ``priority``, …), and
                options of its attempts (``timeout``, ``backoff``, ``executor``, ``mismatch``, …).

        Returns:
            The task, or a decorator that returns it.

        Raises:
            ConfigurationError: The function cannot be a task, or an option is invalid.
            DuplicateTask: Another task has this name.

        Example:
            @app.task(timeout="30s", max_attempts=5)
            async def send(to: str) -> None: ...

        """

        def declare(function: Callable[..., Any]) -> Task[..., Any, Any] | ContextTask[..., Any, Any]:
            with declaration_errors():
                if isinstance(on_failure := options.get("on_failure"), ConfiguredTask):
                    refuse_foreign(on_failure, self, "on_failure", ConfigurationError)
                definition = define(function, name, cast("TaskOptions", options))
                is_replaced = definition.name in self.registry
                self.registry.add(definition)
            if is_replaced:  # a cell of a notebook runs again, and declares its recurring items again
                self.cron_items = tuple(item for item in self.cron_items if item.identifier != definition.name)
            kind = ContextTask if definition.shape.injected.context is not None else Task
            task: Task[..., Any, Any] | ContextTask[..., Any, Any] = kind(definition, self)
            if cron is not None:
                self.cron(cron, task)
            return task

        return declare if function is None else declare(function)

    def discover(self) -> None:
        """Import the modules of ``include``, once. A worker and ``add_job`` call this.

        Raises:
            ConfigurationError: A module cannot be imported.

        """
        modules, self._modules = self._modules, ()
        try:
            import_modules(modules)
        except BaseException:
            self._modules = modules
            raise

    def cron(
        self,
        pattern: str | Match,
        task: ConfiguredTask[..., object] | str,
        payload: Mapping[str, object] | None = None,
        *,
        identifier: str | None = None,
        tz: str | None = None,
        **options: Unpack[CronKeywords],
    ) -> None:
        """Declare a recurring job: a worker enqueues a job of the task at every minute that matches the pattern.

        Args:
            pattern: Five fields as in a crontab, also with names and macros such as ``@daily``; or a function of a
                ``CronDate`` that returns whether a job is due.
            task: A task, or its name.
            payload: Arguments of the jobs, by parameter name.
            identifier: Permanent name of the item; by default the task's name.
            tz: Time zone of the pattern, such as ``Europe/Berlin``; by default UTC.
            options: Options of the jobs (``serial``, ``priority``, …), and ``backfill_period``.

        Raises:
            ConfigurationError: The item is invalid, or the task does not take the payload.

        Example:
            app.cron("0 4 * * *", send_report, {"kind": "daily"}, tz="Europe/Berlin")

        """
        with declaration_errors():
            if isinstance(task, ConfiguredTask):
                refuse_foreign(task, self, "App.cron", ConfigurationError)
            item = declare_item(pattern, task, payload, identifier, tz, options)
            if isinstance(task, str):
                (item,) = declared([item], self.registry)
            self.cron_items = refuse_duplicates((*self.cron_items, item))

    @contextmanager
    def override(self, factory: Callable[[], AnyContextManager[object]], value: object) -> Iterator[None]:
        """Replace a resource by a value within the block, in tests. A worker that starts there does not open it.

        Args:
            factory: The factory that tasks pass to ``resource``.
            value: The value that tasks receive.

        Raises:
            ConfigurationError: No task uses this factory.

        """
        self.discover()
        with ExitStack() as stack:
            for resource in self.registry.resources_made_by(factory):
                stack.enter_context(resource.replaced(value))
            yield

    # -- enqueueing ------------------------------------------------------------------------------

    @overload
    async def enqueue(
        self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, task: NewJob, /) -> JobHandle[Any]: ...
    @needs_loop("app.sync.enqueue(task, …)")
    async def enqueue(self, task: ConfiguredTask[..., Any] | NewJob, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue and commit one job that calls the task with these arguments, like ``Task.enqueue``.

        Args:
            task: A task, or a ``NewJob``, which is enqueued unchanged.
            args: Positional arguments of the task.
            kwargs: Keyword arguments of the task.

        Returns:
            A handle of the job.

        Raises:
            InvalidJob: The task does not take these arguments or this payload.
            OutcomeUnknown: The connection was lost during the commit; the job may exist.
            SchemaMissing: The store has no schema yet.
            StoreUnreachable: The store does not answer.

        """
        job = job_of(task, self, "enqueue(task, …)", args, kwargs)
        return await self.handled.enqueue(job, definition_of(task))

    if TYPE_CHECKING:

        @overload
        async def enqueue_and_wait(
            self, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
        ) -> R: ...
        @overload
        async def enqueue_and_wait(
            self, task: ConfiguredTask[..., R | Raisable], /, *args: Any, timeout: Duration | None, **kwargs: Any
        ) -> R: ...
        async def enqueue_and_wait(
            self, task: ConfiguredTask[..., R | Raisable], /, *args: Any, **kwargs: Any
        ) -> R: ...
    else:

        @needs_loop("app.sync.enqueue_and_wait(task, …)")
        async def enqueue_and_wait(self, task, /, *args, timeout=None, **kwargs):
            """Enqueue a job and wait for its result, like ``Task.enqueue_and_wait``."""
            declared_task = read_task(task, self, "enqueue_and_wait(task, …)")
            return await declared_task.enqueue_and_wait(*args, timeout=timeout, **kwargs)

    @needs_loop("app.sync.enqueue_many(…)")
    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> builtins.list[int]:
        """Enqueue any number of jobs in one transaction, streamed: all of them or none.

        ``await app.gather(ids)`` waits for their results. ``Task.enqueue_many`` returns typed handles.

        Args:
            jobs: Jobs of any tasks, such as ``send.new_job("someone@example.com")``.

        Returns:
            The ids of the jobs, in the order of ``jobs``.

        Raises:
            InvalidJob: A job is invalid; the message has its number.

        """
        producer = (await self._stores.open()).jobs
        if isinstance(jobs, AsyncIterable):
            ids = await producer.enqueue_many(_check_each_async(jobs, self._check))
        else:
            ids = await producer.enqueue_many(_check_each(jobs, self._check))
        if self._immediate is not None:
            await self._immediate.run(len(ids))
        return ids

    @needs_loop("app.sync.add_jobs(…)")
    async def add_jobs(self, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue jobs like ``enqueue_many``, and return them. For hundreds of jobs, not for millions."""
        checked = list(_check_each(jobs, self._check))
        enqueued = await (await self._stores.open()).jobs.add_jobs(checked)
        return enqueued if self._immediate is None else await self._immediate.ran(enqueued)

    @overload
    def enqueue_in(
        self, connection: AsyncConnection, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[JobHandle[R]]: ...
    @overload
    def enqueue_in(self, connection: AsyncConnection, task: NewJob, /) -> Awaitable[JobHandle[Any]]: ...
    @overload
    def enqueue_in(
        self, connection: Connection, task: ConfiguredTask[P, R | Raisable], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    @overload
    def enqueue_in(self, connection: Connection, task: NewJob, /) -> JobHandle[Any]: ...
    def enqueue_in(
        self, connection: object, task: ConfiguredTask[..., Any] | NewJob, /, *args: Any, **kwargs: Any
    ) -> JobHandle[Any] | Awaitable[JobHandle[Any]]:
        """Enqueue a job in the caller's transaction, like ``Task.enqueue_in``."""
        job = job_of(task, self, "enqueue_in(connection, task, …)", args, kwargs)
        return self.handled.enqueue_in(connection, job, definition_of(task))

    @needs_loop("app.sync.emit(…)")
    async def emit(self, event: str, payload: object = None) -> bool:
        """Emit an event: jobs that wait for it (``ctx.event``) go on, now or when they get there.

        Args:
            event: Name of the event, such as ``"paid:42"``.
            payload: JSON value that ``ctx.event`` returns.

        Returns:
            Whether this is the first event with this name. Only the first counts; events are kept for 30 days.

        Raises:
            InvalidJob: The payload cannot be written as JSON, or has more than 1 MiB.

        Example:
            await app.emit(f"paid:{order_id}", {"amount": 30})

        """
        return await self.handled.emit(event, payload, None)

    @overload
    def emit_in(self, connection: AsyncConnection, event: str, payload: object = None) -> Awaitable[bool]: ...
    @overload
    def emit_in(self, connection: Connection, event: str, payload: object = None) -> bool: ...
    def emit_in(self, connection: object, event: str, payload: object = None) -> bool | Awaitable[bool]:
        """Emit an event in the caller's transaction: it is emitted if and only if the caller commits.

        As ``emit``, with the connections of ``Task.enqueue_in``.
        """
        check_event_name("app.emit_in", event)
        store = self.any_store()
        workflows = require_part(store, "workflows", store.workflows)
        return workflows.emit_in(connection, event, encode_payload(event, payload))

    @overload
    async def job(self, job_id: int) -> JobHandle[Any]: ...
    @overload
    async def job(self, job_id: int, task: ConfiguredTask[..., R | Raisable]) -> JobHandle[R]: ...
    @needs_loop("app.sync.job(…)")
    async def job(self, job_id: int, task: ConfiguredTask[..., Any] | None = None) -> JobHandle[Any]:
        """Return a handle of the job with this id.

        Args:
            job_id: Id of the job.
            task: Its task, which supplies the type of the result.

        Raises:
            UnknownJob: There never was such a job.
            ResultNotKept: The job is not in the store: it has finished or was removed, or was never committed.
            InvalidJob: The job is of another task.

        """
        if task is not None:
            refuse_foreign(task, self, "App.job")
        return await self.handled.find(job_id, None if task is None else task.definition)

    @overload
    async def gather(
        self, jobs: Iterable[JobHandle[R]], timeout: Duration | None = None, *, return_exceptions: Literal[False] = ...
    ) -> builtins.list[R]: ...
    @overload
    async def gather(
        self,
        jobs: Iterable[JobHandle[Any] | Job | int],
        timeout: Duration | None = None,
        *,
        return_exceptions: bool = ...,
    ) -> builtins.list[Any]: ...
    @needs_loop("app.sync.gather(…)")
    async def gather(
        self, jobs: Iterable[Any], timeout: Duration | None = None, *, return_exceptions: bool = False
    ) -> builtins.list[Any]:
        """Wait for many jobs and return their results in order, like ``stowhand.gather``.

        Args:
            jobs: Handles, jobs or ids, as ``enqueue_many`` and ``add_jobs`` return them.
            timeout: Seconds, a timedelta or a phrase ("30s"); ``None`` waits without limit.
            return_exceptions: Whether errors are returned in the list instead of raised.

        Raises:
            UnknownJob: There never was a job with such an id.
            TimeoutError, JobFailed: As ``JobHandle.result``, with all its other errors.

        """
        refuse_inside("gather()")
        handled = self.handled
        calls = [partial(handled.result, job, timeout) for job in listed(jobs, "app.gather")]
        return await gathered(calls, return_exceptions=return_exceptions)

    @needs_loop("app.sync.add_job(…)")
    async def add_job(self, task: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Job:
        """Enqueue a job by the name of its task, which may be declared in another program.

        Args:
            task: Name of the task.
            payload: JSON value, by default an object keyed by parameter name; ``None`` becomes ``{}``.
            options: Fields of ``EnqueueOptions``.

        Returns:
            The job.

        Raises:
            InvalidJob: An option is invalid, or a task that is declared here does not take the payload.

        """
        self.discover()
        return await self._enqueue(self.registry.new_job(task, payload, options))

    async def _enqueue(self, job: NewJob) -> Job:
        checked = self._check(job)
        enqueued = await (await self._stores.open()).jobs.enqueue(checked)
        return enqueued if self._immediate is None else (await self._immediate.ran([enqueued]))[0]

    def _enqueue_in(self, connection: object, job: NewJob) -> Job | Awaitable[Job]:
        if self._immediate is not None:
            raise ConfigurationError(_REFUSED_IN_IMMEDIATE)
        checked = self._check(job)
        store = self._traced(self.any_store())
        transactions = require_part(store, "transactions", store.transactions)
        return transactions.enqueue_in(connection, checked)

    def _check(self, job: NewJob) -> NewJob:
        checked = limits.check_options(job)
        checked = self.registry.apply_on_enqueue(checked)
        limits.refuse_built_in(checked)
        task = self.registry.find(checked.task)
        # A payload that the task has just written, as by ``Task.enqueue``, was checked then.
        if task is None or checked.payload is not task.shape.written:
            limits.check_payload(checked)
            if task is not None:
                task.shape.check(checked.payload)
        return checked

    # -- reading and changing jobs; the parts of the open store have further methods ------------------

    get = StoreMethod(Producer.get)
    list = StoreMethod(Inspector.list)
    counts = StoreMethod(Inspector.counts)
    search = StoreMethod(Inspector.search)
    retry = StoreMethod(Administrator.retry)
    cancel = StoreMethod(Administrator.cancel)
    remove = StoreMethod(Administrator.remove)
    pause_queue = StoreMethod(Operator.pause_queue)
    resume_queue = StoreMethod(Operator.resume_queue)

    # -- connecting ------------------------------------------------------------------------------

    @needs_loop("app.sync.install() to install a schema (app.sync connects by itself)")
    async def open(self, *, install: bool = False) -> QueueStore:
        """Connect on this event loop, if not connected yet, and return the store.

        Args:
            install: Whether an absent schema is installed.

        Raises:
            StoreUnreachable: The store does not answer.
            SchemaError: The schema is absent, or of an incompatible version.

        """
        return await self._stores.open(install=install)

    @needs_loop("app.sync.list(…), app.sync.get(…) and others, which connect by themselves")
    async def open_to_read(self) -> QueueStore:
        """Return the store on separate read-only connections, whose statements time out after some seconds.

        A store that was passed as an object is returned itself. Raises the errors of ``open``.
        """
        return await self._stores.reader.open()

    @needs_loop("app.sync.close()")
    async def close(self) -> None:
        """Close the connections of this event loop. Idempotent; the next use connects again."""
        await self.handled.close()
        for handler in self._handlers:
            handler.close()
        self._handlers.clear()
        await self._stores.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def own_store(self) -> OwnStore:
        """The App's arguments about its store."""
        return self._app_store.own

    def any_store(self) -> QueueStore:
        """Return a store that need not be open, for calls on the caller's connection."""
        return self._stores.any_store()

    @contextmanager
    def using(self, store: QueueStore) -> Iterator[None]:
        """Use another store within the block, on every loop and in every thread, in tests.

        The store is used as it is, and stays open at the end. A running worker keeps its store.

            with app.using(MemoryStore()): ...

        Args:
            store: The store.

        Raises:
            ConfigurationError: ``store`` is not a store of jobs.

        """
        checked = checked_store("App.using", store)
        with self._kept_in(lambda: checked):
            yield

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Run every job when it is enqueued, on every loop and in every thread within the block, in tests.

        Jobs are in a store in memory. ``enqueue`` returns after the job and all jobs that follow from it have run, one
        after another, and raises the errors of tasks. A job that is due later runs with the first job that is enqueued
        after its time. Nothing is retried. ``enqueue_in`` raises ConfigurationError, because a job would run before the
        commit.
        """
        previous, self._immediate = self._immediate, ImmediateRunner(self)
        try:
            store = store_at(MEMORY_URL, StoreOptions())
            with self._kept_in(lambda: store):
                yield
        finally:
            self._immediate = previous

    @contextmanager
    def _kept_in(self, make: Callable[[], QueueStore]) -> Iterator[None]:
        previous = self._stores, self.handled
        self._stores = LoopStores(make, self._traced)
        self.handled = self._new_handled_jobs(self._stores)
        try:
            yield
        finally:
            self.handled.leave()
            self._stores, self.handled = previous

    def _traced(self, store: QueueStore) -> QueueStore:
        return traced(store, self.traces)

    def _new_handled_jobs(self, connected: LoopStores) -> HandledJobs:
        return HandledJobs(connected.open, self._enqueue, self._enqueue_in, self.registry)

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Any]:
        async with lent_connection(await self.open()) as connection:
            yield connection

    # -- working ---------------------------------------------------------------------------------

    def worker(
        self,
        *,
        events: Events | None = None,
        clock: Clock | None = None,
        resources: Mapping[Factory, object] | None = None,
        **options: Unpack[WorkerKeywords],
    ) -> Worker:
        """Return a worker on this App's open store. ``await worker.run()`` works until ``worker.stop()``.

        It also schedules the recurring items of ``App.cron``, ``crontab``, ``crontab_file`` and ``cron_items``, and
        runs the App's flows. Without tasks, an App needs flows.

        Args:
            events: Receives the events of the worker; by default the log.
            clock: The clock of a test.
            resources: Open resources by factory, which the worker does not close: ``{open_pool: pool}``.
            options: Fields of ``WorkerOptions``. Absent ones have the value of the App's preset, or the default.
                ``tasks`` are by default all tasks that are declared here.

        Raises:
            ConfigurationError: The App is not connected on this event loop, declares no task, or an option is invalid.

        Example:
            async with app:
                await app.worker(concurrency=4).run()

        """
        store = self._stores.opened()
        if store is None:
            raise ConfigurationError("App.worker: not connected on this event loop; use 'async with app:' around it")
        self.discover()
        if not self.registry and not self.flows:
            raise ConfigurationError(
                "App.worker: no task is declared; name the modules that declare them: App(include=['shop.tasks'])"
            )
        items = refuse_duplicates((*self.cron_items, *declared(items_of(options), self.registry)))
        preset = self._app_store.preset
        worker_settings = worker_options(options, self.registry, store, preset)
        warn_of_long_tasks(self.registry, preset, worker_settings.grace, "grace")
        events = traced_events(events, self.traces)
        reserve_connections(store, worker_settings.concurrency)
        policy = Policy(timeout=worker_settings.timeout, backoff=worker_settings.backoff)
        for factory in resources or ():
            self.registry.resources_made_by(factory)
        handler = task_handler(self, policy, open_resources=resources)
        self._handlers.append(handler)
        wrapped_handler = self.registry.middleware.wrap(handler)
        items = schedulable(items, store)
        scheduler = Scheduler(store, items, events, clock, self.registry.apply_on_enqueue) if items else None
        worker = AppWorker(
            self.flows, self.traces, scheduler, store, wrapped_handler, worker_settings, events=events, clock=clock
        )
        report_listening(store, events, worker.id)
        events.on(Settled, self.handled.settled)
        return worker

    @asynccontextmanager
    async def run_in_background(
        self,
        *,
        events: Events | None = None,
        resources: Mapping[Factory, object] | None = None,
        **options: Unpack[WorkerKeywords],
    ) -> AsyncIterator[Worker]:
        """Run a worker in this event loop within the block, such as an ASGI lifespan. It does not handle signals.

        An absent schema is installed. At the end of the block running jobs have their grace. If the worker fails, the
        loop's exception handler is called at once, and the block raises the error at its end.

        Args:
            events: As of ``worker``.
            resources: As of ``worker``.
            options: As of ``worker``.

        """
        await self.open(install=True)
        worker = self.worker(events=events, resources=resources, **options)
        store = await self.open()
        await warn_of_unknown_queues(store, self.registry, worker.options)
        await warn_of_tasks_without_worker(store, worker.options.tasks)
        running = asyncio.get_running_loop().create_task(worker.run(), name="stowhand worker")
        running.add_done_callback(report_worker_error)
        try:
            yield worker
        finally:
            worker.stop()
            await running


class Declaring(Protocol):
    """Decorator that ``app.task(…)`` with options returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # as above
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> ContextTask[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


def _check_each(jobs: Iterable[NewJob], check: Callable[[NewJob], NewJob]) -> Iterator[NewJob]:
    """Yield the checked jobs. Raises InvalidJob with the number of the invalid one."""
    number = 1
    try:
        for job in jobs:
            yield check(job)
            number += 1
    except InvalidJob as error:  # the iterable may raise it too, while it makes this job
        raise InvalidJob(f"job {number} of the batch: {error}") from None


async def _check_each_async(jobs: AsyncIterable[NewJob], check: Callable[[NewJob], NewJob]) -> AsyncIterator[NewJob]:
    """Yield the checked jobs of an asynchronous iterable, like ``_check_each``."""
    number = 1
    try:
        async for job in jobs:
            yield check(job)
            number += 1
    except InvalidJob as error:
        raise InvalidJob(f"job {number} of the batch: {error}") from None


# -- for higher rooms and for tests; not part of the public API ------------------------------------------


def task_handler(
    app: App,
    default: Policy | None = None,
    *,
    open_resources: Mapping[Factory, object] | None = None,
) -> TaskHandler:
    """Return the handler of the App's tasks. Close it when its worker has stopped."""
    new_logger, connect, enqueue = app._new_logger, app._borrow, app._enqueue  # noqa: SLF001
    return TaskHandler(
        app.registry, enqueue=enqueue, logger_factory=new_logger, default=default, connect=connect,
        built_in=built_in(app.open), open_resources=open_resources, open_store=app.open,
    )  # fmt: skip


def kept_in(app: App, make: Callable[[], QueueStore]) -> AbstractContextManager[None]:
    """Keep the App's jobs in the stores that ``make`` returns, within the block."""
    return app._kept_in(make)  # noqa: SLF001


def use_worker_store(app: App, url: str, options: StoreOptions, traces: Traces | None = None) -> None:
    """Use the store of this process's worker, unless the App names another, and its traces, unless the App has some.

    Call this before the worker starts.
    """
    if app._app_store.adopt(url, options):  # noqa: SLF001
        app._stores.forget_any_store()  # noqa: SLF001
    app.traces = app.traces or traces
