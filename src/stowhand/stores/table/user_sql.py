"""Writes a user's expressions and conditions into a statement: names are quoted, values are parameters."""

from __future__ import annotations

import re
from typing import Any

from stowhand.jobs.conditions import Sql, Where
from stowhand.stores.table.names import Column, ParsedExpression, Shape, quote


class SqlWriter:
    """The writer of one statement or a part of it. Each engine has its own placeholders and extra expressions.

    A user's text may end in a comment, so a line break follows each.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.values: dict[str, object] = {}

    def expression(self, expression: ParsedExpression) -> str:
        """Write a column, ``sql(…)``, or an expression of the engine. Raises ConfigurationError."""
        if isinstance(expression, Column):
            return self.literal_text(f"{quote(expression.qualifier or self.shape.view_label)}.{quote(expression.name)}")
        if isinstance(expression, Sql):
            placeholders = [*map(self.placeholder, expression.values), "\n"]
            return "".join(
                self.literal_text(piece) + placeholder
                for piece, placeholder in zip(expression.pieces, placeholders, strict=True)
            )
        return self.driver_expression(expression)

    def condition(self, condition: Any) -> str:
        """Write a comparison, or an expression that is true or false."""
        if not isinstance(condition, Where):
            return self.expression(condition)
        column = self.expression(self.shape.column(condition.column))
        if condition.op in ("is null", "is not null"):
            return f"{column} {condition.op}"
        column, values = self.comparable(
            column, condition.value if isinstance(condition.value, tuple) else (condition.value,)
        )
        return f"{column} {condition.op} ({', '.join(map(self.placeholder, values))})"

    def comparable(self, column: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """Return a column and values in comparable forms."""
        return column, values

    def placeholder(self, value: object) -> str:
        """Return the placeholder of a value, which becomes a parameter."""
        raise NotImplementedError

    def literal_text(self, text: str) -> str:
        """Return a literal text in a statement with parameters."""
        return text

    def driver_expression(self, expression: object) -> str:
        """Write an expression that only this engine accepts. Raises ConfigurationError."""
        raise NotImplementedError


def names_relation(label: str, text: str) -> bool:
    """Return whether a text may name that relation. A match in a comment costs only a join."""
    either = f"{re.escape(quote(label))}|{re.escape(label)}"
    return re.search(rf'(?<![\w$"])(?:{either})\s*\.', text, re.IGNORECASE) is not None
