"""A file of a test's own, with the tables installed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from stowhand.stores.sqlite.queue import SqliteStore


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copying a file is cheaper than installing into one."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"

    async def install() -> None:
        store = SqliteStore(path)
        await store.schema.install()
        await store.close()

    asyncio.run(install())
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A file with the tables, and without jobs."""
    return Path(shutil.copy(template, tmp_path / "jobs.db"))
