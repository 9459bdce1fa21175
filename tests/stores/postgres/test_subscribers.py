"""Real logical replication of everything: what ends, is retried, removed and kept in order goes on, and arrives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.operator import Ages
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.verbs import take
from tests.support.binaries import find_postgres
from tests.support.servers import PostgresServer

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)
ROWS = (
    "select id, state from stowhand.live union all select id, state from stowhand.history order by id",
    "select name from stowhand.limit_keys order by name",
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer(find_postgres()[0], wal_level="logical") as server:
        yield server


def asked(url: str, *statements: str) -> list[list[tuple[Any, ...]]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursors = [connection.execute(statement.encode()) for statement in statements]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


def arrives(source: str, copy: str) -> None:
    """The copy becomes what the source is."""
    wanted = asked(source, *ROWS)
    deadline = time.monotonic() + 20
    while (result := asked(copy, *ROWS)) != wanted:
        assert time.monotonic() < deadline, (result, wanted)
        time.sleep(0.02)


def test_a_subscriber_of_all_tables_follows_jobs_to_their_end_and_beyond(server: PostgresServer, run: Any) -> None:
    url = server.create_database()
    now = [NOON]

    async def installed() -> None:
        store = PostgresStore(url, StoreOptions(pinned=lambda: now[0]))
        await store.schema.install()
        heartbeats = store.heartbeats()
        await heartbeats.maintain()
        await heartbeats.close()
        await store.close()

    run(installed())
    copy = server.create_database(url.split("?")[0].rsplit("/", 1)[1])
    asked(url, "create publication everything for all tables",
          "select pg_create_logical_replication_slot('one', 'pgoutput')")  # fmt: skip
    asked(
        copy,
        f"create subscription one connection '{psycopg.conninfo.make_conninfo(url)}' publication everything"
        " with (create_slot = false, slot_name = 'one', copy_data = false)",
    )

    async def story() -> None:
        store = PostgresStore(url, StoreOptions(pinned=lambda: now[0], history=3600.0))
        forgetful = PostgresStore(url, StoreOptions(pinned=lambda: now[0], history=None))
        for serial in ("a", "b"):
            await store.jobs.enqueue(NewJob(task="t", serial=serial))
            await store.settle([(await take(store), COMPLETED)])
        canceled = await store.jobs.enqueue(NewJob(task="t", key="k"))
        await store.admin.cancel(canceled.id)
        assert (await store.admin.retry(canceled.id)).result is ActionResult.DONE
        await forgetful.settle([(await take(forgetful), COMPLETED)])
        arrives(url, copy)
        now[0] = NOON.replace(minute=30)
        assert (await store.operate.purge(Ages(completed=60.0, canceled=None, failed=None))).completed == 2
        later = await store.jobs.enqueue(NewJob(task="t", serial="c"))
        await store.admin.cancel(later.id)
        now[0] = NOON.replace(hour=14)
        heartbeats = store.heartbeats()
        await heartbeats.maintain()
        arrives(url, copy)
        assert asked(copy, *ROWS) == [[], []]
        await heartbeats.close()
        await forgetful.close()
        await store.close()

    run(story())
