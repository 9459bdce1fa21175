"""Every test of this folder runs once per store; a coroutine is a test here, run with its bench opened."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.contract.bench import Bench, bench_at
from tests.contract.places import MemoryPlace, Place, PostgresPlace, SqlitePlace
from tests.support.databases import Databases

STORES = ("memory", "sqlite", "postgres")
DEADLINE = 30.0


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> Place:
    """Where one store keeps its jobs; there are none yet."""
    place: Place = request.getfixturevalue(f"{request.param}_place")
    return place


@pytest.fixture
def bench(place: Place) -> Bench:
    """A store without jobs, opened when the test begins."""
    return bench_at(place)


@pytest.fixture
def forgetful_bench(place: Place) -> Bench:
    """The same with ``history=None``."""
    return bench_at(place, history=None)


@pytest.fixture
def bare_bench(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Bench:
    """A bench for tests that take the schema away: not opened, and nothing of it is shared with other tests."""
    match place.name:
        case "sqlite":
            place = SqlitePlace(tmp_path / "bare.db")
        case "postgres":
            place = PostgresPlace(request.getfixturevalue("postgres_url"))
    return bench_at(place, opened=False)


@pytest.fixture
def memory_place() -> Place:
    return MemoryPlace()


@pytest.fixture
def sqlite_place(sqlite_template: Path, tmp_path: Path) -> Place:
    return SqlitePlace.copy(sqlite_template, tmp_path / "jobs.db")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema installed: copying it is cheaper than installing."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    SqlitePlace(path).install()
    return path


@pytest.fixture
def postgres_place(contract_database: PostgresPlace) -> Place:
    contract_database.empty()
    return contract_database


@pytest.fixture(scope="session")
def contract_database(postgres_server: Databases) -> Iterator[PostgresPlace]:
    """One database for all tests of a session: emptying it is cheaper than making another."""
    url = postgres_server.create_database()
    place = PostgresPlace(url)
    place.install()
    yield place
    place.close()
    postgres_server.drop_database(url)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def opened() -> None:
        async with AsyncExitStack() as stack:
            for argument in arguments.values():
                if isinstance(argument, Bench):
                    await stack.enter_async_context(argument)
            await asyncio.wait_for(test(**arguments), DEADLINE)

    asyncio.run(opened())
    return True
