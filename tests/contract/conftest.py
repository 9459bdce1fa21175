"""Every test of this folder runs once for each store that offers what it needs (needs.py); a coroutine is a test here,
run with its harness opened."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from tests.contract.backends import Backend, MemoryBackend, PostgresBackend, SqliteBackend
from tests.contract.flow_backend import FlowBackend
from tests.contract.lent_backend import LentBackend
from tests.contract.needs import generate
from tests.contract.store_harness import StoreHarness, harness_at
from tests.contract.table_backend import PostgresRows, SqliteRows, TableBackend
from tests.stores.postgres.verbs import make_claims_patient
from tests.support.databases import Databases
from tests.support.shared_server import SharedServer

DEADLINE = 90.0


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """Where one store keeps its jobs; there are none yet."""
    backend: Backend = request.getfixturevalue(f"{request.param}_backend")
    return backend


@pytest.fixture
def harness(backend: Backend) -> StoreHarness:
    """A store without jobs, opened when the test begins."""
    return harness_at(backend)


@pytest.fixture
def forgetful_harness(backend: Backend) -> StoreHarness:
    """The same with ``history=None``."""
    return harness_at(backend, history=None)


@pytest.fixture
def bare_harness(request: pytest.FixtureRequest, backend: Backend, tmp_path: Path) -> StoreHarness:
    """A harness for tests that take the schema away: not opened, and nothing of it is shared with other tests."""
    match backend.name:
        case "sqlite":
            backend = SqliteBackend(tmp_path / "bare.db")
        case "postgres":
            backend = PostgresBackend(request.getfixturevalue("postgres_url"))
    return harness_at(backend, opened=False)


@pytest.fixture
def memory_backend() -> Backend:
    return MemoryBackend()


@pytest.fixture
def sqlite_backend(sqlite_template: Path, tmp_path: Path) -> Backend:
    return SqliteBackend.copy(sqlite_template, tmp_path / "jobs.db")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema installed: copying it is cheaper than installing."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    SqliteBackend(path).install()
    return path


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    """One server for all tests of a session; each lends a store under a path of its own."""
    with SharedServer() as shared_server:
        yield shared_server


@pytest.fixture
def http_backend(shared_server: SharedServer) -> Iterator[Backend]:
    backend = LentBackend(MemoryBackend(), shared_server)
    yield backend
    backend.close()


@pytest.fixture
def lent_postgres_backend(shared_server: SharedServer, postgres_backend: Backend) -> Iterator[Backend]:
    backend = LentBackend(postgres_backend, shared_server)
    yield backend
    backend.close()


@pytest.fixture
def table_backend(table_rows: PostgresRows) -> Backend:
    table_rows.ask("DROP FUNCTION IF EXISTS refuse CASCADE")
    table_rows.ask("DELETE FROM jobs")  # of a few rows, cheaper than to truncate
    table_rows.ask("ALTER SEQUENCE jobs_id_seq RESTART")
    return TableBackend(table_rows)


@pytest.fixture(scope="session")
def table_rows(postgres_server: Databases) -> Iterator[PostgresRows]:
    """One table for all tests of a session."""
    url = postgres_server.create_database()
    rows = PostgresRows(url)
    yield rows
    rows.close()
    postgres_server.drop_database(url)


@pytest.fixture
def table_sqlite_backend(tmp_path: Path) -> Backend:
    return TableBackend(SqliteRows(tmp_path / "app.db"))


@pytest.fixture
def redis_backend(redis_url: str) -> Iterator[Backend]:
    backend = FlowBackend(redis_url)
    yield backend
    backend.close()


@pytest.fixture
def postgres_backend(contract_database: PostgresBackend) -> Backend:
    contract_database.empty()
    return contract_database


@pytest.fixture(scope="session")
def contract_database(postgres_server: Databases) -> Iterator[PostgresBackend]:
    """One database for all tests of a session: emptying it is cheaper than making another."""
    url = postgres_server.create_database()
    backend = PostgresBackend(url)
    backend.install()
    with psycopg.connect(url, autocommit=True) as connection:
        make_claims_patient(connection)
    yield backend
    backend.close()
    postgres_server.drop_database(url)


@pytest.hookimpl(tryfirst=True)  # the store is the first of a test's parameters
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        generate(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def opened() -> None:
        async with AsyncExitStack() as stack:
            for argument in arguments.values():
                if isinstance(argument, StoreHarness):
                    await stack.enter_async_context(argument)
            await asyncio.wait_for(test(**arguments), DEADLINE)

    asyncio.run(opened())
    return True
