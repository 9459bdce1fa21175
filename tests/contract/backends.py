"""Where each store keeps its jobs: how to open a store there, and how to look at a row without the store's help.

A store is imported where it is opened, so that one that is broken fails its own tests only.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from stowhand.jobs.job import State
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.sqlite.queue.moment import to_datetime
from stowhand.testing import MemoryStore
from tests.support.emptying import empty
from tests.support.memory_rows import raw_of

Image = dict[str, Any]
"""Every column of a row, the lease included."""

Secrets = tuple[int, str | None, str | None, str | None]
"""epoch, token, settled_token, loses_retries."""

SECRETS_LIVE = "SELECT id, epoch, token, settled_token, loses_retries FROM"
SECRETS_PAST = "SELECT id, epoch, NULL AS token, settled_token, NULL AS loses_retries FROM"

OVER = (State.COMPLETED, State.CANCELED)
SCHEMA = "stowhand"


class Backend(Protocol):
    """A home of jobs that several stores may be opened on."""

    name: str

    def store(self, options: StoreOptions) -> QueueStore:
        """A store on these jobs, not opened yet."""

    def image(self, job_id: int) -> Image | None:
        """All the columns of a job's row, and which table it lies in; ``None`` if it is nowhere."""

    def secrets(self) -> dict[int, Secrets]:
        """What no store shows of its rows, by job."""

    def ticks(self, identifier: str) -> list[datetime]:
        """The ticks of a crontab item in the ledger, in order."""

    def refuse(self, job_id: int, *states: State) -> None:
        """From now on a trigger of the application's keeps this job from these states; none: from every change."""


class MemoryBackend:
    """A memory store is its own place: whoever shares the jobs shares the object."""

    name = "memory"

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    def store(self, options: StoreOptions) -> QueueStore:
        if self._store is None:
            self._store = MemoryStore(options=options)
        return self._store

    def image(self, job_id: int) -> Image | None:
        return image(raw_of(self._opened()), job_id)

    def secrets(self) -> dict[int, Secrets]:
        return secrets(raw_of(self._opened()))

    def ticks(self, identifier: str) -> list[datetime]:
        return ticks(raw_of(self._opened()), identifier)

    def refuse(self, job_id: int, *states: State) -> None:
        refuse(raw_of(self._opened()), job_id, states)

    def _opened(self) -> MemoryStore:
        assert self._store is not None
        return self._store


def raising(job_id: int, states: tuple[State, ...]) -> str:
    """The condition under which such a trigger raises."""
    named = ", ".join(f"'{one}'" for one in states)
    return f"new.id = {job_id:d}" + (f" AND new.state IN ({named})" if states else "")


class SqliteBackend:
    """A file."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def copy(cls, template: Path, path: Path) -> SqliteBackend:
        # Not a copy of the file: the newest commits may still lie in the log beside it.
        with closing(sqlite3.connect(template)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        return cls(path)

    def install(self) -> None:
        asyncio.run(install(self.store(StoreOptions())))

    def store(self, options: StoreOptions) -> QueueStore:
        from stowhand.stores.sqlite.queue import SqliteStore

        return SqliteStore(self._path, options)

    def image(self, job_id: int) -> Image | None:
        with closing(sqlite3.connect(self._path)) as connection:
            return image(connection, job_id)

    def secrets(self) -> dict[int, Secrets]:
        with closing(sqlite3.connect(self._path)) as connection:
            return secrets(connection)

    def ticks(self, identifier: str) -> list[datetime]:
        with closing(sqlite3.connect(self._path)) as connection:
            return ticks(connection, identifier)

    def refuse(self, job_id: int, *states: State) -> None:
        with closing(sqlite3.connect(self._path)) as connection:
            refuse(connection, job_id, states)


def image(connection: sqlite3.Connection, job_id: int) -> Image | None:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    for table in ("stowhand_jobs", "stowhand_history"):
        row = cursor.execute(f"SELECT * FROM {table} WHERE id = ?", (job_id,)).fetchone()
        if row is not None:
            return {"table": table, **dict(row)}
    return None


def secrets(connection: sqlite3.Connection) -> dict[int, Secrets]:
    rows = connection.execute(f"{SECRETS_LIVE} stowhand_jobs UNION ALL {SECRETS_PAST} stowhand_history")
    return {row[0]: row[1:] for row in rows}


def ticks(connection: sqlite3.Connection, identifier: str) -> list[datetime]:
    rows = connection.execute("SELECT tick FROM stowhand_ticks WHERE identifier = ? ORDER BY tick", (identifier,))
    return [to_datetime(tick) for (tick,) in rows]


def refuse(connection: sqlite3.Connection, job_id: int, states: tuple[State, ...]) -> None:
    for event, table in (("UPDATE", "stowhand_jobs"), ("INSERT", "stowhand_history")):
        connection.execute(
            f"CREATE TRIGGER refuse_{event} BEFORE {event} ON {table} WHEN {raising(job_id, states)}"
            " BEGIN SELECT RAISE(ABORT, 'no'); END"
        )


class PostgresBackend:
    """A database."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._refuses = False
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def install(self) -> None:
        asyncio.run(install(self.store(StoreOptions())))

    def store(self, options: StoreOptions) -> QueueStore:
        from stowhand.stores.postgres.queue import PostgresStore

        return PostgresStore(self.url, options)

    def image(self, job_id: int) -> Image | None:
        for table in ("live", "history"):
            for row in self._look(f"SELECT * FROM {SCHEMA}.{table} WHERE id = {job_id:d}"):
                return {"table": table, **row}
        return None

    def secrets(self) -> dict[int, Secrets]:
        rows = self._look(f"{SECRETS_LIVE} {SCHEMA}.live UNION ALL {SECRETS_PAST} {SCHEMA}.history")
        return {row["id"]: as_text(row) for row in rows}

    def ticks(self, identifier: str) -> list[datetime]:
        rows = self._look(f"SELECT tick FROM {SCHEMA}.ticks WHERE identifier = '{identifier}' ORDER BY tick")
        return [row["tick"] for row in rows]

    def empty(self) -> None:
        """No jobs, no serial keys, no crontab; what the migrations wrote stays."""
        empty(self._own_connection())
        if self._refuses:
            self._look("DROP FUNCTION refuse() CASCADE")
            self._refuses = False

    def refuse(self, job_id: int, *states: State) -> None:
        self._refuses = True
        self._look(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF {raising(job_id, states)} THEN RAISE EXCEPTION 'no'; END IF; RETURN new; END $$;"
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {SCHEMA}.live FOR EACH ROW EXECUTE FUNCTION refuse();"
            f"CREATE TRIGGER refuse BEFORE INSERT ON {SCHEMA}.history FOR EACH ROW EXECUTE FUNCTION refuse()"
        )

    def close(self) -> None:
        """Let the place's own connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look(self, statement: str) -> list[dict[str, Any]]:
        cursor = self._own_connection().execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []

    def _own_connection(self) -> psycopg.Connection[dict[str, Any]]:
        if self._connection is None:
            self._connection = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)
        return self._connection


async def install(store: QueueStore) -> None:
    """The schema, and nothing else."""
    await store.schema.install()
    await store.close()


def as_text(row: dict[str, Any]) -> Secrets:
    """Tokens as text, however a database spells them."""
    token, settled, loses = (row[name] and str(row[name]) for name in ("token", "settled_token", "loses_retries"))
    return row["epoch"], token, settled, loses


def payload_of(text: str) -> object:
    """What a payload means: stores may space it differently."""
    return json.loads(text)
