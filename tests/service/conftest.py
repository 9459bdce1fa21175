"""Workers on both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.processes import Workers
from tests.support.databases import Setup
from tests.support.schema import install


@pytest.fixture(scope="session")
def postgres_setup() -> Setup:
    return install


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/queue.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    started = Workers(url, tmp_path)
    try:
        yield started
    finally:
        started.destroy()


@pytest.fixture
def sqlite_workers(tmp_path: Path) -> Iterator[Workers]:
    """Where the kind of store does not matter."""
    started = Workers(f"sqlite:///{tmp_path}/queue.db", tmp_path)
    try:
        yield started
    finally:
        started.destroy()
