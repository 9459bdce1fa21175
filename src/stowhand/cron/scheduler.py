"""The scheduler: it makes one job of every tick of a crontab, for any number of schedulers.

    start     register the items in the store, and backfill missed ticks, as far back as each item's ``fill``
    follow    enter ticks when they are due by the store's clock, overdue ones first
    restart   after any error; enter ticks that became due meanwhile

The store's ledger decides: each (item, tick) becomes at most one job, for any number of schedulers and repetitions.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice

from stowhand.clock import Clock, SystemClock
from stowhand.cron.agenda import ONE_MINUTE, Agenda, Due, in_order, next_minute, this_minute
from stowhand.cron.item import ParsedItem
from stowhand.errors import InvalidJob
from stowhand.events import CronClockMoved, CronConflict, CronScheduled, CronStarted, Events, SchedulingFailed
from stowhand.jobs.job import NewJob
from stowhand.protocols.options import OUTAGE_BACKOFF
from stowhand.protocols.queue_store import KnownItem, LedgerEntry, QueueStore, Tick

CLOCK_TOLERANCE_SECONDS = 10.0
"""Deviation of the store's clock above which it is reported."""
TICKS_PER_TRANSACTION = 200
"""Transactions are short, so that a long backfill does not block others."""
CONFLICT_WARNING_INTERVAL_SECONDS = 3600.0
"""Minimum time between two warnings about one identifier."""
REPORT_INTERVAL_SECONDS = 50.0
"""Interval of the reports of a scheduler's items, one per read of the store's clock."""
MIN_PAUSE_SECONDS = 0.005
"""The store's clock and the local one never agree exactly. Without a pause the scheduler would poll in a busy loop."""


class Scheduler:
    """Scheduler of a process. Several processes on one store share the work."""

    def __init__(
        self,
        store: QueueStore,
        items: Iterable[ParsedItem],
        events: Events | None = None,
        clock: Clock | None = None,
        on_enqueue: Callable[[NewJob], NewJob] | None = None,
    ) -> None:
        """``on_enqueue``: function applied to every job before it is entered."""
        self._store = store
        self._events = events or Events()
        self._clock = clock or SystemClock()
        self._agenda = Agenda(items, self._item_failed)
        self._writer = TickWriter(store, self._events, self._clock, on_enqueue)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._reported_at = float("-inf")
        """Time of the last report of its items, by the monotonic clock."""
        self._clock_reading: tuple[datetime, float] | None = None
        """The store's time, and the local monotonic time at which it was read."""
        self._next_items: tuple[ParsedItem, ...] | None = None
        """New items, which replace the current ones between two steps."""
        self._wake = asyncio.Event()
        self._failures = 0
        self._work: asyncio.Task[None] | None = None
        self._stopped = False
        self._busy_since: float | None = None

    @property
    def items(self) -> Sequence[ParsedItem]:
        """The items that are scheduled, or are about to be."""
        return self._agenda.items if self._next_items is None else self._next_items

    @property
    def busy(self) -> float:
        """Seconds since the current step started; 0 while it waits for a tick. From any thread."""
        since = self._busy_since
        return 0.0 if since is None else max(self._clock.monotonic() - since, 0.0)

    async def run(self) -> None:
        """Schedule until ``stop`` or a cancellation. Any error is reported, and scheduling is retried."""
        if self._stopped:
            return
        self._work = asyncio.get_running_loop().create_task(self._follow(), name="stowhand cron")
        try:
            await asyncio.wait([self._work])
        finally:
            self._work.cancel()
            with suppress(asyncio.CancelledError):
                await self._work

    async def run_once(self) -> int:
        """Backfill, and enter the ticks of the current minute. Return the number of new jobs.

        Raises the errors of the store; it may be called again.
        """
        if not self.items:
            return 0
        now = await self._read_clock()
        self._agenda.start(this_minute(now))
        return await self._start(now) + await self._enter_due(now)

    def reload(self, items: Iterable[ParsedItem]) -> None:
        """Schedule these items from now on. Call it on the loop of ``run``."""
        self._next_items = tuple(items)
        self._wake.set()

    def stop(self) -> None:
        """Stop at once, in the middle of any step. Idempotent."""
        self._stopped = True
        if self._work is not None:
            self._work.cancel()

    async def _follow(self) -> None:
        while True:
            self._busy_since = self._clock.monotonic()
            if self._next_items is not None:
                self._agenda.replace(self._next_items)
                self._next_items = None
            try:
                if self._agenda.items:
                    now = await self._read_clock()
                    self._agenda.start(next_minute(now))
                    await self._start(now)
                await self._keep_up()
            except Exception as error:  # noqa: BLE001 - boundary: the top of the scheduler; reported, and tried again
                self._failures += 1
                pause = OUTAGE_BACKOFF(self._failures)
                if self._failures == 1:
                    self._events.emit(SchedulingFailed(f"{type(error).__name__}: {error}", pause))
                self._busy_since = None
                await self._clock.sleep(pause)

    async def _keep_up(self) -> None:
        """Enter ticks when they are due, until there are new items."""
        while self._next_items is None:
            if self._agenda.items:
                now = await self._read_clock()
                if self._agenda.drop_overdue(now):
                    await self._start(now)
                if self._clock.monotonic() - self._reported_at >= REPORT_INTERVAL_SECONDS:
                    await self._report()
                await self._enter_due(now)
                self._failures = 0
            await self._sleep()

    async def _start(self, now: datetime) -> int:
        """Register the items, and backfill those that were known before."""
        items = self._agenda.items
        known = await self._store.timetable.register([(item.identifier, item.spec) for item in items])
        await self._report()
        plans = [(item, await self._plan(item, known_item, now)) for item, known_item in zip(items, known, strict=True)]
        new_jobs = await self._writer.enter(in_order(plans), now, backfilled=True)
        self._events.emit(CronStarted(tuple(item.identifier for item in items), new_jobs))
        return new_jobs

    async def _report(self) -> None:
        await self._store.timetable.report(self._agenda.identifiers, self._name)
        self._reported_at = self._clock.monotonic()

    async def _plan(self, item: ParsedItem, known: KnownItem, now: datetime) -> Iterable[datetime]:
        """Return the ticks to backfill: those after the last tick, because schedulers backfill before they go on."""
        until = min(now, self._agenda.cursor(item))
        since = fill_from(item, known, until)
        return await self._call_function(item, since, until) if item.is_function else item.ticks(since, until)

    async def _call_function(self, item: ParsedItem, start: datetime, until: datetime) -> list[datetime]:
        """Call the item's function for all these minutes, a day at a time so that it does not block the loop."""
        ticks: list[datetime] = []
        while start < until:
            end = min(start + timedelta(days=1), until)
            ticks += self._agenda.ticks(item, start, end)
            await self._clock.sleep(0)
            start = end
        return ticks

    async def _enter_due(self, now: datetime) -> int:
        new_jobs = await self._writer.enter(self._agenda.due(now), now, on_progress=self._agenda.done_until)
        self._agenda.done_until(this_minute(now) + ONE_MINUTE)
        return new_jobs

    async def _read_clock(self) -> datetime:
        """Return the store's time. Report a deviation of its clock; no tick is repeated or lost."""
        requested_at = self._clock.monotonic()
        now = await self._store.timetable.now()
        answered_at = self._clock.monotonic()
        if self._clock_reading is not None:
            moved = (now - self._clock_reading[0]).total_seconds() - (answered_at - self._clock_reading[1])
            if abs(moved) > CLOCK_TOLERANCE_SECONDS + answered_at - requested_at:
                self._events.emit(CronClockMoved(moved))
                if moved < 0:
                    self._agenda.back_to(next_minute(now))
        self._clock_reading = (now, answered_at)
        return now

    async def _sleep(self) -> None:
        """Sleep until a tick is due, there are new items, or the store's clock must be read again."""
        if self._next_items is not None:
            return
        self._wake.clear()
        timer = None
        if self._agenda.items and self._clock_reading is not None:
            store_time, read_at = self._clock_reading
            pause = self._agenda.pause(store_time + timedelta(seconds=self._clock.monotonic() - read_at))
            timer = self._clock.call_later(max(pause, MIN_PAUSE_SECONDS), self._wake.set)
        self._busy_since = None
        try:
            await self._wake.wait()
        finally:
            self._busy_since = self._clock.monotonic()
            if timer is not None:
                timer.cancel()

    def _item_failed(self, item: ParsedItem, error: Exception) -> None:
        self._events.emit(SchedulingFailed(f"{item.identifier}: {type(error).__name__}: {error}", 0.0))


def fill_from(item: ParsedItem, known: KnownItem, start: datetime) -> datetime:
    """Return the time at which a backfill before ``start`` starts; ``start`` or later if there is none.

    It covers neither ticks up to the last scheduled one, nor ticks before the item was known.
    """
    earliest = known.known_since if known.last_tick is None else known.last_tick + ONE_MINUTE
    return max(start - timedelta(seconds=item.fill), earliest)


class TickWriter:
    """Writes ticks into the ledger of a store, which makes each a job at most once, and reports the outcomes.

    It writes ticks in order, some hundreds per transaction.
    """

    def __init__(
        self, store: QueueStore, events: Events, clock: Clock, on_enqueue: Callable[[NewJob], NewJob] | None = None
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._on_enqueue = on_enqueue or (lambda job: job)
        self._warned_at: dict[str, float] = {}

    async def enter(
        self,
        due: Iterable[Due],
        now: datetime,
        *,
        backfilled: bool = False,
        on_progress: Callable[[datetime], None] = lambda at: None,
    ) -> int:
        """Enter all ticks; return the number of new jobs. ``on_progress`` is called with the last minute of each batch.

        Raises the errors of the store. Entered ticks stay, and a repeated call enters the rest.
        """
        new_jobs = 0
        remaining = iter(due)
        while batch := list(islice(remaining, TICKS_PER_TRANSACTION)):
            new_jobs += await self._write(batch, now, backfilled=backfilled)
            on_progress(batch[-1][0])
            await self._clock.sleep(0)  # a store that never waits must not block the loop
        return new_jobs

    async def _write(self, batch: Sequence[Due], now: datetime, *, backfilled: bool) -> int:
        ticks = list(self._ticks(batch, backfilled=backfilled))
        try:
            entries = await self._store.timetable.schedule([tick for _, tick in ticks]) if ticks else ()
        except InvalidJob as error:
            if len(batch) > 1:  # the refused job of one item must not prevent those of others
                return sum([await self._write([due], now, backfilled=backfilled) for due in batch])
            self._report_refusal(batch[0][1], error)
            return 0
        for (item, tick), entry in zip(ticks, entries, strict=True):
            self._emit(item, tick, entry, now)
        return sum(entry.is_own for entry in entries)

    def _ticks(self, batch: Sequence[Due], *, backfilled: bool) -> Iterator[tuple[ParsedItem, Tick]]:
        for at, item in batch:
            try:
                job = self._on_enqueue(item.job(at, backfilled=backfilled))
            except Exception as error:  # noqa: BLE001 - boundary: the application's on_enqueue; other ticks go on
                self._report_refusal(item, error)
            else:
                yield item, Tick(identifier=item.identifier, at=at, job=job, spec=item.spec, backfilled=backfilled)

    def _emit(self, item: ParsedItem, tick: Tick, entry: LedgerEntry, now: datetime) -> None:
        if entry.is_own:
            if self._events.wants(CronScheduled):
                late = max((now - tick.at).total_seconds(), 0.0)
                self._events.emit(
                    CronScheduled(item.identifier, item.task, entry.job_id, tick.at, tick.backfilled, late)
                )
        elif entry.spec != item.spec and self._should_warn(item.identifier):
            self._events.emit(CronConflict(item.identifier, tick.at, item.spec, entry.spec))

    def _should_warn(self, identifier: str) -> bool:
        now = self._clock.monotonic()
        if now - self._warned_at.get(identifier, float("-inf")) < CONFLICT_WARNING_INTERVAL_SECONDS:
            return False
        self._warned_at[identifier] = now
        return True

    def _report_refusal(self, item: ParsedItem, error: Exception) -> None:
        """Report a tick that will never become a job."""
        reason = str(error) if isinstance(error, InvalidJob) else f"{type(error).__name__}: {error}"
        self._events.emit(SchedulingFailed(f"{item.identifier}: this tick is skipped: {reason}", 0.0))
