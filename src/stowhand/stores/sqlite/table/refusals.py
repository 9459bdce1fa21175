"""What a table's own CHECKs would refuse: tried on an empty copy in memory, so that no row and no lock is touched.

A copy that cannot be made or filled (functions or collations of the application's own, CHECKs of other columns) says
nothing; what it refuses then is reported when a worker meets it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from stowhand.jobs.job import State
from stowhand.stores.sqlite.table.catalog import Column, Facts
from stowhand.stores.sqlite.table.moments import Kind, kind_of, parameters
from stowhand.stores.table.judging import FILLED
from stowhand.stores.table.names import Shape, quote


def refused_states(facts: Facts, shape: Shape, mend: str = "") -> list[State]:
    """States that no record can be in, before or after ``mend``. ``canceled`` counts where a record can be canceled."""
    written = [state for state in State if state is not State.CANCELED or facts.column(shape, "cancel") is not None]
    with contextlib.closing(sqlite3.connect(":memory:")) as copy:
        try:
            copy.executescript(f"{facts.sql}\n;\n{mend}")
            _insert(copy, facts, shape, State.QUEUED)
        except sqlite3.Error:
            return written if mend else []
        return [state for state in written if not _lets_pass(copy, facts, shape, state)]


def _lets_pass(copy: sqlite3.Connection, facts: Facts, shape: Shape, state: State) -> bool:
    copy.execute(f"DELETE FROM {quote(shape.table.name)}")
    try:
        _insert(copy, facts, shape, state)
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_CONSTRAINT_CHECK
    return True


def _insert(copy: sqlite3.Connection, facts: Facts, shape: Shape, state: State) -> None:
    row = dict(_row(facts, shape, state))
    places = ", ".join("?" * len(row))
    copy.execute(
        f"INSERT INTO {quote(shape.table.name)} ({', '.join(map(quote, row))}) VALUES ({places})", list(row.values())
    )


def _row(facts: Facts, shape: Shape, state: State) -> Iterator[tuple[str, Any]]:
    documented = {own.lower(): name for name, own in shape.columns.items()}
    for key, column in facts.columns.items():
        name = documented.get(key)
        if column.generated:
            continue
        if name == "state":
            yield column.name, state.value
        elif name in FILLED[state] or (column.filled and column.default is None):
            yield column.name, _value(name, column)


def _value(name: str | None, column: Column) -> Any:
    kind = kind_of(column.declared)
    if name is not None and name.endswith(("_at", "_after")):
        return parameters("now", 0)[f"now_{kind}"]
    return "-" if kind is Kind.TEXT and name not in ("cancel", "num_failures", "num_resets") else 1
