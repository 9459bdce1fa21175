"""What a claim may ask for: refused where it is written, with what to write instead."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import Where, sql

NAN = float("nan")


@pytest.mark.parametrize(
    ("op", "value", "says"),
    [
        ("like", "a%", "no operator 'like'; available: =, !=, <"),
        (["="], 1, "no operator"),
        ("=", None, r'write Where\(…, "is null"\)'),
        ("=", NAN, "nan cannot be compared"),
        ("<=", Decimal("NaN"), "cannot be compared"),
        ("<=", Decimal("sNaN"), "cannot be compared"),
        ("=", b"raw", "cannot be compared"),
        ("=", {"a": 1}, "cannot be compared"),
        ("in", "abc", "takes a list"),
        ("in", 7, "takes a list"),
        ("in", [], "takes 1 to 1000 values"),
        ("not in", range(1001), "takes 1 to 1000 values"),
        ("in", [1, NAN], "cannot be compared"),
        ("is null", 1, "takes no value"),
    ],
)
def test_a_comparison_that_is_none_is_refused(op: Any, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Where("size", op, value)


@pytest.mark.parametrize(
    "value",
    ["a", 1, 1.5, True, Decimal("1.5"), datetime(2024, 1, 1, tzinfo=UTC), date(2024, 1, 1), UUID(int=1)],
)
def test_values_of_every_plain_kind_are_compared(value: Any) -> None:
    assert Where("size", "=", value).value == value


def test_the_values_of_a_list_are_kept_as_they_were() -> None:
    values = [1, 2]
    instance = Where("size", "in", values)
    values.append(3)
    assert instance.value == (1, 2)


@pytest.mark.parametrize(
    ("text", "values", "says"),
    [
        ("size < {}", (), "1 placeholders and 0 values"),
        ("size < 1", (1,), "0 placeholders and 1 values"),
        ("size < {0}", (1,), r"a placeholder is \{\}, not \{0\}"),
        ("size < {x!r}", (1,), r"a placeholder is \{\}"),
        ("size < {", (1,), "write a literal brace twice"),
        (7, (), "got an int; use text"),
    ],
)
def test_places_and_values_must_go_together(text: Any, values: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sql(text, *values)


def test_braces_and_percents_are_text() -> None:
    instance = sql("tags @> '{{a}}' AND path LIKE '100%' AND size < {}", 5)
    assert instance.pieces == ("tags @> '{a}' AND path LIKE '100%' AND size < ", "")
    assert instance.values == (5,)
