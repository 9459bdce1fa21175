"""An App on an emptied PostgreSQL database, or on a file, beside a table of the application's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.app.app import App
from tests.stores.postgres.conftest import postgres_setup, postgres_url, shared_database
from tests.support import callers

__all__ = ["postgres_setup", "postgres_url", "shared_database"]

Count = Callable[[str], int]


@pytest.fixture
def url(request: pytest.FixtureRequest, opens: callers.Opens, tmp_path: Path) -> str:
    """Where such an object connects to."""
    if opens in callers.SQLITE.values():
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(url)
    app.sync.install()
    for statement in ("drop table if exists orders", "create table orders (item text)"):
        _ask(url, statement)
    yield app
    app.sync.close()


@pytest.fixture
def count(url: str) -> Count:
    """Rows of a table, as others see it: ``orders`` or ``jobs``."""
    jobs = "stowhand_jobs" if url.startswith("sqlite") else "stowhand.live"
    return lambda table: int(_ask(url, f"select count(*) from {jobs if table == 'jobs' else table}")[0][0])


def _ask(url: str, statement: str) -> list[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found
    with psycopg.connect(url, autocommit=True) as asked:
        cursor = asked.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
