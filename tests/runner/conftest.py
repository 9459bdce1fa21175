"""Databases with the schema in them, programs without surroundings, and coroutines as tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import Databases, Setup
from tests.support.schema import install
from tests.worker.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install


@pytest.fixture
def empty_url(postgres_server: Databases) -> Iterator[str]:
    """A database with nothing in it."""
    with postgres_server.lend(None) as url:
        yield url


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and nothing in the environment that names a store."""
    for name in os.environ:
        if name.startswith(("STOWHAND_", "PG")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A store of either kind."""
    name: str = request.getfixturevalue(f"{request.param}_url")
    return name
