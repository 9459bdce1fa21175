"""What the catalog of a file says about a table and its view. Only looks."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping

import msgspec

from stowhand.stores.table.names import Relation, Shape, quote


class Column(msgspec.Struct, frozen=True):
    """One of the table."""

    name: str
    declared: str
    """The type as it was written, or nothing."""
    filled: bool
    """NOT NULL."""
    default: str | None
    """As SQL."""
    place_in_key: int
    """In the primary key: 1, 2, …; 0: not in it."""
    generated: bool


class Index(msgspec.Struct, frozen=True):
    """One of the table."""

    unique: bool
    columns: tuple[str | None, ...]
    """``None``: an expression."""
    predicate: str
    """Of a partial one; empty: it holds every row."""


class Facts(msgspec.Struct, frozen=True):
    """What there is. Columns by their names in lower case, as SQLite compares them."""

    kind: str | None
    """``table``, ``view``, ``virtual``; ``None``: there is no table of that name."""
    strict: bool
    columns: Mapping[str, Column]
    indexes: tuple[Index, ...]
    view_columns: tuple[str, ...] | None
    """In order; ``None``: there is no such view. The table's where no view was given."""
    around: tuple[str, ...]
    """Tables and views of the file."""
    sql: str = ""
    """That made the table."""
    stirred: Mapping[str, str] = {}
    """Name and text of each trigger that a heartbeat runs."""

    def column(self, shape: Shape, documented: str) -> Column | None:
        """The table's column for a documented name."""
        return self.columns.get(shape.columns[documented].lower())

    def may_lack_id(self, shape: Shape) -> bool:
        """The key's column lets NULL in: a PRIMARY KEY does too, but for the row's own number (which has no index)."""
        column = self.column(shape, "id")
        if column is None or column.filled:
            return False
        keys = [tuple((name or "").lower() for name in index.columns) for index in self.indexes if index.unique]
        return (column.name.lower(),) in keys

    @property
    def declared(self) -> dict[str, str]:
        """Name -> declared type."""
        return {column.name: column.declared for column in self.columns.values()}


def survey(connection: sqlite3.Connection, shape: Shape) -> Facts:
    """Look. A schema other than ``main`` has nothing in it: no file is attached here."""
    around = connection.execute(
        "SELECT name, type, coalesce(sql, '') FROM sqlite_master WHERE type IN ('table', 'view')"
    ).fetchall()
    found = {name.lower(): (kind, sql) for name, kind, sql in around}
    here = shape.table.schema is None or shape.table.schema.lower() == "main"
    kind, sql = found.get(shape.table.name.lower(), (None, "")) if here else (None, "")
    columns = _columns(connection, shape.table) if kind else ()
    shown: tuple[str, ...] | None = tuple(column.name for column in columns)
    if shape.viewed:
        there = shape.view.schema is None or shape.view.schema.lower() == "main"
        is_there = there and shape.view.name.lower() in found
        shown = tuple(column.name for column in _columns(connection, shape.view)) if is_there else None
    return Facts(
        kind="virtual" if sql.upper().startswith("CREATE VIRTUAL") else kind,
        strict=kind == "table" and _is_strict(connection, shape.table),
        columns={column.name.lower(): column for column in columns},
        indexes=_indexes(connection, shape.table) if kind == "table" else (),
        view_columns=shown,
        around=tuple(name for name, _, _ in around),
        sql=sql,
        stirred=_stirred(connection, shape) if kind == "table" else {},
    )


def _stirred(connection: sqlite3.Connection, shape: Shape) -> dict[str, str]:
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?) ORDER BY name",
        (shape.table.name,),
    )
    beat = shape.columns["last_heartbeat_at"].lower()
    return {
        name: sql
        for name, sql in found
        if (update := _UPDATE.search(sql)) and (update["columns"] is None or beat in update["columns"].lower())
    }


_UPDATE = re.compile(r"\bUPDATE(?:\s+OF\s+(?P<columns>.+?))?\s+ON\b", re.IGNORECASE | re.DOTALL)
"""The first one in a trigger's text: what runs it."""
_WHERE = re.compile(r"\sWHERE\s", re.IGNORECASE)


def _columns(connection: sqlite3.Connection, relation: Relation) -> tuple[Column, ...]:
    rows = connection.execute(f"PRAGMA main.table_xinfo({quote(relation.name)})")
    return tuple(
        Column(name, declared or "", bool(filled), default, place, generated=hidden in (2, 3))
        for _, name, declared, filled, default, place, hidden in rows
        if hidden != 1
    )


def _is_strict(connection: sqlite3.Connection, relation: Relation) -> bool:
    if sqlite3.sqlite_version_info < (3, 37):
        return False
    row = connection.execute(
        "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(?)", (relation.name,)
    ).fetchone()
    return row is not None and bool(row[0])


def _indexes(connection: sqlite3.Connection, relation: Relation) -> tuple[Index, ...]:
    found = []
    for _, name, unique, _, partial in connection.execute(f"PRAGMA main.index_list({quote(relation.name)})").fetchall():
        columns = tuple(row[2] for row in connection.execute(f"PRAGMA main.index_info({quote(name)})"))
        predicate = ""
        if partial:
            row = connection.execute(
                "SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)
            ).fetchone()
            predicate = _WHERE.split(row[0])[-1] if row and row[0] else "?"
        found.append(Index(bool(unique), columns, predicate))
    return tuple(found)
