"""A resetter of its own: finds jobs whose worker died and gives them back, beside workers or without any.

Every worker does this too. One of its own is for a process that outlives its workers, or for a table that other
programs work on.
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
from stowhand.worker.speaking import speak
from stowhand.worker.sweeper import Sweeper

STOP_PATIENCE = 5.0
"""Seconds that a call on its way may take when the resetter is to stop."""
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
    """``run()`` looks at once and then every interval, until ``stop()``. A look that fails is told and tried again."""

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
        self._speaks = events is None
        self.events = events if events is not None else Events()
        self._store, self._clock = store, clock or SystemClock()
        self._stopping = asyncio.Event()
        self._sooner = asyncio.Event()
        self._sweep: Sweeper | None = None
        self._failures = 0

    async def run(self) -> None:
        """Until stopped. Raises what makes the store unfit for it; an outage is waited out."""
        if self._speaks:
            speak(self.events)
        if isinstance(self._store, EnclosingStore):
            await self._store.validate()
        heartbeats = self._store.heartbeats()
        # Of its own: what hangs there keeps nobody else's thread, and the heart is closed behind it, not under it.
        thread = ThreadPoolExecutor(1, "stowhand resetter")
        self._sweep = sweep = Sweeper(
            heartbeats,
            self.events,
            self._clock,
            name=self.options.name,
            interval=0.0,  # ``_rest`` says when
            slack=self.options.slack,
            is_over=self._stopping.is_set,
        )
        looking = asyncio.ensure_future(self._looks(sweep, thread))
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

    async def _looks(self, sweep: Sweeper, thread: Executor) -> None:
        while not self._stopping.is_set():
            await self._look(sweep, thread)
            await self._rest(sweep)

    def stop(self, *, now: bool = False) -> None:
        """End soon. Harmless when repeated. On the resetter's own loop."""
        self._stopping.set()

    def expect(self, lease: float) -> None:
        """A lease of so many seconds begins: one of those that are shorter than an interval. On the resetter's loop."""
        if self._sweep is not None and self.options.prompt and lease < self.options.interval:
            self._sweep.expect(lease)
            self._sooner.set()

    async def _look(self, sweep: Sweeper, thread: Executor) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(thread, lambda: sweep.tick(worked=self._clock.monotonic()))
        except SchemaTooNew:
            raise  # nothing that this version does there is right any more
        except StoreError as error:
            self._failures += 1
            self.events.emit(StoreTrouble(self.options.name, "reset", str(error), self.options.interval))
            return
        if self._failures:
            self.events.emit(StoreRecovered(self.options.name, "reset", self._failures))
            self._failures = 0

    async def _rest(self, sweep: Sweeper) -> None:
        end = self._clock.monotonic() + self.options.interval
        while not self._stopping.is_set():
            self._sooner.clear()
            left = (min(end, sweep.ends) if self.options.prompt else end) - self._clock.monotonic()
            if left <= 0:
                return
            await self._pause(left)

    async def _pause(self, seconds: float) -> None:
        """Until then, or until it stops or is to look sooner."""
        over = asyncio.Event()
        timer = self._clock.call_later(seconds, over.set)
        waiting = [asyncio.ensure_future(one.wait()) for one in (over, self._stopping, self._sooner)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for one in waiting:
                one.cancel()
