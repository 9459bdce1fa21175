"""Every test of this folder runs on memory, SQLite and PostgreSQL, with a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from stowhand.testing import MemoryStore
from tests.flows.queue.harness import Harness, MakeHarness, ManualTime
from tests.support.databases import Databases
from tests.support.emptying import empty
from tests.support.schema import install


@pytest.fixture(scope="session")
def flow_database(postgres_server: Databases) -> Iterator[str]:
    """URL of one database for all tests of this folder in this process."""
    url = postgres_server.create_database()
    install(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store without jobs."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("flow_database")
        with psycopg.connect(url, autocommit=True) as connection:
            empty(connection)
        return url
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path / 'flow.db'}"


@pytest.fixture
def harness(place: str) -> MakeHarness:
    """Return a function that makes a harness for a flow of these queues."""

    def make(*queues: object, history: float | None = 86_400.0, **shape: object) -> Harness:
        time = ManualTime()
        options = StoreOptions(history=history, pinned=time.now, synchronous="NORMAL")
        store = MemoryStore(options=options) if place == "memory" else open_store(place, options)
        return Harness(store, time, queues, shape)

    return make
