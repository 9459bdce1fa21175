"""A user's expressions and conditions, written out: names are quoted, values are parameters, text stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from psycopg import sql

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import TOGETHER, Sql, Where
from stowhand.stores.table.expressions import Selected
from stowhand.stores.table.names import Column, Read, Shape, quote


class Written(msgspec.Struct, frozen=True):
    """Part of a statement, and its parameters."""

    text: str
    values: dict[str, object] = {}


class Bounds(msgspec.Struct, frozen=True):
    """Of what one claim brings together."""

    costs: str = ""
    """Beside each key."""
    totals: str = ""
    """Of each and those before it."""
    within: str = "true"
    values: dict[str, object] = {}


class Writer:
    """For one table and its view. A text may end in a comment, so a line ends behind each."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def record(self, chosen: Sequence[Selected]) -> Written:
        """What stands behind SELECT."""
        return _joined([self._selected(one, f"r{at}") for at, one in enumerate(chosen)], "\n, ")

    def order(self, given: Sequence[Read]) -> Written:
        """What stands behind ORDER BY."""
        return _joined([self.expression(one, f"o{at}") for at, one in enumerate(given)], "\n, ")

    def conditions(self, given: Sequence[Any]) -> Written:
        """Each in parentheses of its own, all of them to hold. Raises ConfigurationError for what is none."""
        found = [self._condition(one, f"c{at}") for at, one in enumerate(given)]
        return _joined([Written(f" and ({one.text}\n)", one.values) for one in found], "")

    def bounds(self, together: Sequence[Where]) -> Bounds:
        """``Where(column, "together <=", value)``, one or several."""
        numbers = range(len(together))
        columns = [self.expression(self._shape.column(one.column), "").text for one in together]
        over = "over (order by placed.place rows unbounded preceding)"
        return Bounds(
            "".join(f", {column} as cost_{at}" for at, column in enumerate(columns)),
            "".join(f", sum(placed.cost_{at}) {over} as total_{at}" for at in numbers),
            " and ".join(f"summed.total_{at} <= %(most_{at})s" for at in numbers),
            {f"most_{at}": one.value for at, one in enumerate(together)},
        )

    def expression(self, given: Read, prefix: str) -> Written:
        """A column, ``Sql``, or what ``psycopg.sql`` composes."""
        if isinstance(given, Column):
            return Written(f"{quote_(given.qualifier or self._shape.view_label)}.{quote_(given.name)}")
        if isinstance(given, Sql):
            names = [f"{prefix}_{at}" for at in range(len(given.values))]
            places = [f"%({name})s" for name in names]
            text = "".join(_zipped([plain(piece) for piece in given.pieces], places))
            return Written(text, dict(zip(names, given.values, strict=True)))
        if isinstance(given, sql.Composable):
            if any(isinstance(part, sql.Placeholder) for part in _parts(given)):
                raise ConfigurationError(
                    f'{given!r}: a placeholder has no value here; sql("… {{}}", value) has, or Literal'
                )
            return Written(plain(given.as_string(None)))
        raise ConfigurationError(
            f'{given!r}: a {type(given).__qualname__} given; give Where(column, operator, value), sql("…"), or what'
            " psycopg.sql composes"
        )

    def _condition(self, given: Any, prefix: str) -> Written:
        if isinstance(given, str):
            raise ConfigurationError(
                f"condition {given!r}: text; give Where(column, operator, value), or sql({given!r})"
            )
        if not isinstance(given, Where):
            return self.expression(given, prefix)
        if given.op == TOGETHER:
            raise ConfigurationError(f"condition on {given.column!r}: {given.op!r} is for a claim; write '<='")
        column = self.expression(self._shape.column(given.column), prefix).text
        if given.op in ("is null", "is not null"):
            return Written(f"{column} {given.op}")
        if given.op not in ("in", "not in"):
            return Written(f"{column} {given.op} %({prefix})s", {prefix: given.value})
        values = {f"{prefix}_{at}": value for at, value in enumerate(given.value)}
        return Written(f"{column} {given.op} ({', '.join(f'%({name})s' for name in values)})", values)

    def _selected(self, one: Selected, prefix: str) -> Written:
        found = self.expression(one.expression, prefix)
        return found if one.name is None else Written(f"{found.text} as {quote_(one.name)}", found.values)


def _joined(found: Sequence[Written], between: str) -> Written:
    values: dict[str, object] = {}
    for one in found:
        values |= one.values
    return Written(between.join(one.text for one in found), values)


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


def _zipped(pieces: Sequence[str], places: Sequence[str]) -> Iterator[str]:
    for at, piece in enumerate(pieces):
        yield piece
        if at < len(places):
            yield places[at]


def _parts(given: sql.Composable) -> Iterator[sql.Composable]:
    if isinstance(given, sql.Composed):
        for part in given:
            yield from _parts(part)
    else:
        yield given
