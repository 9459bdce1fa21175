"""A resetter: resets jobs whose worker died, beside workers or without any.

Every worker does this too. A resetter is for a process that outlives its workers, or for a table on which other
programs work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from stowhand.clock import Clock, SystemClock, Ticker
from stowhand.errors import ConfigurationError, SchemaTooNew, StoreError
from stowhand.events import Events, StoreRecovered, StoreTrouble
from stowhand.jobs.struct import Suggesting
from stowhand.protocols.option import Seconds, Switch, Text, read_fields
from stowhand.protocols.options import one_line
from stowhand.protocols.store import Store
from stowhand.protocols.store_check import check_made, heartbeats_of
from stowhand.worker.host import log_by_default
from stowhand.worker.sweeper import Sweeper, SweepTimes

STOP_PATIENCE = 5.0
"""Seconds that a call on its way may take when the resetter stops."""


class ResetterOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=Suggesting):
    """Seconds, or a ``timedelta``."""

    name: Annotated[str, Text("In logs and metrics.", check=one_line)] = "resetter"
    interval: Annotated[float, Seconds("Between two looks.")] = 30.0
    slack: Annotated[float, Seconds("How long after its lease has ended a job is still left alone.", least=0)] = 0.0
    prompt: Annotated[
        bool, Switch("Look also as soon as a lease ends, as workers do, and not every interval only.")
    ] = False

    def __post_init__(self) -> None:
        if problems := read_fields(self):
            raise ConfigurationError("; ".join(problems))


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
        self._failures = 0
        self._looked = float("-inf")
        self._sweeper: Sweeper | None = None
        self._ticker: Ticker | None = None
        self._crash: Exception | None = None

    async def run(self) -> None:
        """Until stopped. Raises what makes the store unfit for it; an outage is waited out."""
        if self._logs_by_default:
            log_by_default(self.events)
        if self._store.enclosing is not None:
            await self._store.enclosing.validate()
        heartbeats = heartbeats_of(self._store)
        self._sweeper = sweeper = Sweeper(
            heartbeats,
            self.events,
            self._clock,
            self.options.name,
            SweepTimes(interval=0.0, slack=self.options.slack),  # ``_left`` decides when
            is_over=self._stopping.is_set,
        )
        loop = asyncio.get_running_loop()

        async def tick() -> float:
            try:
                return await self._look(sweeper)
            except Exception as error:  # noqa: BLE001 - boundary: the top of the ticker; ``run`` raises it
                self._crash = error
                with suppress(RuntimeError):  # a call that was left behind: the loop is closed
                    loop.call_soon_threadsafe(self._stopping.set)
                return self.options.interval

        ticker = self._ticker = self._clock.ticker("stowhand resetter", tick, on_end=heartbeats.close)
        try:
            await self._stopping.wait()
        finally:
            self._stopping.set()
            ticker.stop(STOP_PATIENCE)
            try:
                await ticker.ended()
            except StoreError:
                pass  # a store that is away keeps no connection open
            except Exception as error:  # noqa: BLE001 - boundary: the end of the thread
                self._crash = self._crash or error
        if self._crash is not None:
            raise self._crash

    def stop(self, *, now: bool = False) -> None:
        """End soon. Harmless when repeated. On the resetter's own loop."""
        self._stopping.set()

    def expect(self, lease: float) -> None:
        """A lease of ``lease`` seconds begins; a prompt resetter looks when it ends. On the resetter's loop."""
        if (
            self._sweeper is not None
            and self._ticker is not None
            and self.options.prompt
            and lease < self.options.interval
        ):
            self._sweeper.expect(lease)
            self._ticker.poke()

    async def _look(self, sweeper: Sweeper) -> float:
        """Look, if it is time. Gives the seconds until the next look."""
        if (left := self._left(sweeper)) > 0:
            return left
        try:
            await sweeper.tick(worked=self._clock.monotonic())
        except SchemaTooNew:
            raise  # nothing that this version does there is right any more
        except StoreError as error:
            self._failures += 1
            self.events.emit(StoreTrouble(self.options.name, "reset", str(error), self.options.interval))
        else:
            if self._failures:
                self.events.emit(StoreRecovered(self.options.name, "reset", self._failures))
                self._failures = 0
        self._looked = self._clock.monotonic()
        return max(self._left(sweeper), 0.0)

    def _left(self, sweeper: Sweeper) -> float:
        end = self._looked + self.options.interval
        # A look that failed has not learned what ends next: that time may be past.
        prompt = self.options.prompt and not self._failures
        return (min(end, sweeper.ends) if prompt else end) - self._clock.monotonic()
