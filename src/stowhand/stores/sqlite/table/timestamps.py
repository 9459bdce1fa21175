"""Times as applications store them in SQLite, which has no type for them.

They are written by the column's declared type, like the application's own values:

    TEXT, DATETIME, TIMESTAMP, none …    2026-11-21 22:04:05.123456    UTC; sorts and compares with CURRENT_TIMESTAMP's
    REAL, FLOAT, DOUBLE                  1795298645.123456             seconds since 1970
    INTEGER, BIGINT                      1795298645                    whole seconds; what must not be early, rounded up

They are read in any format: with ``T``, ``Z`` or an offset (none means UTC), to the second or finer; numbers are
seconds since 1970, or milli- or microseconds if too large for seconds. Internally, a time is a whole number of
microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from stowhand.clock import wall_clock

Now = Callable[[], int]

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MICROSECOND = timedelta(microseconds=1)
MICROS_PER_SECOND = 1_000_000
MICROS_PER_DAY = 86_400 * MICROS_PER_SECOND
_FIRST_MICROS = (datetime.min.replace(tzinfo=UTC) - UNIX_EPOCH) // ONE_MICROSECOND
_LAST_MICROS = (datetime.max.replace(tzinfo=UTC) - UNIX_EPOCH) // ONE_MICROSECOND

MAX_SECONDS = 100_000_000_000
"""The year 5138; as milliseconds, 1973."""
_MAX_MILLISECONDS = 1e14


class TimeFormat(StrEnum):
    """The format of a column's times."""

    TEXT = "text"
    REAL = "real"
    INTEGER = "integer"


def kind_of(declared: str) -> TimeFormat:
    """Return the format for a column's declared type, which is read as in SQLite."""
    name = declared.upper()
    if "INT" in name:
        return TimeFormat.INTEGER
    return TimeFormat.REAL if any(part in name for part in ("REAL", "FLOA", "DOUB")) else TimeFormat.TEXT


def clock(pinned: Callable[[], datetime] | None) -> Now:
    """Return the machine's wall clock, which other readers of the columns use too. ``pinned``: the clock of a test."""
    read = wall_clock if pinned is None else pinned
    return lambda: to_micros(read())


def to_micros(time: datetime) -> int:
    """Return an aware datetime as microseconds since 1970."""
    return (time - UNIX_EPOCH) // ONE_MICROSECOND


def after(now: int, seconds: float) -> int:
    """Return a time ``seconds`` from ``now``, within the years that can be written."""
    return now + round(min(max(seconds, -1e12), 1e12) * MICROS_PER_SECOND)


def as_text(micros: int) -> str:
    """Return a time as written into a TEXT column."""
    time = UNIX_EPOCH + timedelta(microseconds=min(max(micros, _FIRST_MICROS), _LAST_MICROS))
    return time.replace(tzinfo=None).isoformat(" ", "microseconds")


def parameters(name: str, micros: int, *, not_before: bool = False) -> dict[str, Any]:
    """Return a time as the parameters ``:name`` (microseconds), ``:name_text``, ``:name_real``, ``:name_integer``."""
    return {
        name: micros,
        f"{name}_{TimeFormat.TEXT}": as_text(micros),
        f"{name}_{TimeFormat.REAL}": micros / MICROS_PER_SECOND,
        f"{name}_{TimeFormat.INTEGER}": -(-micros // MICROS_PER_SECOND) if not_before else micros // MICROS_PER_SECOND,
    }


def stored_micros(value: object) -> int | None:
    """Return a column's value in microseconds; ``None`` if it is not a time. In SQL: ``stowhand_micros``."""
    if isinstance(value, str):
        return _from_text(value.strip())
    if isinstance(value, int | float):
        return _from_number(value)
    return None


def _from_text(text: str) -> int | None:
    try:
        if len(text) > 8 and text.isdecimal():  # 1712011200000 could be the year 1712 too
            return _from_number(int(text))
        time = datetime.fromisoformat(text)
        return to_micros(time if time.tzinfo is not None else time.replace(tzinfo=UTC))
    except ValueError:
        pass
    except OverflowError:  # the first or the last possible day, in another zone
        return None
    try:
        return _from_number(float(text))
    except ValueError:
        return None


def _from_number(number: float) -> int | None:
    size = abs(number)
    if size < MAX_SECONDS:
        return round(number * MICROS_PER_SECOND)
    return round(number * 1000) if size < _MAX_MILLISECONDS else round(number) if size < 1e18 else None
