"""One database for all these tests; a coroutine is a test here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from tests.stores.table.postgres.jobs import Jobs
from tests.support.databases import Databases

DEADLINE = 30.0


@pytest.fixture(scope="session")
def jobs_database(postgres_server: Databases) -> Iterator[Jobs]:
    url = postgres_server.create_database()
    jobs = Jobs(url)
    yield jobs
    jobs.close()
    postgres_server.drop_database(url)


@pytest.fixture
def jobs(jobs_database: Jobs) -> Jobs:
    """The table ``jobs``, empty."""
    jobs_database.make()
    return jobs_database


@pytest.fixture(scope="session")
def shared_url(postgres_server: Databases) -> Iterator[str]:
    """A database of the transactions' tests (attempts.py), each of which empties it first."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(asyncio.wait_for(test(**arguments), DEADLINE))
    return True
