"""Owns the tasks of a worker: none is fired and forgotten, and none ends in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING

from stowhand.clock import Tick

if TYPE_CHECKING:
    from stowhand.worker.state import WorkerState

LAST_WORDS = 1.0
"""Seconds that code of the application has to end once it is cancelled; then it is left behind."""
TICK_AGAIN = 1.0
"""Seconds until a tick is called again that has raised."""


class Supervisor:
    """Errors of the worker's own loops, threads and slots come here, and so do its side tasks: post_handle, and the
    ends of transactions."""

    def __init__(self, state: WorkerState, on_crash: Callable[[], None]) -> None:
        """``on_crash``: called at each error, which is a bug here or in a store: the worker is to stop."""
        self._state = state
        self._on_crash = on_crash
        self._side_tasks: set[asyncio.Task[None]] = set()
        self.crash: BaseException | None = None
        """The first error."""
        self._run: asyncio.Task[None] | None = None
        self.is_finished = False
        """The worker's own loops may end."""
        self.is_closed = False
        """The worker is over: of side tasks that end from now on nothing is recorded or reported."""

    @property
    def pending(self) -> int:
        """Side tasks at work."""
        return len(self._side_tasks)

    def open(self) -> None:
        """Note that the current task runs the worker."""
        self._run = asyncio.current_task()

    @property
    def is_cancelled(self) -> bool:
        """The task that runs the worker was cancelled: by its owner, or by ``asyncio.run``, which at its end cancels
        every task of its loop, those of the worker's loops and slots too."""
        return self._run is not None and self._run.cancelling() > 0

    def finish(self) -> None:
        """Let the worker's loops end: nothing is left to record or return."""
        self.is_finished = True

    async def watch(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the worker's loops until the worker has finished. It is restarted when other code cancels it."""
        while True:
            try:
                await loop()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self.is_finished or task is None:
                    raise
                task.uncancel()
            except Exception as error:  # noqa: BLE001 - boundary: the top of each of our own loops
                self.report(error)
                return
            else:
                return

    def watch_tick(self, tick: Tick) -> Tick:
        """Return a tick for the heartbeat thread whose errors are reported. It goes on while the worker stops."""

        async def watched() -> float:
            try:
                return await tick()
            except Exception as error:  # noqa: BLE001 - boundary: the top of the heartbeat thread
                self._state.from_thread(self.report, error)
                return TICK_AGAIN

        return watched

    def report(self, error: BaseException) -> None:
        """Stop the worker, in order; its ``run`` raises the first of these errors."""
        self.crash = self.crash or error
        if not self.is_closed:
            self._on_crash()

    def start(self, work: Coroutine[None, None, None], context: Context | None = None) -> None:
        """Start a side task, which a stopping worker waits for."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._side_tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End the side tasks, or leave them behind: stopping is always bounded."""
        self.is_closed = True
        for task in self._side_tasks:
            task.cancel()
        if self._side_tasks:
            await asyncio.wait(self._side_tasks, timeout=LAST_WORDS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._side_tasks.discard(task)
        if self.is_closed:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)
        self._state.look_again()
