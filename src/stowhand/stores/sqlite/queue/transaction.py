"""One transaction on the file: the connection, the time, and this store's SQL by name.

Every statement is in ``sql/<moment>.sql`` under a line ``-- name: <name>``; no two have the same name.
"""

from __future__ import annotations

import sqlite3
from importlib.resources import files
from typing import Any

from stowhand.stores.database.statements import load_statements
from stowhand.stores.sqlite.queue.moment import Moment

_ARCHIVED = (
    "id, task, payload, state, queue, priority, run_at, attempts, max_attempts, resets, max_resets, key, flags,"
    " last_error, revision, replaced, created_at, updated_at, started_at, finished_at, cancel_requested, loses_retries,"
    " epoch, settled_token, last_worker, on_failure"
)
"""What the history keeps of every job."""
FILES = sorted(files("stowhand.stores.sqlite.queue").joinpath("sql").iterdir(), key=lambda file: file.name)


def _load() -> dict[str, str]:
    statements: dict[str, str] = {}
    for file in FILES:
        for name, text in load_statements(file, {"archived": _ARCHIVED}).items():
            if name in statements:
                raise ValueError(f"statement {name!r} of {file.name} is declared in another file, too")
            statements[name] = text.decode()
    return statements


SQL = _load()


class Transaction:
    """What all work on the file is passed. ``keeps``: completed and canceled jobs go to the history."""

    __slots__ = ("keeps", "now", "raw")

    def __init__(self, raw: sqlite3.Connection, now: Moment, *, keeps: bool) -> None:
        self.raw = raw
        self.now = now
        self.keeps = keeps

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        """A statement with its values; every one may also ask for the time: ``:now``, ``:boot`` and ``:ticks``."""
        now = self.now
        return self.raw.execute(SQL[name], {"now": now.wall, "boot": now.boot, "ticks": now.ticks, **values})

    def row(self, name: str, /, **values: Any) -> Any:
        """Its first row; ``None``: there is none."""
        return self.run(name, **values).fetchone()

    def rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """All of them, so that the statement is over."""
        return self.run(name, **values).fetchall()

    def column(self, name: str, /, **values: Any) -> list[Any]:
        """The values of a statement that gives one for each row."""
        return [value for (value,) in self.run(name, **values)]
