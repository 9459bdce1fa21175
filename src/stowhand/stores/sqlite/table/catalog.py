"""A file's catalog of a table and its view, the states its CHECKs refuse, and the types that fit.

A column of SQLite can contain anything, so only types that change written values are wrong. No fix changes types or
constraints: where a column does not fit, the worker gets another one.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stowhand.jobs.job import State
from stowhand.stores.sqlite.table.timestamps import TimeFormat, kind_of
from stowhand.stores.table.check import (
    COUNTER_COLUMNS,
    READ_ONLY_COLUMNS,
    CatalogFacts,
    Column,
    Index,
    Rule,
    refused_statement,
)
from stowhand.stores.table.ddl import SQLITE_COLUMNS, index_ddl
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.names import TOKEN_COLUMN, Relation, Shape, quote

_UPDATE_EVENT_PATTERN = re.compile(r"\bUPDATE(?:\s+OF\s+(?P<columns>.+?))?\s+ON\b", re.IGNORECASE | re.DOTALL)
"""The first match in a trigger's text is the event that runs it."""
_CHECK_PATTERN = re.compile(r"\bCHECK\s*\(", re.IGNORECASE)
_WHERE_PATTERN = re.compile(r"\sWHERE\s", re.IGNORECASE)


def survey(connection: sqlite3.Connection, shape: Shape) -> CatalogFacts:
    """Read the catalog. Schemas other than ``main`` are empty: no file is attached here."""
    (kind, sql), (view_kind, _) = (_kind(connection, relation) for relation in (shape.table, shape.view))
    is_table = kind == "table"
    columns = _columns(connection, shape.table) if kind else {}
    facts = CatalogFacts(
        kind=kind,
        columns=columns,
        view_kind=view_kind,
        view_columns=_columns(connection, shape.view) if view_kind else {},
        indexes=_indexes(connection, shape.table) if is_table else (),
        triggers=_triggers(connection, shape) if is_table else {},
    )
    return replace(facts, rules=list(_rules(connection, sql, facts, shape)) if is_table else ())


def _kind(connection: sqlite3.Connection, relation: Relation) -> tuple[str, str]:
    """Return the kind of a relation, and the SQL that created it."""
    if relation.schema is not None and relation.schema.lower() != "main":
        return "", ""
    row = connection.execute(
        "SELECT type, coalesce(sql, '') FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?)",
        (relation.name,),
    ).fetchone()
    if row is None:
        return "", ""
    return "virtual table" if row[1].upper().startswith("CREATE VIRTUAL") else row[0], row[1]


def _columns(connection: sqlite3.Connection, relation: Relation) -> dict[str, Column]:
    rows = connection.execute(f"PRAGMA main.table_xinfo({quote(relation.name)})").fetchall()
    key = [row[1].lower() for row in rows if row[5]]
    return {
        # The rowid is never NULL.
        name.lower(): Column(
            name,
            declared or "",
            bool(filled) or (key == [name.lower()] and declared.upper() == "INTEGER"),
            default,
            computed=hidden in (2, 3),
        )
        for _, name, declared, filled, default, _, hidden in rows
        if hidden != 1
    }


def _indexes(connection: sqlite3.Connection, relation: Relation) -> list[Index]:
    indexes = []
    for _, name, unique, _, partial in connection.execute(f"PRAGMA main.index_list({quote(relation.name)})").fetchall():
        own = tuple(row[2] and row[2].lower() for row in connection.execute(f"PRAGMA main.index_info({quote(name)})"))
        row = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)).fetchone()
        predicate = _WHERE_PATTERN.split(row[0])[-1] if partial and row and row[0] else ""
        indexes.append(Index(name, bool(unique), own, predicate))
    rows = connection.execute(f"PRAGMA main.table_xinfo({quote(relation.name)})").fetchall()
    key = tuple(row[1].lower() for row in sorted(rows, key=lambda row: row[5]) if row[5])
    return [*indexes, Index("", True, key)] if key else indexes


def _triggers(connection: sqlite3.Connection, shape: Shape) -> dict[str, str]:
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?) ORDER BY name",
        (shape.table.name,),
    )
    beat = shape.columns["last_heartbeat_at"].lower()
    return {
        name: sql
        for name, sql in rows
        if (update := _UPDATE_EVENT_PATTERN.search(sql))
        and (update["columns"] is None or beat in update["columns"].lower())
    }


def _rules(connection: sqlite3.Connection, sql: str, facts: CatalogFacts, shape: Shape) -> Iterator[Rule]:
    """Yield CHECKs on columns that a worker writes. One on the state alone is evaluated, without rows or locks."""
    state = facts.column(shape, "state")
    written_names = [name for name in shape.columns if name not in READ_ONLY_COLUMNS]
    columns = [column.name for name in written_names if (column := facts.column(shape, name)) is not None]
    for expression in _checks(sql):
        columns_of_check = [
            own for own in columns if re.search(rf"(?<!\w){re.escape(own)}(?!\w)", expression, re.IGNORECASE)
        ]
        refused = None
        if state is not None and columns_of_check == [state.name]:
            with contextlib.suppress(sqlite3.Error):  # The CHECK names other columns, or the application's functions.
                rows = connection.execute(refused_statement(state, expression)).fetchall()
                refused = [State(row[0]) for row in rows]
        if columns_of_check:
            yield Rule(f"a CHECK of {shape.table.name}", columns_of_check, refused)


def _checks(sql: str) -> Iterator[str]:
    """Yield the expressions of a table's CHECKs."""
    for check in _CHECK_PATTERN.finditer(sql):
        depth, end = 1, check.end()
        while depth and end < len(sql):
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            end += 1
        yield sql[check.end() : end - 1]


TEXT_COLUMNS = ("state", "failure_message", "execution_logs", "worker_hostname", TOKEN_COLUMN)


class SqliteDialect:
    """SQLite's types and statements for one table."""

    name = "sqlite"

    def __init__(self, shape: Shape) -> None:
        self.table = shape.table.quoted

    def misfit(self, documented: str, column: Column) -> str:
        """Return why the type does not fit; empty if it fits."""
        declared = column.type.upper()
        is_number = kind_of(declared) is not TimeFormat.TEXT
        if documented == "id":
            return "keys are INTEGER or TEXT" if "BLOB" in declared or kind_of(declared) is TimeFormat.REAL else ""
        if documented in TEXT_COLUMNS and is_number:
            return "it must keep text unchanged"
        if (
            documented in COUNTER_COLUMNS
            and not is_number
            and any(word in declared for word in ("CHAR", "CLOB", "TEXT"))
        ):
            return "it must keep a number"
        return ""

    def add(self, documented: str, own: str) -> str:
        """Return ADD COLUMN. SQLite adds no column whose default is the time. Existing rows must not run."""
        declared = SQLITE_COLUMNS[documented].removesuffix(" DEFAULT CURRENT_TIMESTAMP")
        add = f"ALTER TABLE {self.table} ADD COLUMN {quote(own)} {declared};"
        if documented != "state":
            return add
        update = f"UPDATE {self.table} SET {quote(own)} = 'completed';"
        return f"BEGIN IMMEDIATE;\n{add}\n{update}\nCOMMIT;"

    def default(self, documented: str) -> str:
        """Return nothing: SQLite cannot set a default."""
        return ""

    def index(self, shape: Shape, recommended: Recommended, own: Sequence[str], *, unique: bool = False) -> str:
        """Return CREATE INDEX."""
        statement = index_ddl(shape, recommended, "sqlite", own=own)
        return statement.replace("CREATE INDEX", "CREATE UNIQUE INDEX", 1) if unique else statement
