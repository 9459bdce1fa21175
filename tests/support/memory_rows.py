"""Looks into a memory store, and changes what no call of it would change: by SQL on its private connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.stores.sqlite.queue.moment import to_datetime, to_micros
from stowhand.testing import MemoryStore

MOMENTS = ("run_at", "created_at", "updated_at", "started_at", "finished_at", "expires_at", "lease_until")
LEASE = ("worker", "token", "lease_until", "progress", "progress_text")
"""What the history does not keep."""
FAR = 1000 * 365 * 86400 * 1_000_000
REFUSALS = ("refuse_jobs", "refuse_history")


class Row:
    """A job as the store keeps it, the lease included: each column is an attribute."""

    def __init__(self, columns: dict[str, Any]) -> None:
        moments = {name: to_datetime(columns[name]) for name in MOMENTS if columns.get(name) is not None}
        flags = tuple(json.loads(columns["flags"] or "[]"))
        lease = dict.fromkeys(LEASE)
        self.columns = {**lease, **columns, **moments, "state": State(columns["state"]), "flags": flags}

    def lease(self) -> Lease:
        """Of a running job."""
        return Lease(self.id, self.token, self.epoch)

    def __getattr__(self, name: str) -> Any:
        return self.columns[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.columns == other.columns

    __hash__ = None  # type: ignore[assignment]


def raw_of(store: MemoryStore) -> sqlite3.Connection:
    """The connection of the store, open."""
    return store._connections.connection.read(lambda tx: tx.raw)  # type: ignore[attr-defined,no-any-return]


def look(store: MemoryStore, statement: str, *values: object) -> list[dict[str, Any]]:
    """What a statement gives: its columns by name."""
    cursor = raw_of(store).cursor()
    cursor.row_factory = sqlite3.Row
    return [dict(row) for row in cursor.execute(statement, values)]


def rows_of(store: MemoryStore) -> list[Row]:
    """Live jobs, then those in the history, each by id."""
    live = look(store, "SELECT * FROM stowhand_jobs ORDER BY id")
    past = look(store, "SELECT * FROM stowhand_history ORDER BY id")
    return [*map(Row, live), *map(Row, past)]


def change(store: MemoryStore, job_id: int, **columns: object) -> None:
    """Of a live job. Nobody is woken."""
    names = ", ".join(f"{name} = ?" for name in columns)
    values = [to_micros(value) if isinstance(value, datetime) else value for value in columns.values()]
    look(store, f"UPDATE stowhand_jobs SET {names} WHERE id = ?", *values, job_id)


def remove(store: MemoryStore, *job_ids: int) -> None:
    """As a person does by SQL."""
    for job_id in job_ids:
        look(store, "DELETE FROM stowhand_jobs WHERE id = ?", job_id)


@contextmanager
def shifted(store: MemoryStore, column: str, job_ids: Collection[int]) -> Iterator[None]:
    """A moment of these live jobs lies a thousand years later meanwhile: claims, or sweeps, pass them over."""
    statement = f"UPDATE stowhand_jobs SET {column} = {column} + ? WHERE id = ?"
    for job_id in job_ids:
        look(store, statement, FAR, job_id)
    try:
        yield
    finally:
        for job_id in job_ids:
            look(store, statement, -FAR, job_id)


def refuse(store: MemoryStore, job_id: int | None, *states: State, why: str = "a trigger says no") -> None:
    """From now on a trigger of the application's keeps this job (``None``: every job), once it runs, from these
    states; none: from every change. A beat is a change to ``processing``."""
    allow(store)
    conditions = ["true"]
    if job_id is not None:
        conditions.append(f"NEW.id = {job_id:d}")
    if states:
        conditions.append(f"NEW.state IN ({', '.join(repr(one.value) for one in states)})")
    refused = " AND ".join(conditions)
    for name, event, table, runs in (
        (REFUSALS[0], "UPDATE", "stowhand_jobs", " AND OLD.state = 'processing'"),
        (REFUSALS[1], "INSERT", "stowhand_history", ""),
    ):
        look(
            store,
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} WHEN {refused}{runs}"
            f" BEGIN SELECT RAISE(ABORT, '{why}'); END",
        )


def allow(store: MemoryStore) -> None:
    """Nothing is refused any more."""
    for name in REFUSALS:
        look(store, f"DROP TRIGGER IF EXISTS {name}")
