"""An App on an emptied PostgreSQL database, or on a file, beside a table of the application's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stowhand.app.app import App
from tests.stores.postgres.conftest import Sql, kept_connections, postgres_setup, postgres_url, shared_database, sql
from tests.support import callers

__all__ = ["kept_connections", "postgres_setup", "postgres_url", "shared_database", "sql"]

Ask = Callable[[str], list[Any]]
Count = Callable[[str], int]


@pytest.fixture
def url(request: pytest.FixtureRequest, opens: callers.Opens, tmp_path: Path) -> str:
    """Where such an object connects to."""
    if opens in callers.SQLITE.values():
        return f"sqlite:///{tmp_path}/shop.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def app(url: str, ask: Ask) -> Iterator[App]:
    app = App(url)
    if url.startswith("sqlite"):
        app.sync.install()
    for statement in ("drop table if exists orders", "create table orders (item text)"):
        ask(statement)
    yield app
    app.sync.close()


@pytest.fixture
def count(url: str, ask: Ask) -> Count:
    """Rows of a table, as others see it: ``orders`` or ``jobs``."""
    jobs = "stowhand_jobs" if url.startswith("sqlite") else "stowhand.live"
    return lambda table: int(ask(f"select count(*) from {jobs if table == 'jobs' else table}")[0][0])


@pytest.fixture
def ask(url: str, request: pytest.FixtureRequest) -> Ask:
    """One statement, committed at once; its rows."""
    if url.startswith("sqlite"):
        return partial(_ask_the_file, url.removeprefix("sqlite:///"))
    sql: Sql = request.getfixturevalue("sql")
    return sql


def _ask_the_file(path: str, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        result = connection.execute(statement).fetchall()
        connection.commit()
        return result
