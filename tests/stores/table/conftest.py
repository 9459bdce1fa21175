"""A user's table in each database that can hold one: with columns of the application's own, and SQL behind our back."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Databases, Kept
from tests.support.jobs_table import Dialect, jobs_table

OWN = ("path text not null", "size bigint not null")


class Place:
    """A database with the table ``uploads``."""

    def __init__(self, kind: Dialect, url: str, kept: Kept | None = None) -> None:
        self.kind, self.url = kind, url
        self._kept = kept

    def make(self, key: str) -> None:
        """The table, empty, with this definition of its id."""
        self.sql("DROP TABLE IF EXISTS uploads" + (" CASCADE" if self.kind == "postgres" else ""))
        self.sql(jobs_table("uploads", *OWN, dialect=self.kind, id=f"{key} primary key", state="text default 'queued'"))

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement as the application would; ``%s`` is a place."""
        if self._kept is not None:
            with self._kept.lend() as connection:
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


@pytest.fixture(scope="session")
def kept_connection(tables_url: str) -> Iterator[Kept]:
    """Of the application, to that database."""
    kept = Kept(tables_url)
    yield kept
    kept.close()


@pytest.fixture
def on_postgres(tables_url: str, kept_connection: Kept) -> Place:
    """The table in PostgreSQL."""
    place = Place("postgres", tables_url, kept_connection)
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
    instance: Place = request.getfixturevalue(f"on_{request.param}")
    return instance
