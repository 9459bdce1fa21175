"""A resetter: resets jobs whose worker died, beside workers or without any.

Every worker does this too. A resetter is for a process that outlives its workers, or for a table on which other
programs work.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError, SchemaTooNew, StoreError
from stowhand.events import Events, StoreRecovered, StoreTrouble
from stowhand.jobs import limits
from stowhand.jobs.durations import seconds
from stowhand.protocols.handler import EnclosingStore
from stowhand.protocols.options import LONGEST, NAME_LIMIT, check_made
from stowhand.protocols.store import Store
from stowhand.worker.default_log import log_by_default
from stowhand.worker.sweeper import Sweeper

STOP_PATIENCE = 5.0
"""Seconds that a call on its way may take when the resetter stops."""
CLOSE_PATIENCE = 1.0


class ResetterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, or a ``timedelta``."""

    name: str = "resetter"
    """In logs and metrics."""
    interval: float = 30.0
    """Between two looks."""
    slack: float = 0.0
    """How long after its lease has ended a job is still left alone."""
    prompt: bool = False
    """Look also as soon as a lease ends, as workers do, and not every interval only."""

    def __post_init__(self) -> None:
        problems = []
        for name in ("interval", "slack"):
            value: object = getattr(self, name)
            try:
                msgspec.structs.force_setattr(self, name, _in_seconds(value))
            except ValueError as error:
                problems.append(f"{name}: {error}")
        if not problems:
            if not 0 < self.interval <= LONGEST:
                problems.append(f"interval: {self.interval!r} s given, must be more than 0 and at most 100 years")
            if not 0 <= self.slack <= LONGEST:
                problems.append(f"slack: {self.slack!r} s given, must not be negative, and at most 100 years")
        prompt: object = self.prompt
        if not isinstance(prompt, bool):
            problems.append(f"prompt: a {type(prompt).__qualname__} given; give True or False")
        try:
            limits.check_name("name", self.name, NAME_LIMIT)
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ConfigurationError("; ".join(problems))


def _in_seconds(given: object) -> float:
    if not isinstance(given, timedelta | str | int | float):
        raise ValueError(f"a {type(given).__qualname__} given; give seconds or a timedelta")
    return seconds(given)


class Resetter:
    """``run()`` looks at once and then every interval, until ``stop()``. A failed look is reported and tried again."""

    serves = True
    """``run_all`` stops it when the routines that it serves have ended."""

    def __init__(
        self,
        store: Store[Any],
        options: ResetterOptions | None = None,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        check_made(store, options, ResetterOptions)
        self.options = options or ResetterOptions()
        self._logs_by_default = events is None
        self.events = events if events is not None else Events()
        self._store = store
        self._clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        self._expected = asyncio.Event()
        self._sweeper: Sweeper | None = None
        self._failures = 0

    async def run(self) -> None:
        """Until stopped. Raises what makes the store unfit for it; an outage is waited out."""
        if self._logs_by_default:
            log_by_default(self.events)
        if isinstance(self._store, EnclosingStore):
            await self._store.validate()
        heartbeats = self._store.heartbeats()
        # A thread of its own: a call that hangs blocks no other, and the connection is closed after it, not during it.
        thread = ThreadPoolExecutor(1, "stowhand resetter")
        self._sweeper = sweeper = Sweeper(
            heartbeats,
            self.events,
            self._clock,
            name=self.options.name,
            interval=0.0,  # ``_rest`` decides when
            slack=self.options.slack,
            is_over=self._stopping.is_set,
        )
        looking = asyncio.ensure_future(self._keep_looking(sweeper, thread))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((looking,), timeout=STOP_PATIENCE)
            if looking.done():
                looking.result()
        finally:
            looking.cancel()
            stopping.cancel()
            closing = asyncio.wrap_future(thread.submit(heartbeats.close))
            thread.shutdown(wait=False)
            await asyncio.wait((closing,), timeout=CLOSE_PATIENCE)

    async def _keep_looking(self, sweeper: Sweeper, thread: Executor) -> None:
        while not self._stopping.is_set():
            await self._look(sweeper, thread)
            await self._rest(sweeper)

    def stop(self, *, now: bool = False) -> None:
        """End soon. Harmless when repeated. On the resetter's own loop."""
        self._stopping.set()

    def expect(self, lease: float) -> None:
        """A lease of ``lease`` seconds begins; a prompt resetter looks when it ends. On the resetter's loop."""
        if self._sweeper is not None and self.options.prompt and lease < self.options.interval:
            self._sweeper.expect(lease)
            self._expected.set()

    async def _look(self, sweeper: Sweeper, thread: Executor) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(thread, lambda: sweeper.tick(worked=self._clock.monotonic()))
        except SchemaTooNew:
            raise  # nothing that this version does there is right any more
        except StoreError as error:
            self._failures += 1
            self.events.emit(StoreTrouble(self.options.name, "reset", str(error), self.options.interval))
            return
        if self._failures:
            self.events.emit(StoreRecovered(self.options.name, "reset", self._failures))
            self._failures = 0

    async def _rest(self, sweeper: Sweeper) -> None:
        end = self._clock.monotonic() + self.options.interval
        while not self._stopping.is_set():
            self._expected.clear()
            left = (min(end, sweeper.ends) if self.options.prompt else end) - self._clock.monotonic()
            if left <= 0:
                return
            await self._pause(left)

    async def _pause(self, seconds: float) -> None:
        """So long, or until it stops or a lease is expected."""
        over = asyncio.Event()
        timer = self._clock.call_later(seconds, over.set)
        waiting = [asyncio.ensure_future(one.wait()) for one in (over, self._stopping, self._expected)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for one in waiting:
                one.cancel()
