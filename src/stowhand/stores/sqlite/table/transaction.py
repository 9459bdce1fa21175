"""What is known of one table once its catalog has been read, and what its claims and heartbeats share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stowhand.stores.sqlite.table.composer import Kinds
from stowhand.stores.sqlite.table.moments import parameters
from stowhand.stores.sqlite.table.user_sql import Queries, Query
from stowhand.stores.table.arguments import Key
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions


class Table(msgspec.Struct, frozen=True):
    """Options, and the statements that they and the catalog lead to."""

    options: TableOptions[Any]
    shape: Shape
    kinds: Kinds
    key: Key
    names: tuple[str, ...]
    """Of a record's columns."""
    statements: Mapping[str, str]
    queries: Queries
    walks: bool = False
    """There is an index of the very order in which records are claimed, of what waits alone."""


class TableTransaction:
    """What all work on the file is passed: the connection, the time (microseconds since 1970), and the table."""

    __slots__ = ("_known", "now", "raw", "times")

    def __init__(self, raw: sqlite3.Connection, now: int, known: Callable[[], Table]) -> None:
        self.raw = raw
        self.now = now
        self.times = parameters("now", now)
        self._known = known

    @property
    def table(self) -> Table:
        """Raises StoreError before the catalog has been read."""
        return self._known()

    def run(self, name: str, /, *, due: int | None = None, **values: Any) -> sqlite3.Cursor:
        """Change one record. ``due``: when it is to be due again; ``None``: at once."""
        when = _AT_ONCE if due is None else parameters("due", due, not_before=True)
        return self.raw.execute(self.table.statements[name], {**self.times, **when, **values})

    def look(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        """Run a statement that asks for no time but what it is given."""
        return self.raw.execute(self.table.statements[name], values)

    def select(self, query: Query, **values: Any) -> sqlite3.Cursor:
        """Run one that the user's own expressions or conditions are part of."""
        return self.raw.execute(query.text, {**query.values, **values})


_AT_ONCE = dict.fromkeys(parameters("due", 0))
