"""``run``, which starts a worker in this event loop, and the ``Runner`` that it returns."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any, Self, Unpack

from stowhand.app.app import App
from stowhand.app.start import report_worker_error
from stowhand.errors import ConfigurationError, StowhandError
from stowhand.events import Events
from stowhand.jobs import limits
from stowhand.jobs.job import Job
from stowhand.observe.job_logger import LineLogger, ScopedLogger
from stowhand.observe.listener import LogListener
from stowhand.observe.logs import Scope, configure_unless_configured
from stowhand.runner.events import WorkerEvents, WorkerPool
from stowhand.runner.observer import RunObserver
from stowhand.runner.options import Plan, RunnerOptions, find_store, make_plan
from stowhand.service.process import Stopper, export_spans_at_exit, release_and_exit
from stowhand.service.signals import has_terminal
from stowhand.tasks.options import TaskSpec, read_spec
from stowhand.worker.worker import new_identity

_RUNNING_TASKS: set[asyncio.Task[None]] = set()
"""Strong references to the tasks of runners: a loop has only weak references."""


async def run(**options: Unpack[RunnerOptions]) -> Runner:
    """Start a worker in this event loop. It works until ``runner.stop()`` or a signal. A missing schema is installed.

    Raises ConfigurationError (with all mistakes in the options), StoreUnreachable, SchemaError.
    """
    return await _start(make_plan("run", options, once=False))


async def run_once(**options: Unpack[RunnerOptions]) -> None:
    """Work until no job is due, then return. Raises the same errors as ``run``, and the error that ended the worker."""
    async with await _start(make_plan("run_once", options, once=True)) as runner:
        await runner.wait()


async def run_migrations(**options: Unpack[RunnerOptions]) -> None:
    """Install the schema, or upgrade it. The options are those of ``run``, but tasks are not required.

    Raises ConfigurationError, StoreUnreachable, SchemaTooNew.
    """
    store = find_store("run_migrations", options)
    try:
        await store.schema.install()
    finally:
        await store.close()


async def _start(plan: Plan) -> Runner:
    configure_unless_configured()
    runner = Runner(plan)
    try:
        await runner.open()
    except BaseException:
        await plan.store.close()
        raise
    return runner


class Runner:
    """Running worker. ``async with await run(…) as runner:`` stops it at the end of the block."""

    def __init__(self, plan: Plan) -> None:
        self.events: WorkerEvents = plan.events
        self._plan = plan
        self._was_stopped = False
        self._is_stop_requested = False
        self._has_ended = False
        self._loop = asyncio.get_running_loop()
        self._name = plan.worker.name or new_identity()
        self._pool = WorkerPool(self._name, plan.worker.concurrency, self._shut_down)
        self._core = Events()
        functions = {definition.name: definition.function for definition in plan.registry}
        self._observer = RunObserver(plan.events, self._core, self._pool, functions)
        self._app = App(
            store=plan.store, logger_factory=plan.log_job, traces=plan.traces, middleware=[self._observer.around]
        )
        for definition in plan.registry:
            self._app.registry.add(definition)

    async def open(self) -> None:
        """Open the store, and start the worker."""
        plan = self._plan
        await self._app.open(install=True)
        new_logger: Callable[[Scope], LineLogger] = ScopedLogger if plan.logger is None else plan.logger.of
        LogListener(self._core, new_logger)
        if plan.traces is not None:
            export_spans_at_exit(plan.traces)
        plan.events.on_listener_error = new_logger(Scope("core")).error
        for problem in plan.skipped_files:
            new_logger(Scope("core")).warning(problem)
        options = plan.keywords | {"name": self._name, "once": plan.worker.once, "cron_items": plan.cron}
        self._worker = self._app.worker(events=self._core, **options)
        self._observer.listen(plan.store)
        self._signals = self._handle_signals() if plan.signals else None
        self._observer.start()
        self._running = self._loop.create_task(self._run(), name="stowhand runner")
        _RUNNING_TASKS.add(self._running)
        self._running.add_done_callback(_RUNNING_TASKS.discard)
        self._running.add_done_callback(report_worker_error)

    @property
    def promise(self) -> asyncio.Future[None]:
        """Future of the runner's end; it raises the error that ended the worker. Its cancellation does not stop it."""
        return asyncio.shield(self._running)

    async def wait(self) -> None:
        """Wait until the runner has ended, like ``await runner.promise``."""
        await self.promise

    async def stop(self) -> None:
        """Claim nothing more, wait until running jobs have ended (at most the grace), and close everything.

        Raises StowhandError if the runner was stopped before or has ended, and the error that ended the worker.
        """
        if self._was_stopped or self._running.done():
            raise StowhandError("Runner is already stopped")
        self._shut_down("the runner is stopped")
        await self.wait()

    async def add_job(self, identifier: str, payload: object = None, **spec: Unpack[TaskSpec]) -> Job:
        """Enqueue a job, unless the runner has ended. Raises InvalidJob, OutcomeUnknown, StoreUnreachable."""
        if self._has_ended:
            raise StowhandError("Runner is already stopped; use make_worker_utils to enqueue without a runner")
        job = self._plan.registry.new_job(identifier, payload, read_spec(spec))
        return await self._plan.store.jobs.enqueue(limits.check(job))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._was_stopped:
            self._shut_down("the block around the runner has ended", silently=self._running.done())
        await asyncio.wait([self._running])
        if error is None:
            self._running.result()

    # -- start and stop --------------------------------------------------------------------------

    async def _run(self) -> None:
        run_error: BaseException | None = None
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._app.close)
            if self._signals is not None:
                closing.callback(self._signals.restore)
            try:
                await self._worker.run()
            except BaseException as error:
                run_error = error
                raise
            finally:
                self._plan.store.notices.on_listening(None)
                failure = run_error if isinstance(run_error, Exception) else None  # a cancellation is not a failure
                await self._observer.end(failure, was_requested=self._is_stop_requested)
                self._has_ended = True

    def _shut_down(self, message: str, *, silently: bool = False) -> None:
        """Stop the worker at the first request; ignore later ones."""
        if self._was_stopped:
            return
        self._was_stopped = True
        if not silently:
            self._is_stop_requested = True
            self._observer.shutdown(message)
            self._worker.stop()

    def _handle_signals(self) -> Signals:
        stopper = Stopper(self._worker, lambda: release_and_exit(self._plan.store, self._worker))

        def on_signal(name: str) -> None:
            if not self._is_stop_requested:
                self._is_stop_requested = True
                self._loop.call_soon_threadsafe(self._observer.terminated, name)
            stopper.request_stop()

        signals = Signals(on_signal)
        signals.install()
        return signals


_listening: list[Signals] = []
_previous_handlers: dict[signal.Signals, Any] = {}
"""Signal handlers that the program had set before the first runner."""


class Signals:
    """Signal handlers of a runner. ``on_signal`` receives the name of each signal, between two steps of the loop."""

    def __init__(self, on_signal: Callable[[str], None]) -> None:
        self.on_signal = on_signal
        self.loop = asyncio.get_running_loop()

    def install(self) -> None:
        """Handle signals. Raises ConfigurationError outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("only the main thread receives signals; use no_handle_signals=True")
        numbers = [signal.SIGTERM, signal.SIGINT]
        if has_terminal():  # without a terminal, a HUP asks the program to reload its configuration
            numbers.append(signal.SIGHUP)
        for number in numbers:
            previous = signal.getsignal(number)
            if previous is not _dispatch:
                _previous_handlers[number] = previous
                self.loop.add_signal_handler(number, lambda: None)  # a signal wakes the loop
                signal.signal(number, _dispatch)
        _listening.append(self)

    def restore(self) -> None:
        """Restore the previous handlers at the end of the last runner. Harmless when repeated."""
        _listening[:] = [other for other in _listening if other is not self and not other.loop.is_closed()]
        if _listening:
            return
        for number, previous in _previous_handlers.items():
            current = signal.getsignal(number)
            self.loop.remove_signal_handler(number)  # resets the handler too
            if current is not _dispatch:
                signal.signal(number, current)  # the program has set another handler in the meantime
            else:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
        _previous_handlers.clear()


def _dispatch(number: int, _: FrameType | None) -> None:
    for signals in tuple(_listening):
        if not signals.loop.is_closed():  # the program may have closed the loop while the runner was working
            signals.on_signal(signal.Signals(number).name)
