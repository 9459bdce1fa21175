"""Strict JSON: what one side accepts the other reads back equal; what some reader would choke on is refused."""

from __future__ import annotations

import json
import math
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.jobs import strict_json

FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x == 0 or abs(x) >= 1e-308)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
SCALARS = st.none() | st.booleans() | st.integers(-(10**300) + 1, 10**300 - 1) | FLOATS | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)
FRAGMENTS = st.lists(
    st.sampled_from(["[", "]", "{", "}", '"', "\\", "\\u0000", "\\ud800", "e", "E", "+", "-", ".", "9" * 301, "1", "0"])
    | st.sampled_from([",", ":", " ", "null", "NaN", "Infinity", "1e400", "1e-309", "\x00", "\ud800", "é", "[" * 70]),
    max_size=12,
).map("".join)


@given(VALUES)
def test_what_encode_accepts_decode_reads_back_equal(value: Any) -> None:
    assert strict_json.decode(strict_json.encode(value)) == value


@given(VALUES)
def test_a_text_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    assert strict_json.decode(json.dumps(value)) == value


@given(FRAGMENTS | st.text())
def test_decode_raises_nothing_but_undecodable_payload_and_accepts_only_what_encode_writes(text: str) -> None:
    try:
        value = strict_json.decode(text)
    except UndecodablePayload:
        return
    assert strict_json.decode(strict_json.encode(value)) == value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"a": [n]}, lambda n: Point(n, 1.0), lambda n: Model(x=n)])
def test_nan_and_infinity_are_refused_wherever_they_hide(number: float, wrap: Any) -> None:
    with pytest.raises(InvalidJob, match="NaN and infinity"):
        strict_json.encode(wrap(number))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("a\x00b", "NUL"),
        ({"a\x00b": 1}, "NUL"),
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        (10**300, "301 digits, the limit is 300"),
        (10**5000, "limit"),
        (5e-324, "exponent 324, the limit is 308"),
        (
            "x" * strict_json.MAX_WRITTEN_BYTES,
            "1048578 bytes, the limit is 1048576; keep the data in a file or a table, and pass",
        ),
        ("é" * 600_000, "1200002 bytes, the limit is 1048576"),
        (object(), "object has no JSON form"),
        ({(1, 2): 3}, "cannot be written as JSON"),
        ({None: 3}, "cannot be written as JSON"),
        (msgspec.Raw(b'{"a":'), "cannot be written as JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 and value.isprintable() else "",
)
def test_what_a_reader_would_choke_on_is_refused_with_its_limit(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidJob, match=complaint) as caught:
        strict_json.encode(value, what="argument")
    assert str(caught.value).startswith("argument: ")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("nul", "truncated"),
        ("[NaN]", "malformed: NaN and infinity are not JSON numbers"),
        ("[-Infinity]", "malformed: NaN and infinity are not JSON numbers"),
        ('["NaN", x]', "malformed: invalid character"),
        ("[1] x", "malformed"),
        ('"\\u0000"', "NUL"),
        ('"\\\\\\u0000"', "NUL"),
        ('{"\\u0000":1}', "NUL"),
        ('"\\ud800"', "lone surrogate"),
        ('"\\\\\\ud800"', "lone surrogate"),
        ('"\\\\ud800" x', "trailing"),
        ('"\\ud83d\\ude00" x', "trailing"),
        ('"\\udc00\\ud800"', "surrogate"),
        ('"\ud800"', "lone surrogate"),
        ('"\x00"', "malformed"),
        ('{"a":1e5000}', "exponent 5000, the limit is 308"),
        ('{"a":1E+309}', "exponent 309"),
        ("1e-309", "exponent 309"),
        ("9e308", "."),
        ("1" * 301, "301 digits, the limit is 300"),
        ("-" + "1" * 301, "301 digits"),
        ("1" * 300 + "e308", "."),
        ("[" * 100_000, "nested deeper than the limit of 64"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than the limit of 64"),
        ('"' + "x" * strict_json.MAX_READ_BYTES + '"', "bytes, the limit is"),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_a_stored_text_that_no_worker_can_read_says_why(text: str, complaint: str) -> None:
    with pytest.raises(UndecodablePayload, match=complaint):
        strict_json.decode(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\\\u0000"', "\\u0000"),
        ('"1e999 ' + "9" * 400 + '"', "1e999 " + "9" * 400),
        ('"' + "[" * 100 + '"', "[" * 100),
        ('"\\"[[["', '"[[['),
        ('{"a":1,"a":2}', {"a": 2}),
        ("1e0000003", 1000.0),
        ("1e308", 1e308),
        ("9" * 300, 10**300 - 1),
        ("[" * 64 + "]" * 64, None),
        (" \n[1 ,2]\t", [1, 2]),
        ('"\\ud83d\\ude00"', "😀"),
        ("0." + "1" * 400, 1 / 9),
    ],
    ids=lambda given: ascii(given)[:30],
)
def test_what_only_looks_suspicious_is_accepted(text: str, value: Any) -> None:
    result = strict_json.decode(text)
    assert value is None or result == value


def test_depth_is_counted_alike_in_both_directions() -> None:
    value: Any = []
    for _ in range(63):
        value = [value]
    assert strict_json.decode(strict_json.encode(value)) == value
    with pytest.raises(InvalidJob, match="nested deeper than the limit of 64"):
        strict_json.encode([value])


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidJob, match="nested deeper"):
        strict_json.encode(loop)


@dataclass
class Point:
    x: float
    y: float


class Model(pydantic.BaseModel):
    x: float
    at: datetime | None = None


class Color(Enum):
    RED = "red"


def test_values_are_written_as_people_expect() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    value = {
        "point": Point(1.0, 2.0),
        "model": Model(x=1, at=moment),
        "at": moment,
        "id": uuid.UUID(int=1),
        "sum": Decimal("1.10"),
        "color": Color.RED,
        "raw": b"abc",
        "pair": (1, 2),
        7: "seven",
    }
    assert strict_json.decode(strict_json.encode(value)) == {
        "point": {"x": 1.0, "y": 2.0},
        "model": {"x": 1.0, "at": "2026-01-02T03:04:05Z"},
        "at": "2026-01-02T03:04:05Z",
        "id": "00000000-0000-0000-0000-000000000001",
        "sum": "1.10",
        "color": "red",
        "raw": "YWJj",
        "pair": [1, 2],
        "7": "seven",
    }


@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * 500_000,
        "1" * 1_000_000,
        "[" * 1_000_000,
        '"\\',
        "\\" * 1_000_000,
        "1e" * 400_000,
        ("9" * 300 + ",") * 3000,
    ],
    ids=["quotes", "digits", "brackets", "backslash", "backslashes", "exponents", "long numbers"],
)
def test_hostile_text_costs_linear_time(text: str) -> None:
    started = time.thread_time()  # of the processor: the machine may be busy with others
    with pytest.raises(UndecodablePayload):
        strict_json.decode(text)
    # A quadratic search would take minutes; a linear one takes tenths of a second.
    assert time.thread_time() - started < 10
