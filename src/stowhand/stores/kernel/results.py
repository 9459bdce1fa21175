"""The shared poll of callers that wait for results: one request to the store covers every handle that is due.

The pause before the next request about a handle is a tenth of the time it has waited, within limits. While the store is
unreachable, the poll repeats the request until the timeout of each caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, Generic, TypeVar

from stowhand.clock import Clock
from stowhand.errors import StoreError, StoreUnreachable
from stowhand.protocols.producer import JobStatus, Results
from stowhand.retry import exponential

K = TypeVar("K")
A = TypeVar("A")
P = TypeVar("P", bound="SharedPoll[Any, Any]")
MIN_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.5
PAUSE_SHARE = 0.1
"""The pause before the next request about a handle, as a share of the time it has waited."""
SPACING_SECONDS = 20e-6
"""Pause after a request, for each handle in it: a request about ten thousand handles loads the store."""
RECANCEL_DELAY_SECONDS = 0.1


class Handle(Generic[A]):
    """The subject of a wait, with the callers that share it."""

    __slots__ = ("callers", "due", "pause", "since")

    def __init__(self) -> None:
        self.callers: dict[asyncio.Future[A], Callable[[A], bool]] = {}
        """Each caller has a function that returns whether an answer ends its wait."""
        self.since = 0.0
        """The time at which the newest caller arrived."""
        self.due = inf
        self.pause = 0.0
        """Seconds between the last request and ``due``."""

    def set_due(self, due: float, pause: float) -> None:
        """Set the due time, unless the handle is due earlier: repeated calls do not postpone the request."""
        if due < self.due:
            self.due, self.pause = due, pause

    def postpone(self, now: float, min_pause: float) -> None:
        """Set the next due time when a request is sent."""
        self.pause = min(max(PAUSE_SHARE * (now - self.since), min_pause), MAX_PAUSE_SECONDS)
        self.due = now + self.pause


class SharedPoll(Generic[K, A]):
    """The poll of one store on one event loop. It runs while a caller waits."""

    def __init__(
        self,
        ask: Callable[[Sequence[K]], Awaitable[Mapping[K, A]]],
        clock: Clock,
        *,
        min_pause: float = MIN_PAUSE_SECONDS,
        spacing: float = SPACING_SECONDS,
        wait_for_commit: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Take the functions that read from the store.

        ``ask`` returns the available answers. ``spacing``: seconds of pause after a request, for each handle in it.
        ``wait_for_commit`` returns after a commit that may have ended a job; the poll calls it again at once.
        """
        self._ask = ask
        self._clock = clock
        self._min_pause = min_pause
        self._spacing = spacing
        self._wait_for_commit = wait_for_commit
        self._handles: dict[K, Handle[A]] = {}
        self._next = 0.0
        """The time at which the sleeping poll continues."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._outage = exponential(base=0.1, cap=5.0, jitter=0.2)
        self._loop = asyncio.get_running_loop()

    async def answer(self, key: K, ends: Callable[[A], bool] = lambda _: True, *, age: float | None = None) -> A:
        """Wait for the first answer that ``ends`` the wait.

        ``age``: seconds since the subject was last known to be open.

        Raise StoreError if the store refuses to answer, or is closed meanwhile.
        """
        now = self._clock.monotonic()
        pause = 0.0 if age is None else max(self._min_pause - age, 0.0)
        handle = self._handles.setdefault(key, Handle())
        caller: asyncio.Future[A] = self._loop.create_future()
        handle.callers[caller] = ends
        handle.since = now
        handle.set_due(now + pause, pause)
        self._look_by(handle.due)
        try:
            return await caller
        finally:
            del handle.callers[caller]
            if not handle.callers and self._handles.get(key) is handle:
                del self._handles[key]

    def ask_now(self, keys: Iterable[K] | None = None) -> None:
        """Request these handles at once if a caller waits for them; ``None``: all. Call it on the loop of the poll."""
        if not self._handles:
            return
        now = self._clock.monotonic()
        for key in self._handles if keys is None else keys:
            if key in self._handles:
                self._handles[key].set_due(now, 0.0)
                self._look_by(now)

    @property
    def is_waiting(self) -> bool:
        """Whether a caller waits. Safe from any thread."""
        return bool(self._handles)

    async def close(self) -> None:
        """End every wait with an error."""
        task, self._task = self._task, None
        if task is not None:
            await _cancel(task)
        self._fail(StoreError("the store was closed while a caller waited for a job; the job continues"))

    def _look_by(self, time: float) -> None:
        if self._task is None:
            # Use a new context: the poll does not belong to the request or the span of the first caller.
            self._task = self._loop.create_task(self._run(), name="stowhand results", context=Context())
        elif time < self._next:
            self._changed.set()

    async def _run(self) -> None:
        listener = None if self._wait_for_commit is None else asyncio.ensure_future(self._listen(self._wait_for_commit))
        try:
            await self._poll()
        except Exception as error:  # noqa: BLE001 - boundary: each waiting caller raises it
            self._fail(error)
        finally:
            if self._task is asyncio.current_task():
                self._task = None  # before any await, so that a new caller starts another task
            if listener is not None:
                await _cancel(listener)

    async def _poll(self) -> None:
        failures = 0
        while self._handles:
            now = self._clock.monotonic()
            self._next = min(handle.due for handle in self._handles.values())
            if self._next > now:
                await self._sleep(self._next - now)
                continue
            keys = self._take(now)
            try:
                self._end(await self._ask(keys))
            except StoreUnreachable:
                failures += 1
                pause = self._outage(failures)
            else:
                failures = 0
                # Requests take at most half of the time of a slow store.
                pause = max(self._spacing * len(keys), self._clock.monotonic() - now)
            await self._clock.sleep(pause)

    def _take(self, now: float) -> list[K]:
        """Return the handles that are due, or due within half of their pause, so that handles share requests.

        A handle that arrives during the request is due after it.
        """
        keys = []
        for key, handle in self._handles.items():
            if handle.due - handle.pause / 2 <= now:
                handle.postpone(now, self._min_pause)
                keys.append(key)
        return keys

    async def _sleep(self, seconds: float) -> None:
        """Sleep until a handle is due earlier, at most for these seconds."""
        timer = self._clock.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
            self._changed.clear()

    def _end(self, answers: Mapping[K, A]) -> None:
        for key, answer in answers.items():
            handle = self._handles.get(key)
            for caller, ends in () if handle is None else handle.callers.items():
                if not caller.done() and ends(answer):
                    caller.set_result(answer)

    async def _listen(self, wait_for_commit: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await wait_for_commit()
            except StoreError:
                await self._clock.sleep(MAX_PAUSE_SECONDS)
            self.ask_now()

    def _fail(self, error: Exception) -> None:
        for handle in self._handles.values():
            for caller in handle.callers:
                if not caller.done():
                    caller.set_exception(error)
                    caller.exception()  # marks it as retrieved: a caller that is being cancelled raises nothing


class LoopPolls(Generic[P]):
    """The polls of one process: one for each event loop on which callers wait."""

    def __init__(self) -> None:
        self._polls: dict[asyncio.AbstractEventLoop, P] = {}

    def here(self, make: Callable[[], P]) -> P:
        """Return the poll of the running loop. ``make`` creates the first one."""
        loop = asyncio.get_running_loop()
        if loop not in self._polls:
            for closed in [other for other in self._polls if other.is_closed()]:
                del self._polls[closed]
            self._polls[loop] = make()
        return self._polls[loop]

    def ask_now(self, keys: Sequence[object] | None = None) -> None:
        """Request these handles at once on every loop with a waiting caller; ``None``: all. Safe from any thread."""
        for loop, poll in list(self._polls.items()):
            if poll.is_waiting:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(poll.ask_now, keys)

    def leave(self) -> None:
        """End the waits of every loop. The store gets no more requests about these jobs."""
        polls, self._polls = self._polls, {}
        for loop, poll in polls.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(poll.close(), loop)

    async def close(self) -> None:
        """End the waits of the running loop."""
        poll = self._polls.pop(asyncio.get_running_loop(), None)
        if poll is not None:
            await poll.close()


class ResultPoll(SharedPoll[int, JobStatus]):
    """The poll of a queue store, by the ids of jobs."""

    def __init__(self, results: Results, clock: Clock) -> None:
        super().__init__(self._statuses, clock, min_pause=results.min_pause, wait_for_commit=results.wait_for_commit)
        self.results = results

    async def end(self, job_id: int, revision: int, *, age: float | None = None) -> JobStatus:
        """Wait for the outcome of the job at this revision. ``age`` and errors are those of ``answer``."""
        return await self.answer(job_id, lambda status: status.ends(revision), age=age)

    async def _statuses(self, job_ids: Sequence[int]) -> dict[int, JobStatus]:
        return {status.job_id: status for status in await self.results.ask(job_ids)}


async def _cancel(task: asyncio.Future[None]) -> None:
    """Cancel the task until it has ended: up to Python 3.11, ``wait_for`` in a driver may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=RECANCEL_DELAY_SECONDS)
