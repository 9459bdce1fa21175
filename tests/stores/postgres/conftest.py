"""A database with the schema in it, a store on it, and SQL behind the store's back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from stowhand.store import StoreOptions
from stowhand.stores.postgres import PostgresStore
from tests.support.databases import Setup

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install


def install(url: str) -> None:
    async def installed() -> None:
        store = PostgresStore(url)
        await store.install()
        await store.close()

    asyncio.run(installed())


@pytest.fixture
def empty_url(postgres_server: Any) -> Iterator[str]:
    """A database with nothing in it."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store(postgres_url: str) -> PostgresStore:
    """Not connected yet. Tests close it inside the loop that used it."""
    return PostgresStore(postgres_url)


@pytest.fixture
def forgetful_store(postgres_url: str) -> PostgresStore:
    return PostgresStore(postgres_url, StoreOptions(history=None))


@pytest.fixture
def sql(postgres_url: str) -> Iterator[Sql]:
    """`rows = sql("select …", value, …)`: one statement, committed at once."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def run(statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description is not None else []

        yield run
