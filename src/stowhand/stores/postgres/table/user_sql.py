"""A user's expressions and conditions, written out: names are quoted, values are parameters, text stays as it is."""

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
    """Of what one claim brings together."""

    costs: str = ""
    """Beside each key."""
    totals: str = ""
    """Of each and those before it."""
    within: str = "true"


class PostgresWriter(SqlWriter):
    """``prefix``: of the names of its values."""

    def __init__(self, shape: Shape, prefix: str) -> None:
        super().__init__(shape)
        self._prefix = prefix

    def record(self, chosen: Sequence[SelectedExpression]) -> str:
        """What stands behind SELECT."""
        return "\n, ".join(
            self.expression(one.expression) + ("" if one.name is None else f" as {quote_(one.name)}") for one in chosen
        )

    def order(self, given: Sequence[ParsedExpression]) -> str:
        """What stands behind ORDER BY."""
        return "\n, ".join(map(self.expression, given))

    def conditions(self, given: Sequence[Any]) -> str:
        """Each in parentheses of its own, all of them to hold. Raises ConfigurationError for what is none."""
        return "".join(f" and ({self.condition(one)}\n)" for one in given)

    def bounds(self, together: Sequence[Where]) -> Bounds:
        """``Where(column, "together <=", value)``, one or several."""
        numbers = range(len(together))
        columns = [self.expression(self.shape.column(one.column)) for one in together]
        over = "over (order by placed.place rows unbounded preceding)"
        return Bounds(
            "".join(f", {column} as cost_{at}" for at, column in enumerate(columns)),
            "".join(f", sum(placed.cost_{at}) {over} as total_{at}" for at in numbers),
            " and ".join(f"summed.total_{at} <= {self.placeholder(one.value)}" for at, one in enumerate(together)),
        )

    def placeholder(self, value: object) -> str:
        name = f"{self._prefix}{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"

    def literal_text(self, text: str) -> str:
        return plain(text)

    def driver_expression(self, given: object) -> str:
        """What ``psycopg.sql`` composes."""
        if not isinstance(given, sql.Composable):
            raise ConfigurationError(
                f'{given!r}: {a_type(given)} given; give Where(column, operator, value), sql("…"), or what'
                " psycopg.sql composes"
            )
        if any(isinstance(part, sql.Placeholder) for part in _parts(given)):
            raise ConfigurationError(
                f'{given!r}: a placeholder has no value here; sql("… {{}}", value) has, or Literal'
            )
        return plain(given.as_string(None))


def plain(text: str) -> str:
    """Text as it is: in a statement with parameters a percent sign is written twice."""
    return text.replace("%", "%%")


def quote_(name: str) -> str:
    """A name, quoted, in a statement with parameters."""
    return plain(quote(name))


def _parts(given: sql.Composable) -> Iterator[sql.Composable]:
    if isinstance(given, sql.Composed):
        for part in given:
            yield from _parts(part)
    else:
        yield given
