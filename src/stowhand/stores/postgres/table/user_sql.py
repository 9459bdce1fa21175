"""A user's expressions and conditions, written out: names are quoted, values are parameters, text stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from psycopg import sql

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.conditions import Sql, Where
from stowhand.stores.table.names import Column, Read, Shape, quote
from stowhand.stores.table.options import Selected


class Bounds(msgspec.Struct, frozen=True):
    """Of what one claim brings together."""

    costs: str = ""
    """Beside each key."""
    totals: str = ""
    """Of each and those before it."""
    within: str = "true"


class Writer:
    """For a part of one statement about a table and its view, and the values in it; ``prefix``: of their names.

    A text may end in a comment, so a line ends behind each.
    """

    def __init__(self, shape: Shape, prefix: str) -> None:
        self._shape = shape
        self._prefix = prefix
        self.values: dict[str, object] = {}

    def record(self, chosen: Sequence[Selected]) -> str:
        """What stands behind SELECT."""
        return "\n, ".join(
            self.expression(one.expression) + ("" if one.name is None else f" as {quote_(one.name)}") for one in chosen
        )

    def order(self, given: Sequence[Read]) -> str:
        """What stands behind ORDER BY."""
        return "\n, ".join(map(self.expression, given))

    def conditions(self, given: Sequence[Any]) -> str:
        """Each in parentheses of its own, all of them to hold. Raises ConfigurationError for what is none."""
        return "".join(f" and ({self._condition(one)}\n)" for one in given)

    def bounds(self, together: Sequence[Where]) -> Bounds:
        """``Where(column, "together <=", value)``, one or several."""
        numbers = range(len(together))
        columns = [self.expression(self._shape.column(one.column)) for one in together]
        over = "over (order by placed.place rows unbounded preceding)"
        return Bounds(
            "".join(f", {column} as cost_{at}" for at, column in enumerate(columns)),
            "".join(f", sum(placed.cost_{at}) {over} as total_{at}" for at in numbers),
            " and ".join(f"summed.total_{at} <= {self._place(one.value)}" for at, one in enumerate(together)),
        )

    def expression(self, given: Read) -> str:
        """A column, ``Sql``, or what ``psycopg.sql`` composes."""
        if isinstance(given, Column):
            return f"{quote_(given.qualifier or self._shape.view_label)}.{quote_(given.name)}"
        if isinstance(given, Sql):
            places = [*map(self._place, given.values), ""]
            return "".join(plain(piece) + place for piece, place in zip(given.pieces, places, strict=True))
        if isinstance(given, sql.Composable):
            if any(isinstance(part, sql.Placeholder) for part in _parts(given)):
                raise ConfigurationError(
                    f'{given!r}: a placeholder has no value here; sql("… {{}}", value) has, or Literal'
                )
            return plain(given.as_string(None))
        raise ConfigurationError(
            f'{given!r}: {a_type(given)} given; give Where(column, operator, value), sql("…"), or what'
            " psycopg.sql composes"
        )

    def _condition(self, given: Any) -> str:
        if not isinstance(given, Where):
            return self.expression(given)
        column = self.expression(self._shape.column(given.column))
        if given.op in ("is null", "is not null"):
            return f"{column} {given.op}"
        if given.op not in ("in", "not in"):
            return f"{column} {given.op} {self._place(given.value)}"
        return f"{column} {given.op} ({', '.join(map(self._place, given.value))})"

    def _place(self, value: object) -> str:
        name = f"{self._prefix}{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"


def plain(text: str) -> str:
    """Text as it is: in a statement with parameters a percent sign is written twice."""
    return text.replace("%", "%%")


def quote_(name: str) -> str:
    """A name, quoted, in a statement with parameters."""
    return plain(quote(name))


def names_relation(label: str, text: str) -> bool:
    """Does the text speak of that relation? Taking a comment for a yes costs a join, and no more."""
    either = f"{re.escape(quote(label))}|{re.escape(label)}"
    return re.search(rf'(?<![\w$".])(?:{either})\s*\.', text, re.IGNORECASE) is not None


def _parts(given: sql.Composable) -> Iterator[sql.Composable]:
    if isinstance(given, sql.Composed):
        for part in given:
            yield from _parts(part)
    else:
        yield given
