"""A connection to PostgreSQL, before it is used again."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from stowhand.stores.database.link import is_stale
from tests.conftest import Run

MANY = 1100


@pytest.fixture
def crowded() -> Iterator[None]:
    """A process in which the next descriptor is beyond what ``select`` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096) if hard < 0 else min(max(soft, 4096), hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    yield
    for one in held:
        with suppress(OSError):
            os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_with_a_descriptor_above_1023_is_checked(run: Run, postgres_url: str, crowded: None) -> None:
    async def story() -> None:
        connection = await psycopg.AsyncConnection.connect(postgres_url, autocommit=True)
        other = await psycopg.AsyncConnection.connect(postgres_url, autocommit=True)
        try:
            assert connection.fileno() >= 1024
            assert not is_stale(connection)
            await other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            while not is_stale(connection):  # noqa: ASYNC110 - until the server has hung up
                await asyncio.sleep(0.01)
        finally:
            await connection.close()
            await other.close()

    run(story())
