"""What docs/how-to/debounce-throttle-dedupe.md says of keys happens, on every store, when workers run the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stowhand.jobs.job import Job, KeyMode, NewJob, State
from stowhand.protocols.queue_store import ActionResult, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from stowhand.tasks.context import Helpers
from stowhand.testing import FakeClock, MemoryStore, run_task_list_once
from tests.conftest import Run


class Shop:
    """A queue, a clock that stands still, and what its tasks have been given."""

    def __init__(self, store: QueueStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.ran: list[tuple[str, Any]] = []
        self.during: Callable[[Helpers], Coroutine[Any, Any, None]] | None = None

    async def add(self, number: int, *, task: str = "index", **details: Any) -> Job:
        return await self.store.jobs.enqueue(NewJob(task=task, payload=f'{{"n":{number}}}', key="k", **details))

    async def work(self) -> list[tuple[str, int]]:
        """Run what is due; the tasks and numbers that ran."""
        self.ran.clear()
        await run_task_list_once(self.store, {"index": self._index, "other": self._other})
        return list(self.ran)

    async def _index(self, payload: Any, helpers: Helpers) -> None:
        self.ran.append(("index", payload["n"]))
        during, self.during = self.during, None
        if during is not None:
            await during(helpers)

    async def _other(self, payload: Any) -> None:
        self.ran.append(("other", payload["n"]))


Story = Callable[[Shop], Coroutine[Any, Any, None]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def tell(request: pytest.FixtureRequest, run: Run) -> Callable[[Story], None]:
    """Run a story in a new shop."""
    kind = request.param
    url = {"memory": "", "sqlite": f"sqlite:///{request.getfixturevalue('tmp_path')}/queue.db"}.get(kind)
    if url is None:
        url = request.getfixturevalue("postgres_url")

    @asynccontextmanager
    async def shop() -> AsyncIterator[Shop]:
        clock = FakeClock()
        store = open_store(url, StoreOptions(pinned=clock.now)) if url else MemoryStore(clock)
        await store.schema.install()
        await store.open()
        yield Shop(store, clock)
        await store.close()

    async def told(story: Story) -> None:
        async with shop() as place:
            await story(place)

    return lambda story: run(told(story))


def test_debounced_events_run_once_after_it_has_been_quiet(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        for number, pause in ((1, 5), (2, 3), (3, 9)):
            await shop.add(number, delay=10)
            await shop.clock.advance(pause)
            assert await shop.work() == []
        await shop.clock.advance(1)
        assert await shop.work() == [("index", 3)]
        await shop.clock.advance(60)
        assert await shop.work() == []

    tell(story)


def test_throttled_events_run_once_per_period(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        for number, pause in ((1, 5), (2, 3), (3, 1)):
            await shop.add(number, delay=10, key_mode=KeyMode.PRESERVE_RUN_AT)
            await shop.clock.advance(pause)
            assert await shop.work() == []
        await shop.clock.advance(1)
        assert await shop.work() == [("index", 3)]
        await shop.add(4, delay=10, key_mode=KeyMode.PRESERVE_RUN_AT)
        await shop.clock.advance(9)
        assert await shop.work() == []
        await shop.clock.advance(1)
        assert await shop.work() == [("index", 4)]

    tell(story)


def test_an_unsafe_event_beside_a_running_job_has_no_effect(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        async def once_more(helpers: Helpers) -> None:
            await shop.add(2, key_mode=KeyMode.UNSAFE_DEDUPE)

        shop.during = once_more
        await shop.add(1)
        assert await shop.work() == [("index", 1)]
        assert await shop.work() == []

    tell(story)


def test_the_key_of_a_completed_job_is_free(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        first = await shop.add(1)
        await shop.work()
        assert (await shop.store.admin.remove_key("k")).result is ActionResult.MISSING
        assert (await shop.add(2)).id != first.id
        assert await shop.work() == [("index", 2)]

    tell(story)


def test_a_key_may_change_the_task(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        first = await shop.add(1)
        second = await shop.add(2, task="other")
        assert first.id == second.id
        assert await shop.work() == [("other", 2)]

    tell(story)


def test_a_key_of_a_running_job_runs_a_second_time(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        async def once_more(helpers: Helpers) -> None:
            await shop.add(2)

        shop.during = once_more
        await shop.add(1)
        assert await shop.work() == [("index", 1), ("index", 2)]

    tell(story)


def test_a_running_job_whose_key_is_removed_is_not_retried(tell: Callable[[Story], None]) -> None:
    async def story(shop: Shop) -> None:
        async def remove_and_fail(helpers: Helpers) -> None:
            await shop.store.admin.remove_key("k")
            raise ValueError("in vain")

        shop.during = remove_and_fail
        job = await shop.add(1)
        assert await shop.work() == [("index", 1)]
        await shop.clock.advance(3600)
        assert await shop.work() == []
        left = await shop.store.jobs.get(job.id)
        assert left is not None
        assert left.state is State.CANCELED

    tell(story)
