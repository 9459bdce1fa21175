"""How long one answer serves all viewers of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stowhand.errors import SchemaTooNew, StoreError, StoreUnreachable
from stowhand.events import DashboardStoreLost, DashboardStoreRecovered, Event, Events
from stowhand.testing import FakeClock, MemoryStore
from stowhand.web.reader import Reader


class Counter:
    """A question that takes so many seconds of the clock."""

    def __init__(self, clock: FakeClock, takes: float) -> None:
        self._clock, self._takes = clock, takes
        self.asked = 0

    async def __call__(self, store: object) -> int:
        self.asked += 1
        await self._clock.advance(self._takes)
        return self.asked


async def _answers(takes: float, after: list[float]) -> list[int]:
    clock = FakeClock()
    store = MemoryStore()

    async def opened() -> MemoryStore:
        return store

    reader, question = Reader(opened, clock), Counter(clock, takes)
    rows = [await reader.query_shared("it", question)]
    for seconds in after:
        await clock.advance(seconds)
        rows.append(await reader.query_shared("it", question))
    return rows


def test_a_quick_answer_is_shared_for_a_second() -> None:
    assert asyncio.run(_answers(0.001, [0.9, 0.2])) == [1, 1, 2]


def test_slow_queries_are_repeated_less_often() -> None:
    assert asyncio.run(_answers(0.05, [4.9, 0.2])) == [1, 1, 2]
    assert asyncio.run(_answers(2.0, [7.9, 0.2])) == [1, 1, 2]


def test_a_failed_query_is_repeated_at_once() -> None:
    async def run() -> list[str]:
        reader = Reader(_opened, FakeClock())
        found, asked = [], 0

        async def question(store: object) -> str:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise RuntimeError("away")
            return "there"

        for _ in range(2):
            try:
                found.append(await reader.query_shared("it", question))
            except RuntimeError as error:
                found.append(str(error))
        return found

    async def _opened() -> MemoryStore:
        return MemoryStore()

    assert asyncio.run(run()) == ["away", "there"]


def test_an_expired_answer_is_not_kept() -> None:
    """Charts are asked for by the minute: each minute is another question."""

    async def run() -> int:
        clock = FakeClock()
        reader, question = Reader(_opened, clock), Counter(clock, 0.001)
        for minute in range(5):
            await reader.query_shared(minute, question)
            await clock.advance(60)
        held = [value for value in vars(reader).values() if isinstance(value, dict)]
        return max(map(len, held))

    async def _opened() -> MemoryStore:
        return MemoryStore()

    assert asyncio.run(run()) == 1


def test_an_outage_is_reported_once_and_so_is_its_end() -> None:
    async def run() -> list[Event]:
        notices: list[Event] = []
        events, store = Events(), MemoryStore()
        for kind in (DashboardStoreLost, DashboardStoreRecovered):
            events.on(kind, notices.append)

        async def opened() -> MemoryStore:
            return store

        async def away(store: object) -> None:
            raise StoreUnreachable("no route")

        async def there(store: object) -> None: ...

        reader = Reader(opened, events=events)
        for question in (there, away, away, there, there):
            with suppress(StoreUnreachable):
                await reader.query(question)
        return notices

    away, back = asyncio.run(run())
    assert away == DashboardStoreLost("no route")
    assert isinstance(back, DashboardStoreRecovered)
    assert 0 <= back.seconds < 60


class Upgraded(MemoryStore):
    """Its schema may become newer than this program."""

    is_newer = False

    async def open(self) -> None:
        if self.is_newer:
            raise SchemaTooNew("upgrade this program")
        await super().open()


def test_a_schema_upgrade_under_an_open_dashboard_is_noticed() -> None:
    """Within a minute, and at once where the store has not answered in between: upgrades come with restarts."""

    async def run() -> list[str]:
        clock, store, found = FakeClock(), Upgraded(), []

        async def opened() -> MemoryStore:
            return store

        async def answer(store: object) -> str:
            return "answered"

        async def away(store: object) -> str:
            raise StoreUnreachable("away")

        async def ask(question: Callable[[object], Awaitable[str]]) -> None:
            try:
                found.append(await reader.query(question))
            except StoreError as error:
                found.append(type(error).__name__)

        reader = Reader(opened, clock)
        await ask(answer)
        store.is_newer = True
        await ask(answer)
        await clock.advance(60.0)
        await ask(answer)
        await ask(answer)
        store.is_newer = False
        await ask(answer)
        await ask(away)
        store.is_newer = True
        await ask(answer)
        return found

    assert asyncio.run(run()) == [
        *("answered", "answered", "SchemaTooNew", "SchemaTooNew", "answered", "StoreUnreachable", "SchemaTooNew")
    ]
