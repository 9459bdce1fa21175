"""The seed of a run, which ``CHAOS_SEED`` repeats; and a server that may be killed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.support.binaries import find_postgres
from tests.support.servers import PostgresServer


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"CHAOS_SEED={chosen}")  # noqa: T201 - pytest shows it when the test fails
    return chosen


@pytest.fixture
def durable_postgres() -> Iterator[PostgresServer]:
    with PostgresServer(find_postgres()[0], durable=True) as server:
        yield server
