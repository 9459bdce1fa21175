"""Two schemas in one database: the original's, and ours. One worker of the test run does all of these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.cli.conftest import call, folder
from tests.interop.original import Original, install_meanwhile
from tests.support.databases import Databases, Setup

HERE = Path(__file__).parent
FOR_BEHAVIOUR = "0.13.0"
NEWEST_WITHOUT_NODE_22 = "0.17.3"
__all__ = ["call", "folder"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The originals are installed while the tests before these run."""
    if any(HERE in item.path.parents for item in items):
        install_meanwhile()


@pytest.fixture(scope="session", params=[FOR_BEHAVIOUR, NEWEST_WITHOUT_NODE_22])
def original(request: pytest.FixtureRequest) -> Original:
    """The oldest version that is like the README, and one of the newest."""
    return Original(request.param)


@pytest.fixture
def both(original: Original, postgres_server: Databases) -> Iterator[str]:
    """The URL of a database with both schemas: graphile_worker is the original's, stowhand is ours."""
    url = postgres_server.create_database(postgres_server.template(_both(original.version)))
    yield url
    postgres_server.drop_database(url)


@cache
def _both(version: str) -> Setup:
    def install(url: str) -> None:
        Original(version).migrate(url)
        asyncio.run(_install(url))

    return install


async def _install(url: str) -> None:
    store = PostgresStore(url, StoreOptions())
    try:
        await store.schema.install()
    finally:
        await store.close()
