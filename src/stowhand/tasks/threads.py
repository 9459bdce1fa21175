"""Threads for synchronous tasks.

A ``ThreadPoolExecutor`` is not suitable: it joins its threads when the interpreter exits, so a hung task would block
the exit, and a hung thread occupies a slot forever. Here a task takes a thread at its start and returns it at its end.
A worker has at most as many threads as it runs tasks at once, plus those that hang.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from stowhand.protocols.attempt import Attempt, Stop, control_of

T = TypeVar("T")


class Threads:
    """Daemon threads that run one call after another."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._closed = False
        self._lock = threading.Lock()

    async def run(self, call: Callable[[], T], *, on_abandoned: Callable[[threading.Event], None]) -> T:
        """Call a function in a thread, with a copy of the current context variables, and wait for its result.

        If the wait is cancelled, the call continues, because a thread cannot be stopped. Its result or error is
        ignored, and ``on_abandoned`` is called with an event that is set when the call ends.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        ended = threading.Event()

        def work() -> Callable[[], None]:
            try:
                return partial(_succeed, future, context.run(call))
            except BaseException as error:  # noqa: BLE001 - boundary: raised again where the task is awaited
                return partial(_fail, future, _raisable(error))
            finally:
                ended.set()

        self._acquire().begin(work, loop)
        try:
            return await future
        except asyncio.CancelledError:
            if not ended.is_set():
                on_abandoned(ended)
            raise

    async def run_handler(self, attempt: Attempt[Any], call: Callable[[], T]) -> T:
        """Run the handler of an attempt like ``run``. After a timeout it raises CancelledError and ignores the result
        and the error, however soon the thread ends."""
        control = control_of(attempt)

        def on_abandoned(ended: threading.Event) -> None:
            control.abandoned_thread = ended

        control.in_thread = True
        try:
            return await self.run(call, on_abandoned=on_abandoned)
        finally:
            control.in_thread = False
            if attempt.cancel_reason == Stop.TIMEOUT:
                raise asyncio.CancelledError

    def close(self) -> None:
        """End the idle threads. Busy ones end with their call. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.end()

    def _acquire(self) -> _Thread:
        with self._lock:
            return self._idle.pop() if self._idle else _Thread(self._release)

    def _release(self, thread: _Thread) -> bool:
        with self._lock:
            if not self._closed:
                self._idle.append(thread)
            return not self._closed


class _Thread:
    def __init__(self, release: Callable[[_Thread], bool]) -> None:
        self._inbox: SimpleQueue[tuple[Callable[[], Callable[[], None]], asyncio.AbstractEventLoop] | None]
        self._inbox = SimpleQueue()
        self._release = release
        self._thread = threading.Thread(target=self._run, name="stowhand task", daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Callable[[], None]], loop: asyncio.AbstractEventLoop) -> None:
        self._inbox.put((work, loop))

    def end(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_reusable = True
        while is_reusable and (item := self._inbox.get()) is not None:
            work, loop = item
            report = work()
            # Return to the pool before reporting the end, so that the next task finds this thread.
            is_reusable = self._release(self)
            try:
                loop.call_soon_threadsafe(report)
            except RuntimeError:
                # The loop is closed: the call was abandoned, and is not awaited.
                del report


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _raisable(error: BaseException) -> BaseException:
    """Replace StopIteration, which a future refuses."""
    if isinstance(error, StopIteration):
        replacement = RuntimeError("the task raised StopIteration")
        replacement.__cause__ = error
        return replacement
    return error
