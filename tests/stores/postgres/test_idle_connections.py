"""Unused connections are closed. An idle worker keeps at most two: one to listen and one for heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.handler import handler
from stowhand.protocols.store import Verdict
from stowhand.stores.database import link
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.worker import Worker
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim

NAMES = """
select split_part(application_name, ':', 2), pid from pg_stat_activity
where datname = current_database() and application_name like 'stowhand:%' order by 1
"""


@pytest.fixture
def open_roles(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the connections that were opened since are for. A test that failed may have left others."""
    monkeypatch.setattr(link, "IDLE_SECONDS", 0.1)
    before = {pid for _, pid in sql(NAMES)}
    return lambda: [name for name, pid in sql(NAMES) if pid not in before]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110 - seen from outside only
            await asyncio.sleep(0.02)


def test_unused_connections_are_closed_and_reopened(
    store: PostgresStore, open_roles: Callable[[], list[str]], run: Any
) -> None:
    async def story() -> None:
        for _ in range(2):
            await store.jobs.enqueue(NewJob(task="t"))
            (held,) = await claim(store)
            assert await store.settle([(held.lease, COMPLETED)]) == [Verdict.SETTLED]
            await until(lambda: not open_roles())
        await store.close()

    run(story())


def test_unneeded_connections_of_a_pool_are_closed(
    store: PostgresStore, open_roles: Callable[[], list[str]], run: Any
) -> None:
    async def story() -> None:
        assert store.connections is not None
        async with store.connections.connection(), store.connections.connection(), store.connections.connection():
            assert len(open_roles()) == 3

        async def use_one() -> None:
            while True:
                async with store.connections.connection() as connection:
                    await connection.execute("select 1")
                await asyncio.sleep(0)

        using = asyncio.create_task(use_one())
        await until(lambda: len(open_roles()) == 1)
        using.cancel()
        await asyncio.wait([using])
        await store.close()

    run(story())


def test_an_idle_worker_closes_the_connections_of_claims_and_settlements(
    store: PostgresStore, sql: Sql, open_roles: Callable[[], list[str]], run: Any
) -> None:
    async def story() -> None:
        async def nothing(attempt: object, record: object) -> None: ...

        await store.jobs.enqueue(NewJob(task="t"))
        worker = Worker(store, handler(nothing))
        running = asyncio.create_task(worker.run())
        # With an idle time of 0.1 s the heartbeat's connection is closed too, between two heartbeats.
        await until(lambda: open_roles() in (["heart", "listen"], ["listen"]))
        await store.jobs.enqueue(NewJob(task="t"))
        await until(lambda: sql("select count(*) from stowhand.live") == [(0,)])
        worker.stop()
        await running
        await store.close()

    run(story())
