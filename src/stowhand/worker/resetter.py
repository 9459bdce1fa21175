"""Finds jobs whose workers are lost, and resets them: in every worker (Sweeper), or in its own process (Resetter).

A sweep asks the store whether a foreign lease has expired, and when the next one expires. If one has expired, it resets
jobs page by page. Sweeps follow each other at an interval. Another sweep runs when the next foreign lease expires, as
reported by the last sweep or by an empty claim.

A lease that has already expired does not set that time. If another transaction locks its row, or its reset is refused,
every idle worker would sweep again and again. The interval covers such rows.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from stowhand.clock import Clock, SystemClock, Ticker
from stowhand.errors import ConfigurationError, SchemaTooNew, StoreError
from stowhand.events import Events, JobsReset, StoreCallFailed, StoreRecovered
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.protocols.options import Seconds, Switch, Text, one_line, read_fields
from stowhand.protocols.store import Foreign, Heartbeats, Store, check_arguments, heartbeats_of
from stowhand.worker.host import log_by_default
from stowhand.worker.reports import RefusalReporter

IDLE_INTERVAL_FACTOR = 6
"""Factor of the interval in a worker without recent jobs."""
MAINTENANCE_INTERVAL_SECONDS = 600.0
CHECK_INTERVAL_SECONDS = 30.0
MAX_PAGES_PER_TICK = 20
"""Limit of pages, so that many stalled jobs do not delay a beat."""
MAX_JITTER_SECONDS = 0.5
"""Maximum delay by the worker's name: many idle workers may know the same end of a lease."""
NEVER = float("inf")


class SweepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds that determine when a sweeper looks for stalled jobs."""

    interval: float
    """Interval of sweeps; 0: one at each tick."""
    slack: float
    """Time after a lease's end before the job is reset."""
    memory: float = 0.0
    """Time after the last job for which the interval applies. After it, the interval is six times as long."""
    lease: float = NEVER
    """Maximum time between two reports of the held leases: meanwhile a job may be claimed and its worker lost."""


class Sweeper:
    """Finder of stalled jobs, which it resets. ``tick`` runs on the loop of ``heartbeats``, as often as you like."""

    def __init__(
        self,
        heartbeats: Heartbeats,
        events: Events,
        clock: Clock,
        name: str,
        times: SweepTimes,
        *,
        is_over: Callable[[], bool] = lambda: False,
        on_reset: Callable[[Sequence[ResetJob]], object] = lambda jobs: None,
    ) -> None:
        """``is_over``: whether a sweep should end with the current page; ``on_reset`` receives the reset jobs."""
        self._name = name
        self._heartbeats = heartbeats
        self._events = events
        self._clock = clock
        self._times = times
        self._is_over = is_over
        self._on_reset = on_reset
        self.refusals = RefusalReporter(heartbeats, events, name)
        self._jitter = min(MAX_JITTER_SECONDS, times.slack / 2) * zlib.crc32(name.encode()) / 2**32
        self._swept_at = float("-inf")
        self._known_at = float("-inf")
        """When the store last reported the held leases."""
        self.next_end_at = NEVER
        """When the next foreign lease expires, jitter included."""
        self._spared_at = float("-inf")
        """When a claim last reported that no lease has expired, so that a sweep was not needed."""
        self._has_found_expired = False
        """Whether the last sweep found an expired lease."""
        self._maintained_at = float("-inf")
        self._checked_at = float("-inf")

    def due(self, last_work_at: float) -> float:
        """Return when to sweep next. ``last_work_at``: when the worker last had a job. Both are monotonic times."""
        was_spared = self._spared_at > last_work_at
        is_recent = self._has_found_expired or (
            not was_spared and self._clock.monotonic() - last_work_at <= self._times.memory
        )
        interval = self._times.interval if is_recent else self._times.interval * IDLE_INTERVAL_FACTOR
        return min(self._swept_at + interval, self._known_at + self._times.lease, self.next_end_at)

    def note_foreign(self, foreign: Foreign) -> None:
        """Note foreign leases reported by an empty claim, which may replace a sweep. Callable from any thread."""
        now = self._clock.monotonic()
        self._known_at = now
        if foreign.none_expired:
            self._swept_at = self._spared_at = now
        if self.next_end_at - self._jitter > now:  # otherwise it may have expired, and expired leases are not reported
            self.next_end_at = self._after(foreign, now)

    def expect(self, seconds: float) -> None:
        """Note a foreign lease of ``seconds`` that starts or is renewed now. Callable from any thread."""
        end_at = self._clock.monotonic() + seconds + self._times.slack + self._jitter
        self.next_end_at = min(self.next_end_at, end_at)

    async def tick(self, *, last_work_at: float, list_own_leases: Callable[[], Sequence[Lease]] = tuple) -> None:
        """Reset stalled jobs if a sweep is due. After StoreUnreachable, the next tick repeats it.

        ``last_work_at``: as for ``due``. ``list_own_leases``: returns the leases that this worker renews.
        """
        now = self._clock.monotonic()
        if now < self.due(last_work_at):
            return
        foreign = await self._heartbeats.foreign(list_own_leases(), self._times.slack)
        if foreign is None or foreign.has_expired:
            await self._reset_stalled()
        self._swept_at = now
        self._known_at = now
        self._has_found_expired = foreign is not None and foreign.has_expired
        self.next_end_at = NEVER if foreign is None else self._after(foreign, now)
        if now - self._checked_at >= CHECK_INTERVAL_SECONDS:
            await self._heartbeats.check()
            self._checked_at = now
        if now - self._maintained_at >= MAINTENANCE_INTERVAL_SECONDS:
            self._maintained_at = now  # first: failed maintenance is not repeated at each sweep
            await self._heartbeats.maintain()

    async def _reset_stalled(self) -> None:
        for _ in range(MAX_PAGES_PER_TICK):
            jobs = await self._heartbeats.reset_stalled(self._times.slack)
            self.report(jobs)
            self.refusals.report()
            if not jobs or self._is_over():
                break

    def _after(self, foreign: Foreign, now: float) -> float:
        return NEVER if foreign.expires_in is None else now + foreign.expires_in + self._jitter

    def report(self, jobs: Sequence[ResetJob]) -> None:
        """Count the reset jobs, and emit an event."""
        if jobs:
            self._on_reset(jobs)
            self._events.emit(JobsReset(tuple(jobs), self._name))


STOP_TIMEOUT_SECONDS = 5.0
"""Time limit of the call under way when the resetter stops."""


class ResetterOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of a resetter. Times are seconds or a ``timedelta``."""

    name: Annotated[str, Text("In logs and metrics.", check=one_line)] = "resetter"
    interval: Annotated[float, Seconds("Interval of searches for stalled jobs.")] = 30.0
    slack: Annotated[float, Seconds("Time after the end of its lease before a job is reset.", minimum=0)] = 0.0
    prompt: Annotated[
        bool, Switch("Also search as soon as a lease expires, as workers do, and not only at each interval.")
    ] = False

    def __post_init__(self) -> None:
        if problems := read_fields(self):
            raise ConfigurationError("; ".join(problems))


class Resetter:
    """Routine that sweeps at once and then at each interval. A failed sweep is reported and repeated."""

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
        check_arguments(store, options, ResetterOptions)
        self.options = options or ResetterOptions()
        self._logs_by_default = events is None
        self.events = events if events is not None else Events()
        self._store = store
        self._clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        self._failures = 0
        self._swept_at = float("-inf")
        self._sweeper: Sweeper | None = None
        self._ticker: Ticker | None = None
        self._crash: Exception | None = None

    async def run(self) -> None:
        """Sweep until stopped. It waits during an outage, and raises other errors of the store."""
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
            SweepTimes(interval=0.0, slack=self.options.slack),  # ``_seconds_left`` decides when to sweep
            is_over=self._stopping.is_set,
        )
        loop = asyncio.get_running_loop()

        async def tick() -> float:
            try:
                return await self._sweep(sweeper)
            except Exception as error:  # noqa: BLE001 - boundary: top of the ticker; ``run`` raises it
                self._crash = error
                with suppress(RuntimeError):  # a call that outlived the loop
                    loop.call_soon_threadsafe(self._stopping.set)
                return self.options.interval

        ticker = self._ticker = self._clock.ticker("stowhand resetter", tick, on_end=heartbeats.close)
        try:
            await self._stopping.wait()
        finally:
            self._stopping.set()
            ticker.stop(STOP_TIMEOUT_SECONDS)
            try:
                await ticker.ended()
            except StoreError:
                pass  # an unreachable store has no connection to close
            except Exception as error:  # noqa: BLE001 - boundary: end of the thread; raised below
                self._crash = self._crash or error
        if self._crash is not None:
            raise self._crash

    def stop(self, *, now: bool = False) -> None:
        """Stop soon. May be repeated. Call it on the resetter's own loop."""
        self._stopping.set()

    def expect(self, lease: float) -> None:
        """Note a lease of ``lease`` seconds that starts now: a prompt resetter sweeps at its end."""
        if (
            self._sweeper is not None
            and self._ticker is not None
            and self.options.prompt
            and lease < self.options.interval
        ):
            self._sweeper.expect(lease)
            self._ticker.poke()

    async def _sweep(self, sweeper: Sweeper) -> float:
        """Sweep if it is due. Return the seconds until the next sweep."""
        if (seconds := self._seconds_left(sweeper)) > 0:
            return seconds
        try:
            await sweeper.tick(last_work_at=self._clock.monotonic())
        except SchemaTooNew:
            raise  # this version must not write to a newer schema
        except StoreError as error:
            self._failures += 1
            self.events.emit(StoreCallFailed(self.options.name, "reset", str(error), self.options.interval))
        else:
            if self._failures:
                self.events.emit(StoreRecovered(self.options.name, "reset", self._failures))
                self._failures = 0
        self._swept_at = self._clock.monotonic()
        return max(self._seconds_left(sweeper), 0.0)

    def _seconds_left(self, sweeper: Sweeper) -> float:
        due_at = self._swept_at + self.options.interval
        # After a failed sweep the next end is not known: it may be past.
        if self.options.prompt and not self._failures:
            due_at = min(due_at, sweeper.next_end_at)
        return due_at - self._clock.monotonic()
