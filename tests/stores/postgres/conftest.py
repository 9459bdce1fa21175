"""A database with the schema in it, a store on it, and SQL behind the store's back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest

from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.verbs import cut_off, make_claims_patient
from tests.support.databases import Databases, Kept, Setup
from tests.support.emptying import empty
from tests.support.schema import install

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install


@pytest.fixture(scope="session")
def shared_database(postgres_server: Databases) -> Iterator[str]:
    """Emptying one database is cheaper than making another."""
    url = postgres_server.create_database()
    install(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def kept_connections(shared_database: str) -> Iterator[tuple[Kept, Kept]]:
    """To the shared database: of `sql`, which empties it, too, and of `connection`."""
    kept = Kept(shared_database), Kept(shared_database)
    yield kept
    for one in kept:
        one.close()


@pytest.fixture
def postgres_url(shared_database: str, kept_connections: tuple[Kept, Kept]) -> str:
    """A database with the schema and nothing else. Modules that change the schema itself override this."""
    with kept_connections[0].lend() as connection:
        cut_off(connection, "stowhand:%")  # who slept in the test before must not seem to sleep in this one
        empty(connection)
    return shared_database


@pytest.fixture
def empty_url(postgres_server: Databases) -> Iterator[str]:
    """A database with nothing in it."""
    with postgres_server.lend(None) as url:
        yield url


@pytest.fixture
def own_url(postgres_server: Databases, postgres_setup: Setup) -> Iterator[str]:
    """A database with the schema, of this test's own."""
    with postgres_server.lend(postgres_setup) as url:
        yield url


@pytest.fixture
def store(postgres_url: str) -> PostgresStore:
    """Not connected yet. Tests close it inside the loop that used it."""
    return PostgresStore(postgres_url)


@pytest.fixture
def forgetful_store(postgres_url: str) -> PostgresStore:
    return PostgresStore(postgres_url, StoreOptions(history=None))


@pytest.fixture
def patient_claims(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """No claim is cut short."""
    source = make_claims_patient(connection)
    yield
    connection.execute(source)


@pytest.fixture
def connection(
    postgres_url: str, shared_database: str, kept_connections: tuple[Kept, Kept]
) -> Iterator[psycopg.Connection[Any]]:
    """Behind the store's back; each statement is committed at once."""
    with lent(postgres_url, shared_database, kept_connections[1]) as connection:
        yield connection


@pytest.fixture
def sql(postgres_url: str, shared_database: str, kept_connections: tuple[Kept, Kept]) -> Iterator[Sql]:
    """`rows = sql("select …", value, …)`: one statement, committed at once."""
    with lent(postgres_url, shared_database, kept_connections[0]) as connection:

        def run(statement: str, *values: object) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

        yield run


def lent(url: str, shared: str, kept: Kept) -> AbstractContextManager[psycopg.Connection[Any]]:
    """A kept connection to the shared database, a new one to a test's own."""
    return kept.lend() if url == shared else psycopg.connect(url, autocommit=True)
