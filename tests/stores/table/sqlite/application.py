"""An application with a table of its own in a file of its own, and the backend that serves it."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement
from stowhand.protocols.store import ClaimRequest, Reply
from stowhand.stores.sqlite.table import SqliteTable
from stowhand.stores.table.backend import ClaimedRow
from stowhand.stores.table.names import read_shape
from stowhand.stores.table.options import TableOptions

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
TABLE = """
CREATE TABLE uploads (
    id                INTEGER PRIMARY KEY,
    state             TEXT DEFAULT 'queued',
    failure_message   TEXT,
    queued_at         {moment} DEFAULT CURRENT_TIMESTAMP,
    started_at        {moment},
    finished_at       {moment},
    process_after     {moment},
    num_resets        INTEGER NOT NULL DEFAULT 0,
    num_failures      INTEGER NOT NULL DEFAULT 0,
    last_heartbeat_at {moment},
    execution_logs    TEXT,
    worker_hostname   TEXT NOT NULL DEFAULT '',
    cancel            BOOLEAN NOT NULL DEFAULT FALSE,
    size              INTEGER NOT NULL DEFAULT 0,
    path              TEXT NOT NULL DEFAULT 'a/b.py'
);
CREATE INDEX uploads_state ON uploads (state, process_after);
"""


class Application:
    """It talks to its file as any program does: with ``sqlite3``, and nothing of ours."""

    def __init__(self, path: Path, ddl: str = TABLE.format(moment="TIMESTAMP"), journal: str = "delete") -> None:
        self.path = path
        self.raw = sqlite3.connect(path, isolation_level=None)
        self.raw.execute(f"PRAGMA journal_mode = {journal}")
        self.raw.execute("PRAGMA synchronous = OFF")
        self.raw.executescript(ddl)
        self.now = NOON
        self._backends: list[SqliteTable] = []

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement."""
        return self.raw.execute(text, values).fetchall()

    def add(self, **columns: Any) -> Any:
        """Insert one; its id."""
        row = {"size": 0} | columns
        places = ", ".join("?" * len(row))
        return self.sql(f"INSERT INTO uploads ({', '.join(row)}) VALUES ({places}) RETURNING id", *row.values())[0][0]

    def row(self, key: Any) -> dict[str, Any]:
        """All of it."""
        cursor = self.raw.execute("SELECT * FROM uploads WHERE id = ?", (key,))
        return dict(zip((column[0] for column in cursor.description), cursor.fetchone(), strict=True))

    def states(self) -> list[str]:
        """Of all, in the order of the keys."""
        return [state for (state,) in self.sql("SELECT state FROM uploads ORDER BY id")]

    def table(self, *, pinned: bool = True, **options: Any) -> SqliteTable:
        """A backend for the table; its clock is ``now``."""
        value = TableOptions[Any](**({"name": "uploads", "table_name": "uploads"} | options))
        shape = read_shape(value.table_name, value.view_name, value.alternate_column_names, folds=False)
        instance = SqliteTable(self.path, value, shape, pinned=(lambda: self.now) if pinned else None)
        self._backends.append(instance)
        return instance

    async def served(self, *, pinned: bool = True, **options: Any) -> SqliteTable:
        """The same, open."""
        table = self.table(pinned=pinned, **options)
        await table.open()
        return table

    def end(self) -> None:
        """Let every connection go."""
        for backend in self._backends:
            asyncio.run(backend.close())
        self.raw.close()

    def later(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


def asking(limit: int = 10, *, worker: str = "host/1", **given: Any) -> ClaimRequest:
    """A claim with a new token."""
    return ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=limit, lease=30.0, **given)


async def keys(table: SqliteTable, limit: int = 10, **given: Any) -> list[Any]:
    """Claim; what was claimed."""
    return [one.lease.job_id for one in await table.claim(asking(limit, **given))]


async def claimed(table: SqliteTable, **given: Any) -> ClaimedRow:
    """Claim one."""
    (taken,) = await table.claim(asking(1, **given))
    return taken


def counted_steps(table: SqliteTable) -> list[None]:
    """Grows by one with each thousand of SQLite's own steps that it takes from now on: what is dear on any machine."""
    steps: list[None] = []
    for connection in (table._connections._reader, table._connections._writer):
        connection._connected().set_progress_handler(lambda: steps.append(None), 1000)
    return steps


async def settled(table: SqliteTable, lease: Lease, *settlements: Settlement, repeat: bool = False) -> Sequence[Reply]:
    """Settle; the verdicts."""
    return await table.settle([(lease, one) for one in settlements], repeat=repeat)


def errored(error: str = "no", delay: float = 0.0) -> Settlement:
    """It may be tried again."""
    return Settlement(State.ERRORED, AttemptOutcome.RETRY, error=error, delay=delay)


def failed(error: str = "no") -> Settlement:
    """It may not."""
    return Settlement(State.FAILED, AttemptOutcome.FAILED, error=error)


SNOOZED = Settlement(State.QUEUED, AttemptOutcome.SNOOZED, delay=60.0, refund=True)
