"""Schedulers on one memory store that can be made to fail, whose clock a test moves apart from everybody's own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from stowhand import events
from stowhand.cron.crontab import parse_crontab
from stowhand.cron.item import ParsedItem
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import InvalidJob, StoreUnreachable
from stowhand.events import CronScheduled, Event, Events
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import JobFilter, KnownItem, LedgerEntry, Tick
from stowhand.protocols.store import StoreOptions
from stowhand.stores.sqlite.queue.timetable import Timetable
from stowhand.testing import FakeClock, MemoryStore

E = TypeVar("E", bound=Event)
KINDS = [
    kind for module in (events,) for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Event)
]


class Paper(MemoryStore):
    """A real store with a clock of its own; ``down``: it does not answer; ``mute``: it does it and loses the reply."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, StoreOptions(pinned=lambda: clock.now() + self.ahead))
        self.ahead = timedelta()
        """How far the store's clock is ahead of everybody's own."""
        self.down = False
        self.mute = 0
        self.lost_batch = 0
        """The reply to this call of ``schedule`` is lost, 1 is the first."""
        self.refused = ""
        """A task whose jobs it does not take."""
        self.gate: asyncio.Event | None = None
        self.batches: list[int] = []
        self.asked = 0
        """How often it was asked for the time."""
        self.timetable = PaperTimetable(self)


class PaperTimetable(Timetable):
    """As its store is."""

    def __init__(self, store: Paper) -> None:
        super().__init__(store._connections, store._options)
        self.store = store

    def _answer(self) -> None:
        if self.store.down:
            raise StoreUnreachable("the store does not answer")

    async def now(self) -> datetime:
        self.store.asked += 1
        self._answer()
        return await super().now()

    async def register(self, items: Sequence[tuple[str, str]]) -> Sequence[KnownItem]:
        self._answer()
        return await super().register(items)

    async def schedule(self, ticks: Sequence[Tick]) -> Sequence[LedgerEntry]:
        self._answer()
        if self.store.gate is not None:
            await self.store.gate.wait()
        if any(tick.job.task == self.store.refused for tick in ticks):
            raise InvalidJob(f"no {self.store.refused} here")
        self.store.batches.append(len(ticks))
        entered = await super().schedule(ticks)
        if self.store.mute or len(self.store.batches) == self.store.lost_batch:
            self.store.mute = max(self.store.mute - 1, 0)
            raise StoreUnreachable("the connection was cut")
        return entered


class Harness:
    """A store, a clock, and schedulers that come and go."""

    def __init__(self, at: str = "2030-01-01T00:00:00") -> None:
        self.clock = FakeClock(datetime.fromisoformat(f"{at}+00:00"))
        self.store = Paper(self.clock)
        self.said: list[Event] = []
        self._running: list[tuple[Scheduler, asyncio.Task[None]]] = []

    def scheduler(self, crontab: str | Sequence[ParsedItem]) -> Scheduler:
        """One that does not run yet."""
        events = Events()
        for kind in KINDS:
            events.on(kind, self.said.append)
        items = parse_crontab(crontab) if isinstance(crontab, str) else crontab
        return Scheduler(self.store, items, events, self.clock)

    async def start(self, crontab: str | Sequence[ParsedItem]) -> Scheduler:
        """One that has begun."""
        scheduler = self.scheduler(crontab)
        self._running.append((scheduler, asyncio.create_task(scheduler.run())))
        await self.clock.settle()
        return scheduler

    async def stop(self) -> None:
        """All of them, at once."""
        running, self._running = self._running, []
        for scheduler, _ in running:
            scheduler.stop()
        await self.clock.settle()
        for _, task in running:
            assert task.done(), "a scheduler keeps who stops it"
            task.result()

    async def goes_to(self, at: str) -> None:
        """Let time pass until then, by the store's clock."""
        wanted = datetime.fromisoformat(f"{at}+00:00")
        await self.clock.advance((wanted - await self.at()).total_seconds())

    async def at(self) -> datetime:
        """The store's time."""
        return self.clock.now() + self.store.ahead

    async def jobs(self) -> Sequence[Job]:
        return await self.store.inspect.list(JobFilter(states=tuple(State), limit=1_000_000))

    async def ticks(self, task: str | None = None) -> list[str]:
        """``_cron.ts`` of the jobs, with a star for those that were backfilled."""
        return [tick_of(job) for job in await self.jobs() if task in (None, job.task)]

    async def count(self) -> Counter[tuple[str, str]]:
        """How many jobs there are of each task and tick."""
        return Counter((job.task, cron_of(job)["ts"]) for job in await self.jobs())

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in self.said if isinstance(event, kind)]

    def lateness(self) -> list[float]:
        return [event.late for event in self.told(CronScheduled)]


@asynccontextmanager
async def in_harness(at: str = "2030-01-01T00:00:00") -> AsyncIterator[Harness]:
    """A harness that leaves nothing behind."""
    before = asyncio.all_tasks()
    harness = Harness(at)
    try:
        yield harness
    finally:
        harness.store.gate = None
        await harness.stop()
    await harness.clock.settle()
    assert asyncio.all_tasks() <= before, "a task outlived its scheduler"


def cron_of(job: Job) -> dict[str, Any]:
    cron: dict[str, Any] = json.loads(job.payload_text)["_cron"]
    return cron


def tick_of(job: Job) -> str:
    cron = cron_of(job)
    return str(cron["ts"]).removesuffix(":00.000Z") + ("*" if cron["backfilled"] else "")
