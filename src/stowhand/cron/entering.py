"""Makes jobs of ticks: in order, some hundreds a transaction, each at most once however many schedulers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from stowhand.clock import Clock
from stowhand.cron.agenda import Due
from stowhand.cron.item import ParsedItem
from stowhand.errors import InvalidJob
from stowhand.events import CronConflict, CronScheduled, CronTrouble, Events
from stowhand.protocols.queue_store import Entered, QueueStore, Tick

BATCH = 200
"""Ticks in one transaction at most: short ones, so that a long backfill does not make others wait."""
CONFLICT_EVERY = 3600.0
"""Seconds between two warnings about one identifier, at least."""


class Entering:
    """Writes ticks into the ledger of a store, and reports what became of them."""

    def __init__(self, store: QueueStore, events: Events, clock: Clock) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._warned: dict[str, float] = {}

    async def enter(
        self,
        due: Iterable[Due],
        now: datetime,
        *,
        backfilled: bool = False,
        reached: Callable[[datetime], None] = lambda at: None,
    ) -> int:
        """Enter them all; how many jobs were made by this call. ``reached`` hears what is done up to which minute.

        Raises what the store raises. Whatever was entered by then stays, and a repeat enters the rest.
        """
        made = 0
        row = iter(due)
        while batch := list(islice(row, BATCH)):
            made += await self._write(batch, now, backfilled=backfilled)
            reached(batch[-1][0])
            await self._clock.sleep(0)  # a store that never waits must not keep the loop
        return made

    async def _write(self, batch: Sequence[Due], now: datetime, *, backfilled: bool) -> int:
        ticks = list(self._ticks(batch, backfilled=backfilled))
        try:
            said = await self._store.timetable.schedule([tick for _, tick in ticks]) if ticks else ()
        except InvalidJob as error:
            if len(batch) > 1:  # one item's job, which the store refuses, must not keep back the others'
                return sum([await self._write([one], now, backfilled=backfilled) for one in batch])
            self._refused(batch[0][1], error)
            return 0
        for (item, tick), entered in zip(ticks, said, strict=True):
            self._tell(item, tick, entered, now)
        return sum(entered.mine for entered in said)

    def _ticks(self, batch: Sequence[Due], *, backfilled: bool) -> Iterator[tuple[ParsedItem, Tick]]:
        for at, item in batch:
            try:
                job = item.job(at, backfilled=backfilled)
            except InvalidJob as error:
                self._refused(item, error)
            else:
                yield item, Tick(identifier=item.identifier, at=at, job=job, spec=item.spec, backfilled=backfilled)

    def _tell(self, item: ParsedItem, tick: Tick, entered: Entered, now: datetime) -> None:
        if entered.mine:
            if self._events.wants(CronScheduled):
                late = max((now - tick.at).total_seconds(), 0.0)
                self._events.emit(
                    CronScheduled(item.identifier, item.task, entered.job_id, tick.at, tick.backfilled, late)
                )
        elif entered.spec != item.spec and self._may_warn(item.identifier):
            self._events.emit(CronConflict(item.identifier, tick.at, item.spec, entered.spec))

    def _may_warn(self, identifier: str) -> bool:
        now = self._clock.monotonic()
        if now - self._warned.get(identifier, float("-inf")) < CONFLICT_EVERY:
            return False
        self._warned[identifier] = now
        return True

    def _refused(self, item: ParsedItem, error: InvalidJob) -> None:
        """Said for each tick: its job will never be."""
        self._events.emit(CronTrouble(f"{item.identifier}: this tick is passed over: {error}", 0.0))
