"""SQLite's errors in the words of a user's table; what they mean is in ``database.sqlite_trouble``."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from stowhand.errors import StoreError, TableUnsuitable
from stowhand.stores.database import sqlite_trouble

_CHANGED = (
    *("no such table", "no such column", "has no column named", "ambiguous column"),
    *("no such function", "unknown function", "no such collation"),
)


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """What the table is not, or no longer; what the table refuses; else what SQLite itself is in trouble with."""
    text = str(error)
    if any(words in text for words in _CHANGED):
        return TableUnsuitable(f"{path}: {text}: table, view or expressions do not go together (stowhand table check)")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path}: the table refuses what a worker writes: {text} (stowhand table check)")
    if sqlite_trouble.code(error) in (0, sqlite3.SQLITE_ERROR):  # 0: Python's own complaint
        return StoreError(f"{path}: {text}")
    return sqlite_trouble.explain(error, path)
