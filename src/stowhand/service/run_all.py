"""Supervisor of background routines: workers, resetters, and other objects that run until stopped.

    await run_all(worker, resetter)

It starts all routines. It stops them at the first signal, or when one of them ends with an error, always within a
bounded time.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from stowhand.errors import ConfigurationError
from stowhand.events import Events, WorkerStarted
from stowhand.jobs.durations import Duration, seconds
from stowhand.observe.listener import LogListener
from stowhand.service.signals import StopRequests

EXIT_MARGIN_SECONDS = 20.0
"""Seconds beyond a worker's grace, for returning jobs, for the store and for threads."""
DEFAULT_GRACE_SECONDS = 25.0


class Routine(Protocol):
    """Object that runs until it is stopped."""

    async def run(self) -> None:
        """Run until ``stop()`` is called."""

    def stop(self, *, now: bool = False) -> None:
        """Request the end of ``run``; with ``now``, without finishing running work. Harmless when repeated."""


async def run_all(*routines: Routine, grace: Duration | None = None) -> None:
    """Run the routines until SIGTERM or SIGINT, until one fails, or until all have ended by themselves.

    Resetters serve the others, so they do not count. The first signal stops the routines in order, a second one at
    once. A routine that does not end in time is cancelled.

    Args:
        routines: Workers, resetters, or other objects with ``run`` and ``stop``.
        grace: Seconds that the routines have to end. The default is the longest grace of the workers plus 20 s.

    Raises the error of the first routine that failed.

    """
    _check(routines)
    max_seconds = default_end_seconds(routines) if grace is None else _read(grace)
    _listen(routines)
    supervisor = _Supervisor(routines)
    with _signals(supervisor):
        await supervisor.run(max_seconds)


class _Supervisor:
    def __init__(self, routines: tuple[Routine, ...]) -> None:
        self._routines = routines
        self._tasks: dict[asyncio.Task[None], Routine] = {}
        self._first_error: Exception | None = None
        """The error of the routine that failed first."""
        self._stop_requests = StopRequests()
        self._stopping = asyncio.Event()

    async def run(self, max_seconds: float) -> None:
        tasks = self._tasks = {asyncio.create_task(self._run_watched(routine)): routine for routine in self._routines}
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                waiting = [task for task in tasks if not task.done()]
                if not waiting:
                    break
                await asyncio.wait([*waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
                if self._is_over(tasks):
                    self.stop()
        except asyncio.CancelledError:
            self.stop(now=True)
            await self._end(tasks, max_seconds)
            raise
        finally:
            stopping.cancel()
        await self._end(tasks, max_seconds)
        if self._first_error is not None:
            raise self._first_error

    async def _run_watched(self, routine: Routine) -> None:
        try:
            await routine.run()
        except Exception as error:
            self._first_error = self._first_error or error
            raise

    def _is_over(self, tasks: dict[asyncio.Task[None], Routine]) -> bool:
        """Return whether a routine has failed, or only routines that serve the others still run."""
        if any(task.done() and (task.cancelled() or task.exception()) for task in tasks):
            return True
        served = [task for task, routine in tasks.items() if not getattr(routine, "serves", False)]
        return bool(served) and all(task.done() for task in served) and not all(task.done() for task in tasks)

    async def _end(self, tasks: dict[asyncio.Task[None], Routine], max_seconds: float) -> None:
        """Wait for all tasks within a bounded time."""
        ended_tasks, late_tasks = await asyncio.wait(tasks, timeout=max_seconds)
        for task in late_tasks:
            task.cancel()
        if late_tasks:
            ended_tasks |= (await asyncio.wait(late_tasks, timeout=EXIT_MARGIN_SECONDS))[0]
        for task in ended_tasks:
            task.cancelled() or task.exception()  # mark the errors as retrieved; ``run`` raises the first

    def request_stop(self) -> None:
        """Handle a signal: the first stops the routines in order, a second at once."""
        if self._stop_requests.add():
            self.stop(now=self._stop_requests.count > 1)

    def stop(self, *, now: bool = False) -> None:
        """Stop every routine. Cancel a routine whose ``stop`` raises, and go on with the others."""
        self._stopping.set()
        for task, routine in self._tasks.items():
            if task.done():
                continue
            try:
                routine.stop(now=now)
            except Exception as error:  # noqa: BLE001 - boundary: an application's routine; ``run_all`` raises the error
                self._first_error = self._first_error or error
                task.cancel()


@contextmanager
def _signals(supervisor: _Supervisor) -> Iterator[None]:
    """Let signals stop the routines while the block runs. Other threads than the main thread receive no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous_handlers = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, supervisor.request_stop)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set by something in C


def default_end_seconds(routines: Iterable[Routine]) -> float:
    """Return the seconds that the routines have to end if the caller passes no grace."""
    return max(map(_grace_of, routines)) + EXIT_MARGIN_SECONDS


def is_routine(value: object) -> bool:
    """Return whether the value is a routine. A class of routines is not."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("run", "stop"))


def _check(routines: tuple[Routine, ...]) -> None:
    if not routines:
        raise ConfigurationError("run_all: use at least one worker, resetter, or other routine")
    for routine in routines:
        if not is_routine(routine):
            raise ConfigurationError(
                f"run_all: {routine!r} is not a routine; use workers, resetters, or objects with `async run()` and "
                "`stop(*, now=False)`"
            )
    if len({id(routine) for routine in routines}) < len(routines):
        raise ConfigurationError("run_all: the same routine is given twice; make a second one")


def _read(grace: Duration) -> float:
    try:
        max_seconds = seconds(grace)
    except ValueError:
        max_seconds = math.nan
    if not max_seconds >= 0:
        raise ConfigurationError(f"run_all: grace: got {grace!r}; use seconds, not negative, a timedelta or a phrase")
    return max_seconds


def _listen(routines: tuple[Routine, ...]) -> None:
    """Log the events of routines that have no listener yet."""
    hubs = {hub for routine in routines if isinstance(hub := getattr(routine, "events", None), Events)}
    for events in hubs:
        if not events.wants(WorkerStarted):
            LogListener(events)


def _grace_of(routine: Routine) -> float:
    """Return the grace of the routine's options, or its own (for a flow: the longest of its workers)."""
    grace: object = getattr(getattr(routine, "options", routine), "grace", None)
    return float(grace) if isinstance(grace, int | float) else DEFAULT_GRACE_SECONDS
