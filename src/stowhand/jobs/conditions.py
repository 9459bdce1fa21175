"""Conditions of a claim: comparisons with values, and SQL that a programmer writes.

    Where("size", "<=", 10)                       a column, one of ``OPERATORS`` and a value; supported by every store
                                                  that supports conditions, including a remote one
    Where("size", "together <=", 10)              the sum over all records of one claim is at most 10
    sql("length(j.path) < {}", 200)               SQL text of the program, with a placeholder for each value

The text never comes from data: values are passed as parameters. ``{}`` is a placeholder, ``{{`` and ``}}`` are braces.
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
"""Limits the sum of the column over the records of one claim, and so the value of each record."""
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null", SUM_OPERATOR)
_LIST_OPERATORS = ("in", "not in")
_OPERATORS_WITHOUT_VALUE = ("is null", "is not null")
_VALUE_TYPES = (str, int, float, bool, Decimal, datetime, date, UUID)
MAX_LIST_VALUES = 1000


class Where(msgspec.Struct, frozen=True):
    """One comparison. ``value`` is text, a number, a bool, a date or a uuid, or a list of them for ``in``."""

    column: str
    """Its name in the table or view, or ``alias.column`` if two columns have the same name."""
    op: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise self._error(f"no operator {self.op!r}; available: {', '.join(OPERATORS)}")
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
                raise self._error('a comparison with None never matches; write Where(…, "is null")')
            if not isinstance(value, _VALUE_TYPES) or _is_not_finite(value):
                raise self._error(f"{value!r} cannot be compared; use text, a finite number, a bool, a date or a uuid")
        if self.op == SUM_OPERATOR and (
            isinstance(self.value, bool) or not isinstance(self.value, int | float | Decimal)
        ):
            raise self._error(f"{self.op!r} takes a number, not {self.value!r}")

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
    # To PostgreSQL NaN is greater than every number. JSON has neither NaN nor infinity.
    if isinstance(value, Decimal):
        return not value.is_finite()
    return isinstance(value, float) and not math.isfinite(value)


class Sql(msgspec.Struct, frozen=True):
    """SQL written by a programmer: pieces of text, with a value between each two."""

    pieces: tuple[str, ...]
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return "{}".join(self.pieces)


def sql(text: str, *values: Any) -> Sql:
    """Return an expression or a condition.

    Raises ConfigurationError unless there is one value for each placeholder.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"sql: got {a_type(text)}; use text")
    pieces = [""]
    placeholder_count = 0
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            pieces[-1] += literal
            if name is not None:
                if name or spec or conversion:
                    raise ValueError(f"a placeholder is {{}}, not {{{name}}}")
                placeholder_count += 1
                pieces.append("")
    except ValueError as error:
        raise ConfigurationError(f"sql({text!r}): {error}; write a literal brace twice") from None
    if placeholder_count != len(values):
        raise ConfigurationError(
            f"sql({text!r}): {placeholder_count} placeholders and {len(values)} values; use one value for each"
        )
    return Sql(tuple(pieces), values)


Condition = Where | Sql


def split_conditions(conditions: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Where, ...]]:
    """Return the conditions on each record, and those on the sum over all records of one claim."""
    sums = tuple(condition for condition in conditions if _is_sum(condition))
    if not sums:
        return tuple(conditions), ()
    single = tuple(
        Where(condition.column, "<=", condition.value) if _is_sum(condition) else condition for condition in conditions
    )
    return single, sums


def _is_sum(condition: object) -> bool:
    return isinstance(condition, Where) and condition.op == SUM_OPERATOR


def refuse_conditions(conditions: tuple[Any, ...]) -> None:
    """Raise ConfigurationError for conditions: a store that ignored them would claim excluded jobs."""
    if conditions:
        raise ConfigurationError(
            "a queue supports no conditions on a claim: return True or False from pre_claim, or exclude jobs with "
            "forbidden_flags; a TableStore supports conditions"
        )
