"""The demo's report: a ledger outside the queue, so that the queue cannot flatter itself.

Each finished job writes one entry, keyed by its path; a job that runs twice (its worker was killed after it wrote and
before the queue heard of it) writes the same entry again, and the ledger counts both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

_SCHEMA = "create table entries (path text primary key, checksum text not null, runs integer not null default 1)"
_ENTER = """
insert into entries (path, checksum) values (?, ?) on conflict (path) do update set runs = runs + 1
"""


class Report:
    """The ledger in one SQLite file; any process opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Start anew."""
        self.path.unlink(missing_ok=True)
        self._run(_SCHEMA)

    def enter(self, path: str, checksum: str) -> None:
        """Write one entry; writing it again only counts."""
        self._run(_ENTER, (path, checksum))

    def repeats(self) -> int:
        """Runs beyond the first of any file."""
        ((runs,),) = self._run("select coalesce(sum(runs - 1), 0) from entries")
        return int(runs)

    def checksums(self) -> dict[str, str]:
        """Return the checksums by path."""
        return dict(self._run("select path, checksum from entries"))

    def _run(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()
