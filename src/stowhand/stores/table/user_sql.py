"""A user's expressions and conditions, written into a statement: names are quoted, values are parameters."""

from __future__ import annotations

import re
from typing import Any

from stowhand.jobs.conditions import Sql, Where
from stowhand.stores.table.names import Column, Read, Shape, quote


class Writer:
    """Of one statement, or a part of one. An engine says how a value and a text stand there, and what else it takes.

    A text may end in a comment, so a line ends behind each.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.values: dict[str, object] = {}

    def expression(self, given: Read) -> str:
        """A column, ``sql(…)``, or what else the engine takes. Raises ConfigurationError."""
        if isinstance(given, Column):
            return self.plain(f"{quote(given.qualifier or self.shape.view_label)}.{quote(given.name)}")
        if isinstance(given, Sql):
            places = [*map(self.place, given.values), "\n"]
            return "".join(self.plain(piece) + place for piece, place in zip(given.pieces, places, strict=True))
        return self.other(given)

    def condition(self, given: Any) -> str:
        """A comparison, or an expression that is true or not."""
        if not isinstance(given, Where):
            return self.expression(given)
        column = self.expression(self.shape.column(given.column))
        if given.op in ("is null", "is not null"):
            return f"{column} {given.op}"
        column, values = self.compared(column, given.value if isinstance(given.value, tuple) else (given.value,))
        return f"{column} {given.op} ({', '.join(map(self.place, values))})"

    def compared(self, column: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """A column and values in a form in which they compare."""
        return column, values

    def place(self, value: object) -> str:
        """The place of a value, which becomes a parameter."""
        raise NotImplementedError

    def plain(self, text: str) -> str:
        """Text in a statement with parameters."""
        return text

    def other(self, given: object) -> str:
        """An expression that only this engine takes. Raises ConfigurationError."""
        raise NotImplementedError


def names_relation(label: str, text: str) -> bool:
    """Return whether a text may speak of that relation. Taking a comment for a yes costs a join, and no more."""
    either = f"{re.escape(quote(label))}|{re.escape(label)}"
    return re.search(rf'(?<![\w$"])(?:{either})\s*\.', text, re.IGNORECASE) is not None
