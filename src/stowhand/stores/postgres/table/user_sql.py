"""Writes a user's expressions and conditions: names are quoted, values are parameters, text is unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from psycopg import sql

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.conditions import Where
from stowhand.stores.table.names import ParsedExpression, Shape, quote
from stowhand.stores.table.options import SelectedExpression
from stowhand.stores.table.user_sql import SqlWriter


class Bounds(msgspec.Struct, frozen=True):
    """The SQL of bounds on all records of one claim."""

    costs: str = ""
    """The costs of each key."""
    totals: str = ""
    """The total of each record and those before it."""
    condition: str = "true"


class PostgresWriter(SqlWriter):
    """A writer for PostgreSQL. ``prefix``: the prefix of its parameters' names."""

    def __init__(self, shape: Shape, prefix: str) -> None:
        super().__init__(shape)
        self._prefix = prefix

    def record(self, chosen: Sequence[SelectedExpression]) -> str:
        """Write the list after SELECT."""
        return "\n, ".join(
            self.expression(selected.expression) + ("" if selected.name is None else f" as {quote_(selected.name)}")
            for selected in chosen
        )

    def order(self, expressions: Sequence[ParsedExpression]) -> str:
        """Write the list after ORDER BY."""
        return "\n, ".join(map(self.expression, expressions))

    def conditions(self, conditions: Sequence[Any]) -> str:
        """Write conditions that must all hold. Raise ConfigurationError for an invalid one."""
        return "".join(f" and ({self.condition(condition)}\n)" for condition in conditions)

    def bounds(self, joint_conditions: Sequence[Where]) -> Bounds:
        """Write conditions ``Where(column, "together <=", value)``."""
        indexes = range(len(joint_conditions))
        columns = [self.expression(self.shape.column(bound.column)) for bound in joint_conditions]
        window = "over (order by placed.place rows unbounded preceding)"
        return Bounds(
            "".join(f", {column} as cost_{number}" for number, column in enumerate(columns)),
            "".join(f", sum(placed.cost_{number}) {window} as total_{number}" for number in indexes),
            " and ".join(
                f"summed.total_{number} <= {self.placeholder(bound.value)}"
                for number, bound in enumerate(joint_conditions)
            ),
        )

    def placeholder(self, value: object) -> str:
        name = f"{self._prefix}{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"

    def literal_text(self, text: str) -> str:
        return plain(text)

    def driver_expression(self, expression: object) -> str:
        """Write an object of ``psycopg.sql``."""
        if not isinstance(expression, sql.Composable):
            raise ConfigurationError(
                f'{expression!r}: got {a_type(expression)}; use Where(column, operator, value), sql("…"), or what'
                " psycopg.sql composes"
            )
        if any(isinstance(part, sql.Placeholder) for part in _parts(expression)):
            raise ConfigurationError(
                f'{expression!r}: a placeholder has no value here; sql("… {{}}", value) has, or Literal'
            )
        return plain(expression.as_string(None))


def plain(text: str) -> str:
    """Return text for a statement with parameters, where a percent sign is doubled."""
    return text.replace("%", "%%")


def quote_(name: str) -> str:
    """Return a quoted name for a statement with parameters."""
    return plain(quote(name))


def _parts(composable: sql.Composable) -> Iterator[sql.Composable]:
    if isinstance(composable, sql.Composed):
        for part in composable:
            yield from _parts(part)
    else:
        yield composable
