"""Finds jobs whose workers died, and resets them: in every worker (Sweeper), or in its own process (Resetter).

    look   ask the store about foreign leases: has one expired, and when does the next one expire?
    reset  if one has expired, reset jobs page by page
    when   once per interval, and when the next foreign lease expires, as seen by the last look or an empty claim

A lease that has already expired does not set that time. If another transaction locks its row, or its reset is refused,
every idle worker would look again and again. The interval covers such rows.
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
from stowhand.events import ChangeRefused, Events, JobsReset, StoreCallFailed, StoreRecovered
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.protocols.options import Seconds, Switch, Text, one_line, read_fields
from stowhand.protocols.store import Foreign, Heartbeats, RefusedChange, Store, check_arguments, heartbeats_of
from stowhand.worker.host import log_by_default

IDLE_FACTOR = 6
MAINTENANCE_INTERVAL_SECONDS = 600.0
CHECK_INTERVAL_SECONDS = 30.0
MAX_PAGES_PER_TICK = 20
"""Limit of pages, so that many stalled jobs do not delay a beat."""
MAX_JITTER_SECONDS = 0.5
"""Maximum random delay: many idle workers may know the same end of a lease."""
MAX_REPORTED_REFUSALS = 10_000
"""Number of refused changes that are remembered as reported."""
NEVER = float("inf")


class SweepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds that decide when a sweeper looks for stalled jobs."""

    interval: float
    """Interval of looks; 0: look at each tick."""
    slack: float
    """Time after a lease's end before the job is reset."""
    memory: float = 0.0
    """Time after the last job for which the interval stays; then it is six times as long."""
    lease: float = NEVER
    """Maximum time between looks at the held leases: meanwhile a job may be claimed and its worker die."""


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
        """``is_over`` tells whether a look should end with the current page; ``on_reset`` gets the reset jobs."""
        self._name = name
        self._heartbeats = heartbeats
        self._events = events
        self._clock = clock
        self._times = times
        self._is_over = is_over
        self._on_reset = on_reset
        self.refusals = Refusals(heartbeats, events, name)
        self._jitter = min(MAX_JITTER_SECONDS, times.slack / 2) * zlib.crc32(name.encode()) / 2**32
        self._looked_at = float("-inf")
        self._known_at = float("-inf")
        """When the store last reported the held leases."""
        self.ends = NEVER
        """When the next foreign lease expires, jitter included."""
        self._spared_at = float("-inf")
        """When a claim last reported that no lease has expired, so that a look was spared."""
        self._found_late = False
        """Whether the last look found an expired lease."""
        self._maintained_at = float("-inf")
        self._checked_at = float("-inf")

    def due(self, last_work_at: float) -> float:
        """Return when to look next. ``last_work_at``: when the worker last had a job. Both are monotonic times."""
        was_spared = self._spared_at > last_work_at
        is_recent = self._found_late or (
            not was_spared and self._clock.monotonic() - last_work_at <= self._times.memory
        )
        interval = self._times.interval if is_recent else self._times.interval * IDLE_FACTOR
        return min(self._looked_at + interval, self._known_at + self._times.lease, self.ends)

    def note_foreign(self, foreign: Foreign) -> None:
        """Note foreign leases seen by an empty claim, which may spare a look. Callable from any thread."""
        now = self._clock.monotonic()
        self._known_at = now
        if foreign.none_expired:
            self._looked_at = self._spared_at = now
        if self.ends - self._jitter > now:  # otherwise it may have expired, and expired leases are not reported
            self.ends = self._after(foreign, now)

    def expect(self, seconds: float) -> None:
        """Note a foreign lease of ``seconds`` that starts or is renewed now. Callable from any thread."""
        ends = self._clock.monotonic() + seconds + self._times.slack + self._jitter
        self.ends = min(self.ends, ends)

    async def tick(self, *, last_work_at: float, ours: Callable[[], Sequence[Lease]] = tuple) -> None:
        """Reset stalled jobs if it is time. After StoreUnreachable, the next tick repeats it.

        ``last_work_at``: as for ``due``. ``ours``: returns the leases that this worker renews.
        """
        now = self._clock.monotonic()
        if now < self.due(last_work_at):
            return
        foreign = await self._heartbeats.foreign(ours(), self._times.slack)
        if foreign is None or foreign.has_expired:
            await self._reset_stalled()
        self._looked_at = now
        self._known_at = now
        self._found_late = foreign is not None and foreign.has_expired
        self.ends = NEVER if foreign is None else self._after(foreign, now)
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


class Refusals:
    """Reporter of jobs that the database refuses to change: once per job and operation, on the heartbeat thread."""

    def __init__(self, heartbeats: Heartbeats, events: Events, name: str) -> None:
        self._heartbeats = heartbeats
        self._events = events
        self._name = name
        self._reported: dict[tuple[JobId, str], None] = {}

    def report(self) -> Sequence[RefusedChange]:
        """Return the changes refused since the last call, and emit an event for each new one."""
        refused = self._heartbeats.refused()
        for refusal in refused:
            key = refusal.job_id, refusal.operation
            if key not in self._reported:
                if len(self._reported) >= MAX_REPORTED_REFUSALS:
                    del self._reported[next(iter(self._reported))]
                self._reported[key] = None
                self._events.emit(ChangeRefused(self._name, refusal.job_id, refusal.operation, refusal.reason))
        return refused


STOP_TIMEOUT_SECONDS = 5.0
"""Time limit of the call under way when the resetter stops."""


class ResetterOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of a resetter. Times are seconds or a ``timedelta``."""

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
    """Routine that looks for stalled jobs at once and then every interval. A failed look is reported and repeated."""

    serves = True
    """Tells ``run_all`` to stop it when the routines that it serves have ended."""

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
        self._looked_at = float("-inf")
        self._sweeper: Sweeper | None = None
        self._ticker: Ticker | None = None
        self._crash: Exception | None = None

    async def run(self) -> None:
        """Look until stopped. It waits during an outage, and raises other errors of the store."""
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
            SweepTimes(interval=0.0, slack=self.options.slack),  # ``_left`` decides when to look
            is_over=self._stopping.is_set,
        )
        loop = asyncio.get_running_loop()

        async def tick() -> float:
            try:
                return await self._look(sweeper)
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
        """Note a lease of ``lease`` seconds that starts now: a prompt resetter looks at its end."""
        if (
            self._sweeper is not None
            and self._ticker is not None
            and self.options.prompt
            and lease < self.options.interval
        ):
            self._sweeper.expect(lease)
            self._ticker.poke()

    async def _look(self, sweeper: Sweeper) -> float:
        """Look if it is time. Return the seconds until the next look."""
        if (left := self._left(sweeper)) > 0:
            return left
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
        self._looked_at = self._clock.monotonic()
        return max(self._left(sweeper), 0.0)

    def _left(self, sweeper: Sweeper) -> float:
        end = self._looked_at + self.options.interval
        # A failed look does not know the next end: that time may be past.
        prompt = self.options.prompt and not self._failures
        return (min(end, sweeper.ends) if prompt else end) - self._clock.monotonic()
