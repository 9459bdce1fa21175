"""Composes the statements that contain the user's own expressions and conditions.

They join the view with the table, for the columns that a claim checks. In the join these columns have names of this
package, so that a bare name in the user's SQL refers to the view's column. If the SQL uses the table's alias, the table
itself is joined. Names are always quoted and qualified: SQLite reads an unknown quoted name as a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.conditions import Where, split_conditions
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import MIN_SUSPECT_RESETS
from stowhand.stores.sqlite.table.composer import Kinds, is_not_after, is_true
from stowhand.stores.sqlite.table.timestamps import MAX_SECONDS, TimeFormat, as_text, to_micros
from stowhand.stores.table.names import OWN_ALIAS, Column, ParsedExpression, Shape, quote
from stowhand.stores.table.options import SelectedExpression
from stowhand.stores.table.user_sql import SqlWriter, names_relation

CLAIM_COLUMNS = ("id", "state", "process_after", "finished_at", "num_resets", "cancel")
"""The table's columns that claims and counts check."""


class Query(msgspec.Struct, frozen=True):
    """A statement and the values of the user's conditions."""

    text: str
    values: Mapping[str, Any]


class Queries:
    """The queries of one table. ``order`` and ``columns`` are read by options.py.

    ``shows_state``: there is a view, and it has the table's state column.
    """

    def __init__(
        self,
        shape: Shape,
        kinds: Kinds,
        *,
        retries: bool,
        order: Sequence[ParsedExpression],
        columns: Sequence[SelectedExpression],
        shows_state: bool,
    ) -> None:
        self._shape = shape
        self._retries = retries
        self._order = order
        self._columns = columns
        self._shows_state = shows_state
        self._due = _due(shape, kinds, retries=retries)

    def due(self) -> str:
        """Return the count of due records, at most ``:limit``. Parameters: ``now``, ``late``, ``soon``."""
        return f"SELECT count(*) FROM (SELECT 1 FROM ({self._due}) LIMIT :limit)"

    def candidates(
        self, conditions: Sequence[Any], *, suspects: bool, in_order: bool, skips_keys: bool = False
    ) -> Query:
        """Return due records in order: key, whether to cancel it, and the summed costs (``together <=``).

        Parameters: as ``due``.

        ``in_order``: walk an index in that order until there are enough, instead of sorting all due records.
        ``skips_keys``: pass over records whose keys, as texts, are in ``:skipped`` (JSON).
        """
        conditions, together = split_conditions(conditions)
        query = _SqliteWriter(self._shape, (*self._order, *conditions))
        at = query.at
        order = ", ".join(query.expression(expression) for expression in self._order)
        costs = "".join(f", {query.expression(self._shape.column(bound.column))}" for bound in together)
        return query.whole(
            f"SELECT {at['id']}, {is_true(at['cancel']) if self._shape.has('cancel') else '0'}{costs}",
            [
                *(self._waiting(at) if in_order else [f"{at['id']} IN (\n{self._due}\n)"]),
                f"typeof({at['id']}) IN ('integer', 'text')",
                f"coalesce({at['num_resets']}, 0) {'>=' if suspects else '<'} {MIN_SUSPECT_RESETS}",
                *([f"CAST({at['id']} AS TEXT) NOT IN (SELECT value FROM json_each(:skipped))"] if skips_keys else []),
            ],
            conditions,
            f"ORDER BY {order} LIMIT :limit",
        )

    def records(self) -> Query:
        """Return key and columns of the records whose keys are in ``:ids`` (JSON)."""
        query = _SqliteWriter(self._shape, [column.expression for column in self._columns], joins_claim_columns=False)
        key = f"{quote(self._shape.view_label)}.{self._shape['id']}"
        columns = "".join(
            f", {query.expression(column.expression)}" + ("" if column.name is None else f" AS {quote(column.name)}")
            for column in self._columns
        )
        return query.whole(f"SELECT {key}{columns}", [f"{key} IN (SELECT value FROM json_each(:ids))"])

    def counts(self, states: Sequence[State], conditions: Sequence[Any]) -> Query:
        """Return the number of records by state."""
        query = _SqliteWriter(self._shape, conditions)
        state = query.at["state"]
        return query.whole(f"SELECT {state}, count(*)", [_is_in(state, states)], conditions, f"GROUP BY {state}")

    def exists(self, states: Sequence[State], conditions: Sequence[Any]) -> Query:
        """Return one row if there is such a record."""
        query = _SqliteWriter(self._shape, conditions)
        return query.whole("SELECT 1", [_is_in(query.at["state"], states)], conditions, "LIMIT 1")

    def _waiting(self, at: Mapping[str, str]) -> list[str]:
        """Return the conditions of due records, for an index WHERE state IN ('queued', 'errored') in the user's order.

        SQLite recognizes such an index by the exact text of its condition. Without a likelihood the planner assumes few
        waiting records, and sorts them. A plus prevents it from searching the state in another index.
        """
        states = [at["state"]]
        if self._shows_state:
            states.append(f"{quote(self._shape.view_label)}.{self._shape['state']}")
        state, after = f"+{at['state']}", at["process_after"]
        retried = f"{state} = 'errored' AND {_retried(at['finished_at'])}"
        return [
            *(f"likelihood({column} IN ('queued', 'errored'), 0.99)" for column in states),
            f"({state} = 'queued' OR ({retried}))" if self._retries else f"{state} = 'queued'",
            f"({after} IS NULL OR {is_not_after(after, 'now')})",
        ]


def _is_in(column: str, states: Sequence[State]) -> str:
    return f"{column} IN ({', '.join(repr(State(state).value) for state in states)})"


def _due(shape: Shape, kinds: Kinds, *, retries: bool) -> str:
    """Return the keys of due records, by ranges of an index on (state, process_after), without reading others."""
    row, table = quote(shape.table.name), shape.table.quoted
    key, after = f"{row}.{shape['id']}", f"{row}.{shape['process_after']}"
    if kinds["process_after"] is TimeFormat.TEXT:
        # Texts in other formats sort within two days of their time; numbers sort before all texts.
        ranges = [f"{after} < :soon_text AND {is_not_after(after, 'now')}"]
    else:
        # Milliseconds, and all texts, sort after all seconds.
        ranges = [
            f"{after} {bound} AND {is_not_after(after, 'now')}" for bound in ("< :soon_real", f">= {MAX_SECONDS}")
        ]
    finished_at = f"{row}.{shape['finished_at']}"
    condition_by_state = {"queued": ""}
    if retries:
        condition_by_state["errored"] = f" AND {_retried(finished_at)}"
    return "\nUNION ALL ".join(
        f"SELECT {key} FROM {table}"
        f" WHERE {row}.{shape['state']} = '{state}' AND {time_range}{condition} AND {key} IS NOT NULL"
        for state, condition in condition_by_state.items()
        for time_range in (f"{after} IS NULL", *ranges)
    )


def _retried(finished_at: str) -> str:
    return f"({finished_at} IS NULL OR {is_not_after(finished_at, 'late')})"


class _SqliteWriter(SqlWriter):
    """The writer of one statement: its FROM, the user's parts, and their values."""

    def __init__(self, shape: Shape, parts: Iterable[Any], *, joins_claim_columns: bool = True) -> None:
        super().__init__(shape)
        label = shape.table_label
        joins_table = shape.viewed and any(_mentions(part, label) for part in parts)
        self.at: dict[str, str] = {}
        """By documented name, the table's column in this statement."""
        claim_columns = [name for name in CLAIM_COLUMNS if shape.has(name)]
        if not shape.viewed or joins_table:
            self.at = {name: shape.of(label, name) for name in claim_columns}
        else:
            self.at = {name: f"{quote(OWN_ALIAS)}.{quote(f'stowhand_{name}')}" for name in claim_columns}
        self._from = shape.view.labelled()
        if shape.viewed and (joins_table or joins_claim_columns):
            key = f"{quote(shape.view_label)}.{shape['id']}"
            side = shape.table.labelled(label) if joins_table else self._hidden(claim_columns)
            self._from += f"\n    JOIN {side} ON {self.at['id']} = {key}"

    def whole(self, select: str, conditions: Sequence[str], users: Sequence[Any] = (), rest: str = "") -> Query:
        """Return the statement, with the user's conditions in parentheses."""
        where = [*conditions, *(f"({self.condition(condition)})" for condition in users)]
        text = f"{select}\nFROM {self._from}\nWHERE " + "\n    AND ".join(where) + (f"\n{rest}" if rest else "")
        return Query(text, self.values)

    def comparable(self, column: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """Compare times as numbers, in any format of the column. A date is its first instant."""
        if not any(isinstance(value, date) for value in values):
            return column, values
        times = (to_micros(_aware(value)) if isinstance(value, date) else value for value in values)
        return f"stowhand_micros({column})", tuple(times)

    def placeholder(self, value: object) -> str:
        name = f"value_{len(self.values)}"
        self.values[name] = _bound(value)
        return f":{name}"

    def driver_expression(self, expression: object) -> str:
        raise ConfigurationError(
            f"got {a_type(expression)}; for SQLite a condition is Where(column, op, value) or sql(text, *values),"
            " and an expression is a column's name or sql(…)"
        )

    def _hidden(self, claim_columns: Iterable[str]) -> str:
        table = quote(self.shape.table.name)
        columns = ", ".join(f"{table}.{self.shape[name]} AS {quote(f'stowhand_{name}')}" for name in claim_columns)
        return f"(SELECT {columns} FROM {self.shape.table.quoted}) AS {quote(OWN_ALIAS)}"


def _mentions(part: Any, label: str) -> bool:
    if isinstance(part, Column):
        return part.qualifier is not None and part.qualifier.lower() == label.lower()
    return names_relation(label, part.column if isinstance(part, Where) else str(part))


def _bound(value: Any) -> Any:
    """Return a value that SQLite accepts."""
    if isinstance(value, datetime):
        return as_text(to_micros(_aware(value)))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigurationError(f"condition: {value} is beyond 64 bits")
    if isinstance(value, str) and (value.encode("utf-8", "replace").decode() != value):
        raise ConfigurationError(f"condition: {value!r} contains a lone surrogate, which no database can store")
    if value is not None and not isinstance(value, str | int | float | bytes):
        raise ConfigurationError(f"condition: got {a_type(value)}, which SQLite does not accept; use a str or a number")
    return value


def _aware(time_value: date) -> datetime:
    if not isinstance(time_value, datetime):
        return datetime.combine(time_value, time.min, UTC)
    return time_value if time_value.tzinfo is not None else time_value.replace(tzinfo=UTC)
