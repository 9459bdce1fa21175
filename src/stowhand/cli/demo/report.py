"""The demo's report: a ledger outside the queue, so that the queue cannot flatter itself.

Each finished job writes one entry, keyed by its path; a job that runs twice (its worker was killed after it wrote and
before the queue heard of it) writes the same entry again, and the ledger counts both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

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
        with self._connection() as connection:
            connection.execute(_SCHEMA)

    def enter(self, found: Description, worker: str) -> None:
        """One entry; entering it again only counts."""
        row = (found.path, found.digest, found.kind, found.size, found.lines, found.longest, worker)
        with self._connection() as connection:
            connection.execute(_ENTER, row)

    def count(self) -> int:
        """Entries so far."""
        with self._connection() as connection:
            return int(connection.execute("select count(*) from entries").fetchone()[0])

    def repeats(self) -> int:
        """Runs beyond the first of any file."""
        with self._connection() as connection:
            return int(connection.execute("select coalesce(sum(runs - 1), 0) from entries").fetchone()[0])

    def workers(self) -> int:
        """How many processes had a hand in it."""
        with self._connection() as connection:
            return int(connection.execute("select count(distinct worker) from entries").fetchone()[0])

    def totals(self) -> list[KindTotal]:
        """By kind, the biggest first."""
        with self._connection() as connection:
            return [KindTotal(*row) for row in connection.execute(_TOTALS)]

    def digests(self) -> dict[str, str]:
        """Path to digest."""
        with self._connection() as connection:
            return dict(connection.execute("select path, digest from entries"))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            yield connection
