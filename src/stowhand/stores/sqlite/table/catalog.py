"""What the catalog of a file says about a table and its view, and what its CHECKs would refuse. Only looks."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stowhand.jobs.job import State
from stowhand.stores.sqlite.table.moments import Kind, kind_of, parameters
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.check import FILLED, Column, Facts, Index, RefusedStates
from stowhand.stores.table.names import Relation, Shape, quote

OLDEST = (3, 35, 0)
"""RETURNING."""
_UPDATE = re.compile(r"\bUPDATE(?:\s+OF\s+(?P<columns>.+?))?\s+ON\b", re.IGNORECASE | re.DOTALL)
"""The first one in a trigger's text: what runs it."""
_WHERE = re.compile(r"\sWHERE\s", re.IGNORECASE)


def survey(connection: sqlite3.Connection, path: Path, shape: Shape) -> Facts:
    """Look. A schema other than ``main`` has nothing in it: no file is attached here."""
    problems = []
    if sqlite3.sqlite_version_info < OLDEST:
        problems.append(Finding(f"Python's SQLite is {sqlite3.sqlite_version}; 3.35 or newer is needed"))
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        problems.append(Finding(f"{path}, or its folder, may not be written by this user: SQLite writes both"))
    (kind, sql), (view_kind, _) = (_kind(connection, one) for one in (shape.table, shape.view))
    is_table = kind == "table"
    columns = _columns(connection, shape.table) if kind else {}
    facts = Facts(
        kind=kind,
        columns=columns,
        view_kind=view_kind,
        view_columns=_columns(connection, shape.view) if view_kind else {},
        indexes=_indexes(connection, shape.table) if is_table else (),
        triggers=_triggers(connection, shape) if is_table else {},
        problems=problems,
    )
    return replace(facts, refused=list(_refused(sql, facts, shape)))


def is_strict(connection: sqlite3.Connection, relation: Relation) -> bool:
    """Columns keep values of their declared types alone."""
    if sqlite3.sqlite_version_info < (3, 37):
        return False
    row = connection.execute(
        "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(?)", (relation.name,)
    ).fetchone()
    return row is not None and bool(row[0])


def _kind(connection: sqlite3.Connection, relation: Relation) -> tuple[str, str]:
    """What it is, and the SQL that made it."""
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
        # The row's own number is never NULL.
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
    found = []
    for _, name, unique, _, partial in connection.execute(f"PRAGMA main.index_list({quote(relation.name)})").fetchall():
        own = tuple(row[2] and row[2].lower() for row in connection.execute(f"PRAGMA main.index_info({quote(name)})"))
        row = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)).fetchone()
        predicate = _WHERE.split(row[0])[-1] if partial and row and row[0] else ""
        found.append(Index(name, bool(unique), own, predicate))
    rows = connection.execute(f"PRAGMA main.table_xinfo({quote(relation.name)})").fetchall()
    key = tuple(row[1].lower() for row in sorted(rows, key=lambda row: row[5]) if row[5])
    return [*found, Index("", True, key)] if key else found


def _triggers(connection: sqlite3.Connection, shape: Shape) -> dict[str, str]:
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


# -- what is refused -----------------------------------------------------------------------------


def _refused(sql: str, facts: Facts, shape: Shape) -> Iterator[RefusedStates]:
    """CHECKs are tried on an empty copy in memory: no row and no lock is touched.

    A copy that cannot be made or filled (functions or collations of the application's own, CHECKs of other columns)
    says nothing; what it refuses then is reported when a worker meets it.
    """
    if facts.kind != "table" or facts.column(shape, "state") is None:
        return
    written = [one for one in State if one is not State.CANCELED or facts.column(shape, "cancel") is not None]
    with contextlib.closing(sqlite3.connect(":memory:")) as copy:
        try:
            copy.executescript(sql)
            _insert(copy, facts, shape, State.QUEUED)
        except sqlite3.Error:
            return
        refused = [state for state in written if not _passes(copy, facts, shape, state)]
        if refused:
            beside = all(_passes(copy, facts, shape, state, states=False) for state in written)
            yield RefusedStates(f"a CHECK of {shape.table.name}", refused, of_state=beside)


def _passes(copy: sqlite3.Connection, facts: Facts, shape: Shape, state: State, *, states: bool = True) -> bool:
    copy.execute(f"DELETE FROM {quote(shape.table.name)}")
    try:
        _insert(copy, facts, shape, state, states=states)
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_CONSTRAINT_CHECK
    return True


def _insert(copy: sqlite3.Connection, facts: Facts, shape: Shape, state: State, *, states: bool = True) -> None:
    """A row as a worker leaves it. Without ``states``: the state stays what an INSERT makes it."""
    row = dict(_row(facts, shape, state))
    if not states:
        row.pop(shape.columns["state"], None)
    places = ", ".join("?" * len(row))
    copy.execute(
        f"INSERT INTO {quote(shape.table.name)} ({', '.join(map(quote, row))}) VALUES ({places})", list(row.values())
    )


def _row(facts: Facts, shape: Shape, state: State) -> Iterator[tuple[str, Any]]:
    documented = {own.lower(): name for name, own in shape.columns.items()}
    for key, column in facts.columns.items():
        name = documented.get(key)
        if column.computed:
            continue
        if name == "state":
            yield column.name, state.value
        elif name in FILLED[state] or (column.filled and column.default is None):
            yield column.name, _value(name, column)


def _value(name: str | None, column: Column) -> Any:
    kind = kind_of(column.type)
    if name is not None and name.endswith(("_at", "_after")):
        return parameters("now", 0)[f"now_{kind}"]
    return "-" if kind is Kind.TEXT and name not in ("cancel", "num_failures", "num_resets") else 1
