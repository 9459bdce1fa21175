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

import msgspec

from stowhand.cli.demo.files import Description

_SCHEMA = """
create table if not exists entries (
  path text primary key, digest text not null, kind text not null, size integer not null, lines integer not null,
  longest integer not null, worker text not null, runs integer not null default 1
)
"""
_ENTER = """
insert into entries (path, digest, kind, size, lines, longest, worker) values (?, ?, ?, ?, ?, ?, ?)
on conflict (path) do update set runs = runs + 1, worker = excluded.worker
"""
_TOTALS = """
select kind, count(*), sum(lines), max(longest), sum(size) from entries group by kind order by sum(size) desc, kind
"""


class KindTotal(msgspec.Struct, frozen=True):
    """All files of one kind."""

    kind: str
    files: int
    lines: int
    longest: int
    size: int


class Report:
    """The ledger in one SQLite file; any process opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Start anew."""
        self.path.unlink(missing_ok=True)
        self._run(_SCHEMA)

    def enter(self, found: Description, worker: str) -> None:
        """One entry; entering it again only counts."""
        row = (found.path, found.digest, found.kind, found.size, found.lines, found.longest, worker)
        self._run(_ENTER, row)

    def repeats(self) -> int:
        """Runs beyond the first of any file."""
        ((runs,),) = self._run("select coalesce(sum(runs - 1), 0) from entries")
        return int(runs)

    def totals(self) -> list[KindTotal]:
        """By kind, the biggest first."""
        return [KindTotal(*row) for row in self._run(_TOTALS)]

    def digests(self) -> dict[str, str]:
        """Path to digest."""
        return dict(self._run("select path, digest from entries"))

    def _run(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()
