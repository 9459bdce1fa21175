"""Makes one job of every tick of a crontab, however many schedulers there are.

    begin     make the items known to the store, and enter what was missed, as far back as each item's ``fill``
    follow    whenever something is due by the store's clock, enter it; what is overdue comes first
    again     after any error; what came due meanwhile is owed, and what the store forgot is filled in

The store's ledger decides what is done: each (item, tick) becomes one job at most, ever, however many schedulers there
are and however often one of them repeats itself.
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
from stowhand.cron.agenda import MINUTE, Agenda, Due, in_order, next_minute, this_minute
from stowhand.cron.item import ParsedItem
from stowhand.errors import InvalidJob
from stowhand.events import CronClockMoved, CronConflict, CronScheduled, CronStarted, Events, SchedulingFailed
from stowhand.jobs.job import NewJob
from stowhand.protocols.options import OUTAGE
from stowhand.protocols.queue_store import KnownItem, LedgerEntry, QueueStore, Tick

CLOCK_TOLERANCE_SECONDS = 10.0
"""Seconds by which the store's clock may differ from what it should show before that is reported."""
TICKS_PER_TRANSACTION = 200
"""Ticks in one transaction at most: short ones, so that a long backfill does not make others wait."""
CONFLICT_WARNING_INTERVAL_SECONDS = 3600.0
"""Seconds between two warnings about one identifier, at least."""
REPORT_INTERVAL_SECONDS = 50.0
"""A scheduler reports its items this often: at every look at the store's clock, of which there is one a minute."""
MIN_PAUSE_SECONDS = 0.005
"""Seconds. The store's clock and ours never agree to the last bit: without a pause it would be asked in a busy loop."""


class Scheduler:
    """Scheduler of a process; several processes on one store share the work by themselves."""

    def __init__(
        self,
        store: QueueStore,
        items: Iterable[ParsedItem],
        events: Events | None = None,
        clock: Clock | None = None,
        enqueued: Callable[[NewJob], NewJob] | None = None,
    ) -> None:
        """``enqueued``: what every job goes through before it is entered."""
        self._store = store
        self._events = events or Events()
        self._clock = clock or SystemClock()
        self._agenda = Agenda(items, self._item_failed)
        self._writer = TickWriter(store, self._events, self._clock, enqueued)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._reported_at = float("-inf")
        """Moment of the last report of its items, by the monotonic clock."""
        self._clock_reading: tuple[datetime, float] | None = None
        """The store's clock, and ours at the same moment."""
        self._next_items: tuple[ParsedItem, ...] | None = None
        """New items, taken up between two steps."""
        self._wake = asyncio.Event()
        self._failures = 0
        self._work: asyncio.Task[None] | None = None
        self._stopped = False
        self._busy_since: float | None = None

    @property
    def items(self) -> Sequence[ParsedItem]:
        """The items that are scheduled, or will be in a moment."""
        return self._agenda.items if self._next_items is None else self._next_items

    @property
    def busy(self) -> float:
        """Seconds that it has been at what it does now; 0: it waits for what comes due. From any thread."""
        since = self._busy_since
        return 0.0 if since is None else max(self._clock.monotonic() - since, 0.0)

    async def run(self) -> None:
        """Schedule until ``stop`` or until cancelled. Raises nothing: any error is reported, and the call repeated."""
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
        """Backfill, and enter what is due in the minute that is running. How many jobs that made.

        Raises what the store raises; it may be called again.
        """
        if not self.items:
            return 0
        now = await self._read_clock()
        self._agenda.start(this_minute(now))
        return await self._start(now) + await self._enter_due(now)

    def reload(self, items: Iterable[ParsedItem]) -> None:
        """Schedule these from now on. On the loop that ``run`` runs on."""
        self._next_items = tuple(items)
        self._wake.set()

    def stop(self) -> None:
        """End at once, in the middle of whatever it does: nothing of it needs an end. Harmless when repeated."""
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
                pause = OUTAGE(self._failures)
                if self._failures == 1:
                    self._events.emit(SchedulingFailed(f"{type(error).__name__}: {error}", pause))
                self._busy_since = None
                await self._clock.sleep(pause)

    async def _keep_up(self) -> None:
        """Enter what comes due, until there are other items."""
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
        """Make the items known, and what was known before is filled up to where it is followed from."""
        items = self._agenda.items
        known = await self._store.timetable.register([(item.identifier, item.spec) for item in items])
        await self._report()
        plans = [(item, await self._plan(item, known_item, now)) for item, known_item in zip(items, known, strict=True)]
        made = await self._writer.enter(in_order(plans), now, backfilled=True)
        self._events.emit(CronStarted(tuple(item.identifier for item in items), made))
        return made

    async def _report(self) -> None:
        await self._store.timetable.report(self._agenda.identifiers, self._name)
        self._reported_at = self._clock.monotonic()

    async def _plan(self, item: ParsedItem, known: KnownItem, now: datetime) -> Iterable[datetime]:
        """Return the ticks to backfill: those after the last tick, because schedulers backfill before they go on."""
        until = min(now, self._agenda.cursor(item))
        since = fill_from(item, known, until)
        return await self._ask(item, since, until) if item.is_function else item.ticks(since, until)

    async def _ask(self, item: ParsedItem, start: datetime, until: datetime) -> list[datetime]:
        """Call the item's function for all these minutes, a day at a time so that it does not block the loop."""
        found: list[datetime] = []
        while start < until:
            end = min(start + timedelta(days=1), until)
            found += self._agenda.ticks(item, start, end)
            await self._clock.sleep(0)
            start = end
        return found

    async def _enter_due(self, now: datetime) -> int:
        made = await self._writer.enter(self._agenda.due(now), now, on_progress=self._agenda.done_until)
        self._agenda.done_until(this_minute(now) + MINUTE)
        return made

    async def _read_clock(self) -> datetime:
        """The store's clock. When it is not where it should be, that is reported; no tick is repeated or forgotten."""
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
        """Sleep until something is due, or there are other items, or the store's clock is to be looked at again."""
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
    """The moment that a backfill before ``start`` reaches back to; not before ``start``: there is none.

    Nothing up to the latest tick that was scheduled, or, if there was none, before the item was known: what was never
    planned is never made up for.
    """
    earliest = known.known_since if known.last_tick is None else known.last_tick + MINUTE
    return max(start - timedelta(seconds=item.fill), earliest)


class TickWriter:
    """Makes jobs of ticks: in order, some hundreds a transaction, each at most once however many schedulers there are.

    It writes the ticks into the ledger of a store, and reports what became of them.
    """

    def __init__(
        self, store: QueueStore, events: Events, clock: Clock, enqueued: Callable[[NewJob], NewJob] | None = None
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._enqueued = enqueued or (lambda job: job)
        self._warned_at: dict[str, float] = {}

    async def enter(
        self,
        due: Iterable[Due],
        now: datetime,
        *,
        backfilled: bool = False,
        on_progress: Callable[[datetime], None] = lambda at: None,
    ) -> int:
        """Enter them all; how many jobs were made by this call. ``reached`` hears what is done up to which minute.

        Raises what the store raises. Whatever was entered by then stays, and a repeat enters the rest.
        """
        made = 0
        row = iter(due)
        while batch := list(islice(row, TICKS_PER_TRANSACTION)):
            made += await self._write(batch, now, backfilled=backfilled)
            on_progress(batch[-1][0])
            await self._clock.sleep(0)  # a store that never waits must not keep the loop
        return made

    async def _write(self, batch: Sequence[Due], now: datetime, *, backfilled: bool) -> int:
        ticks = list(self._ticks(batch, backfilled=backfilled))
        try:
            entries = await self._store.timetable.schedule([tick for _, tick in ticks]) if ticks else ()
        except InvalidJob as error:
            if len(batch) > 1:  # one item's job, which the store refuses, must not keep back the others'
                return sum([await self._write([one], now, backfilled=backfilled) for one in batch])
            self._refused(batch[0][1], error)
            return 0
        for (item, tick), entry in zip(ticks, entries, strict=True):
            self._emit(item, tick, entry, now)
        return sum(entry.mine for entry in entries)

    def _ticks(self, batch: Sequence[Due], *, backfilled: bool) -> Iterator[tuple[ParsedItem, Tick]]:
        for at, item in batch:
            try:
                job = self._enqueued(item.job(at, backfilled=backfilled))
            except Exception as error:  # noqa: BLE001 - boundary: the application's on_enqueue; other ticks go on
                self._refused(item, error)
            else:
                yield item, Tick(identifier=item.identifier, at=at, job=job, spec=item.spec, backfilled=backfilled)

    def _emit(self, item: ParsedItem, tick: Tick, entry: LedgerEntry, now: datetime) -> None:
        if entry.mine:
            if self._events.wants(CronScheduled):
                late = max((now - tick.at).total_seconds(), 0.0)
                self._events.emit(
                    CronScheduled(item.identifier, item.task, entry.job_id, tick.at, tick.backfilled, late)
                )
        elif entry.spec != item.spec and self._may_warn(item.identifier):
            self._events.emit(CronConflict(item.identifier, tick.at, item.spec, entry.spec))

    def _may_warn(self, identifier: str) -> bool:
        now = self._clock.monotonic()
        if now - self._warned_at.get(identifier, float("-inf")) < CONFLICT_WARNING_INTERVAL_SECONDS:
            return False
        self._warned_at[identifier] = now
        return True

    def _refused(self, item: ParsedItem, error: Exception) -> None:
        """Report each tick that will never be a job."""
        reason = str(error) if isinstance(error, InvalidJob) else f"{type(error).__name__}: {error}"
        self._events.emit(SchedulingFailed(f"{item.identifier}: this tick is passed over: {reason}", 0.0))
