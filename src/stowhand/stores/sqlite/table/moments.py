"""Moments as applications keep them in SQLite, which has no type for them.

Written as the column's declared type says, like whatever the application itself keeps there:

    TEXT, DATETIME, TIMESTAMP, none …    2026-11-21 22:04:05.123456    UTC; sorts and compares with CURRENT_TIMESTAMP's
    REAL, FLOAT, DOUBLE                  1795298645.123456             seconds since 1970
    INTEGER, BIGINT                      1795298645                    whole seconds; what must not be early, rounded up

Read whatever the declared type says: with ``T``, ``Z`` or an offset (none means UTC), to the second or finer; numbers
are seconds since 1970, or milli- or microseconds where no seconds would be so large. Inside, a moment is a whole number
of microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from stowhand.clock import wall_clock

Now = Callable[[], int]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
DAY = 86_400 * SECOND
_FIRST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND

LARGEST_SECONDS = 100_000_000_000
"""The year 5138; in milliseconds it is 1973."""
_LARGEST_MILLISECONDS = 1e14


class Kind(StrEnum):
    """How a column keeps its moments."""

    TEXT = "text"
    REAL = "real"
    INTEGER = "integer"


def kind_of(declared: str) -> Kind:
    """By the declared type of the column, read as SQLite reads it."""
    name = declared.upper()
    if "INT" in name:
        return Kind.INTEGER
    return Kind.REAL if any(part in name for part in ("REAL", "FLOA", "DOUB")) else Kind.TEXT


def clock(pinned: Callable[[], datetime] | None) -> Now:
    """The machine's wall clock: a file has no other, and its columns are read by others. ``pinned``: a test's."""
    read = wall_clock if pinned is None else pinned
    return lambda: to_micros(read())


def to_micros(when: datetime) -> int:
    """An aware datetime."""
    return (when - EPOCH) // MICROSECOND


def after(now: int, seconds: float) -> int:
    """So many seconds from ``now``; never beyond the years that can be written."""
    return now + round(min(max(seconds, -1e12), 1e12) * SECOND)


def as_text(micros: int) -> str:
    """As it is written into a TEXT column."""
    when = EPOCH + timedelta(microseconds=min(max(micros, _FIRST), _LAST))
    return when.replace(tzinfo=None).isoformat(" ", "microseconds")


def parameters(name: str, micros: int, *, not_before: bool = False) -> dict[str, Any]:
    """One moment as the parameters ``:name`` (microseconds), ``:name_text``, ``:name_real`` and ``:name_integer``."""
    return {
        name: micros,
        f"{name}_{Kind.TEXT}": as_text(micros),
        f"{name}_{Kind.REAL}": micros / SECOND,
        f"{name}_{Kind.INTEGER}": -(-micros // SECOND) if not_before else micros // SECOND,
    }


def stored_micros(value: object) -> int | None:
    """What a column holds, as microseconds; ``None`` for NULL and for what is no moment. SQL: ``stowhand_micros``."""
    if isinstance(value, str):
        return _from_text(value.strip())
    if isinstance(value, int | float):
        return _from_number(value)
    return None


def _from_text(text: str) -> int | None:
    try:
        if len(text) > 8 and text.isdecimal():  # 1712011200000 could be the year 1712 too
            return _from_number(int(text))
        when = datetime.fromisoformat(text)
        return to_micros(when if when.tzinfo is not None else when.replace(tzinfo=UTC))
    except ValueError:
        pass
    except OverflowError:  # the first or the last day there is, in another zone
        return None
    try:
        return _from_number(float(text))
    except ValueError:
        return None


def _from_number(number: float) -> int | None:
    size = abs(number)
    if size < LARGEST_SECONDS:
        return round(number * SECOND)
    return round(number * 1000) if size < _LARGEST_MILLISECONDS else round(number) if size < 1e18 else None
