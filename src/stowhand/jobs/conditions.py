"""Conditions of a claim, besides its tasks: comparisons with values, and SQL that a programmer wrote.

    Where("size", "<=", 10)                       closed: a column, an operator of the list, a value; any store that
                                                  takes conditions takes these, a remote one too
    Where("size", "together <=", 10)              of all records of one claim: their sum is at most that
    sql("length(j.path) < {}", 200)               text from the program, with a place for each value

Text never comes from data: values travel beside it, as parameters. ``{}`` is a place, ``{{`` and ``}}`` are braces.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from stowhand.errors import ConfigurationError, a_type

SUM_OPERATOR = "together <="
"""Per claim: the records of one claim have at most that together, so each of them has."""
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null", SUM_OPERATOR)
_LIST_OPERATORS = ("in", "not in")
_OPERATORS_WITHOUT_VALUE = ("is null", "is not null")
_VALUE_TYPES = (str, int, float, bool, Decimal, datetime, date, UUID)
MAX_LIST_VALUES = 1000


class Where(msgspec.Struct, frozen=True):
    """One comparison. ``value``: text, a number, a bool, a date or a uuid; for ``in`` a list of them."""

    column: str
    """Its name in the table or view; ``alias.column`` where two have the same name."""
    op: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise self._error(f"no operator {self.op!r}; {', '.join(OPERATORS)}")
        if self.op in _OPERATORS_WITHOUT_VALUE:
            if self.value is not None:
                raise self._error(f"{self.op!r} takes no value")
            return
        if self.op in _LIST_OPERATORS:
            values = self._list_values()
            msgspec.structs.force_setattr(self, "value", values)
        else:
            values = (self.value,)
        for value in values:
            if value is None:
                raise self._error('None cannot be compared with; write Where(…, "is null")')
            if not isinstance(value, _VALUE_TYPES) or _is_not_finite(value):
                raise self._error(f"{value!r} cannot be compared with")
        if self.op == SUM_OPERATOR and (
            isinstance(self.value, bool) or not isinstance(self.value, int | float | Decimal)
        ):
            raise self._error(f"{self.op!r} takes a number, and {self.value!r} is none")

    def _list_values(self) -> tuple[Any, ...]:
        if isinstance(self.value, str | bytes) or not isinstance(self.value, Iterable):
            raise self._error(f"{self.op!r} takes a list")
        values = tuple(self.value)
        if not 0 < len(values) <= MAX_LIST_VALUES:
            raise self._error(f"{self.op!r} takes 1 to {MAX_LIST_VALUES} values")
        return values

    def _error(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"condition on {self.column!r}: {reason}")


def _is_not_finite(value: object) -> bool:
    """NaN is more than every number to PostgreSQL; neither it nor an infinity can be written in JSON."""
    if isinstance(value, Decimal):
        return not value.is_finite()
    return isinstance(value, float) and not math.isfinite(value)


class Sql(msgspec.Struct, frozen=True):
    """SQL written by a programmer, in pieces, with a value between each two."""

    pieces: tuple[str, ...]
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return "{}".join(self.pieces)


def sql(text: str, *values: Any) -> Sql:
    """An expression or a condition. Raises ConfigurationError when the numbers of places and values differ."""
    if not isinstance(text, str):
        raise ConfigurationError(f"sql: {a_type(text)} given; give text")
    pieces, places = [""], 0
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            pieces[-1] += literal
            if name is not None:
                if name or spec or conversion:
                    raise ValueError(f"a place is {{}}, not {{{name}}}")
                places += 1
                pieces.append("")
    except ValueError as error:
        raise ConfigurationError(f"sql({text!r}): {error}; a brace itself is written twice") from None
    if places != len(values):
        raise ConfigurationError(f"sql({text!r}): {places} places and {len(values)} values")
    return Sql(tuple(pieces), values)


Condition = Where | Sql


def split_conditions(conditions: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Where, ...]]:
    """Return the conditions of each record, and those of all records of one claim together."""
    together = tuple(one for one in conditions if isinstance(one, Where) and one.op == SUM_OPERATOR)
    if not together:
        return tuple(conditions), ()
    return tuple(
        Where(one.column, "<=", one.value) if isinstance(one, Where) and one.op == SUM_OPERATOR else one
        for one in conditions
    ), together


def refuse_conditions(conditions: tuple[Any, ...]) -> None:
    """Raise ConfigurationError for conditions: a store that ignored them would claim excluded jobs."""
    if conditions:
        raise ConfigurationError(
            "a queue takes no conditions on a claim: pre_claim says True or False there, and forbidden_flags leave "
            "jobs out; a TableStore takes conditions"
        )
