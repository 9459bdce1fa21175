"""A user's table in each database that can hold one: with columns of the application's own, and SQL behind our back."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.databases import Databases

_OURS = """
    state             text DEFAULT 'queued',
    failure_message   text,
    queued_at         {moment} DEFAULT CURRENT_TIMESTAMP,
    started_at        {moment},
    finished_at       {moment},
    process_after     {moment},
    num_resets        integer NOT NULL DEFAULT 0,
    num_failures      integer NOT NULL DEFAULT 0,
    last_heartbeat_at {moment},
    execution_logs    {logs},
    worker_hostname   text NOT NULL DEFAULT '',
    cancel            boolean NOT NULL DEFAULT false,
    path              text NOT NULL,
    size              bigint NOT NULL
"""


class Place:
    """A database with the table ``uploads``."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url

    def make(self, key: str) -> None:
        """The table, empty, with this definition of its id."""
        moment, logs = ("timestamptz", "json[]") if self.kind == "postgres" else ("timestamp", "text")
        self.sql("DROP TABLE IF EXISTS uploads" + (" CASCADE" if self.kind == "postgres" else ""))
        self.sql(f"CREATE TABLE uploads (id {key} PRIMARY KEY, {_OURS.format(moment=moment, logs=logs)})")

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement as the application would; ``%s`` is a place."""
        if self.kind == "postgres":
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(text, values or None)
                return cursor.fetchall() if cursor.description else []
        with contextlib.closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file, file:
            return file.execute(text.replace("%s", "?") if values else text, values).fetchall()

    def add(self, *paths: str, **columns: Any) -> list[Any]:
        """Insert uploads; their ids."""
        row = {"size": 1} | columns
        places = ", ".join(["%s"] * (len(row) + 1))
        text = f"INSERT INTO uploads (path, {', '.join(row)}) VALUES ({places}) RETURNING id"
        return [self.sql(text, path, *row.values())[0][0] for path in paths]

    def states(self) -> Sequence[str]:
        """Of all uploads, in the order of their ids."""
        return [state for (state,) in self.sql("SELECT state FROM uploads ORDER BY id")]


@pytest.fixture(scope="session")
def tables_url(postgres_server: Databases) -> Iterator[str]:
    """One database for all: making a table is cheaper than making a database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def on_postgres(tables_url: str) -> Place:
    """The table in PostgreSQL."""
    place = Place("postgres", tables_url)
    place.make("bigserial")
    return place


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Place:
    """The table in an SQLite file."""
    place = Place("sqlite", f"sqlite:///{tmp_path}/app.db")
    place.make("integer")
    return place


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest) -> Place:
    """The table in either."""
    made: Place = request.getfixturevalue(f"on_{request.param}")
    return made
