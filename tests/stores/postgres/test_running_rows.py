"""What a person sees of a job that runs, and how a listener that is not answered waits longer and longer."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from stowhand.clock import SystemClock
from stowhand.jobs.job import NewJob
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim

NOBODY_LISTENS_HERE = "postgresql://127.0.0.1:1/nothing"


def test_a_running_job_and_its_serial_key_show_their_holder(store: PostgresStore, sql: Sql, run: Any) -> None:
    async def story() -> None:
        for _ in range(2):
            await store.jobs.enqueue(NewJob(task="t", serial="q"))
        await claim(store, 2, worker="w1")
        await store.close()

    run(story())
    assert sql("select id, attempts, locked_by, locked_at is not null, state from stowhand.jobs order by id") == [
        (1, 1, "w1", True, "processing"),
        (2, 0, None, False, "queued"),
    ]
    assert sql("select serial, id, key_slot from stowhand.live where worker is not null") == [("q", 1, 1)]


class ManualClock(SystemClock):
    """Time that stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def test_a_listener_retries_with_growing_pauses(run: Any) -> None:
    store = PostgresStore(NOBODY_LISTENS_HERE)
    clock = store._listener._clock = ManualClock()
    calls: list[float] = []

    def told(state: str, error: BaseException | None, connection: object) -> None:
        if state == "connecting":
            calls.append(clock.now)

    store.notices.on_listening(told)

    async def story() -> None:
        while len(calls) < 9:
            assert await store.wait(0.0) is False
            clock.now += 0.25
        await store.close()

    run(story())
    pauses = [later - earlier for earlier, later in pairwise(calls)]
    for pause, middle in zip(pauses, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], strict=True):
        assert middle * 0.8 <= pause <= middle * 1.2 + 0.25  # the clock goes on by a quarter of a second
    assert any(
        pause != middle for pause, middle in zip(pauses, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], strict=True)
    )
