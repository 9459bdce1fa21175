"""Where each store keeps its jobs: how to open a store there, and how to look at a row without the store's help.

A store is imported where it is opened, so that one that is broken fails its own tests only.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from stowhand.job import State
from stowhand.store import QueueStore, StoreOptions
from stowhand.testing import MemoryStore

Image = dict[str, Any]
"""Every column of a row, the lease included."""

Secrets = tuple[int, str | None, str | None, str | None]
"""epoch, token, settled_token, loses_retries."""

SECRETS_LIVE = "SELECT id, epoch, token, settled_token, loses_retries FROM"
SECRETS_PAST = "SELECT id, epoch, NULL, settled_token, NULL FROM"

OVER = (State.COMPLETED, State.CANCELED)
SCHEMA = "stowhand"


class Place(Protocol):
    """A home of jobs that several stores may be opened on."""

    name: str

    def store(self, options: StoreOptions) -> QueueStore:
        """A store on these jobs, not opened yet."""

    def image(self, job_id: int) -> Image | None:
        """All the columns of a job's row, and which table it lies in; ``None`` if it is nowhere."""

    def secrets(self) -> dict[int, Secrets]:
        """What no store shows of its rows, by job."""


class MemoryPlace:
    """A memory store is its own place: whoever shares the jobs shares the object."""

    name = "memory"

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    def store(self, options: StoreOptions) -> QueueStore:
        if self._store is None:
            self._store = MemoryStore(options=options)
        return self._store

    def image(self, job_id: int) -> Image | None:
        assert self._store is not None
        return next((asdict(row) for row in self._store.rows() if row.id == job_id), None)

    def secrets(self) -> dict[int, Secrets]:
        assert self._store is not None
        return {
            row.id: (row.epoch, row.token, row.settled_token, None if row.state in OVER else row.loses_retries)
            for row in self._store.rows()
        }


class SqlitePlace:
    """A file."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def copy(cls, template: Path, path: Path) -> SqlitePlace:
        # Not a copy of the file: the newest commits may still lie in the log beside it.
        with closing(sqlite3.connect(template)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        return cls(path)

    def install(self) -> None:
        asyncio.run(install(self.store(StoreOptions())))

    def store(self, options: StoreOptions) -> QueueStore:
        from stowhand.stores.sqlite import SqliteStore

        return SqliteStore(self._path, options)

    def image(self, job_id: int) -> Image | None:
        with closing(sqlite3.connect(self._path)) as connection:
            connection.row_factory = sqlite3.Row
            for table in ("stowhand_jobs", "stowhand_history"):
                row = connection.execute(f"SELECT * FROM {table} WHERE id = ?", (job_id,)).fetchone()
                if row is not None:
                    return {"table": table, **dict(row)}
            return None

    def secrets(self) -> dict[int, Secrets]:
        with closing(sqlite3.connect(self._path)) as connection:
            rows = connection.execute(f"{SECRETS_LIVE} stowhand_jobs UNION ALL {SECRETS_PAST} stowhand_history")
            return {row[0]: row[1:] for row in rows}


class PostgresPlace:
    """A database."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url

    def install(self) -> None:
        asyncio.run(install(self.store(StoreOptions())))

    def store(self, options: StoreOptions) -> QueueStore:
        from stowhand.stores.postgres import PostgresStore

        return PostgresStore(self.url, options)

    def image(self, job_id: int) -> Image | None:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            for table in ("live", "history"):
                row = connection.execute(
                    sql.SQL("SELECT * FROM {} WHERE id = %s").format(sql.Identifier(SCHEMA, table)), (job_id,)
                ).fetchone()
                if row is not None:
                    return {"table": table, **row}
            return None

    def secrets(self) -> dict[int, Secrets]:
        with psycopg.connect(self.url) as connection:
            statement = f"{SECRETS_LIVE} {SCHEMA}.live UNION ALL {SECRETS_PAST} {SCHEMA}.history"
            return {row[0]: as_text(row[1:]) for row in connection.execute(statement.encode())}

    def empty(self) -> None:
        """No jobs, no queues, no workers; what the migrations wrote stays."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables = connection.execute(
                "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(%s)"
                " AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname NOT LIKE '%%migration%%'",
                (SCHEMA,),
            ).fetchall()
            names = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for (name,) in tables)
            connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))


async def install(store: QueueStore) -> None:
    """The schema, and nothing else."""
    await store.install()
    await store.close()


def as_text(row: tuple[Any, ...]) -> Secrets:
    """Tokens as text, however a database spells them."""
    epoch, token, settled, loses = row
    return epoch, token and str(token), settled and str(settled), loses and str(loses)


def payload_of(text: str) -> object:
    """What a payload means: stores may space it differently."""
    return json.loads(text)
