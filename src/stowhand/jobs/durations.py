"""Parsing and formatting of durations and times: ``30s``, ``1.5h``, ``3m 20s ago``, ``2030-01-31 09:00:00Z``."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import msgspec

from stowhand.errors import a_type

Duration = timedelta | float | str
"""A duration in Python. A plain number, or a phrase without a unit, is in seconds."""

SECONDS_BY_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
MAX_DURATION_SECONDS = 100 * 365.25 * SECONDS_BY_UNIT["d"]
"""A hundred years: the limit of every delay, period and age."""
_PART_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.ASCII)
_NUMBER_PATTERN = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)


def seconds(duration: Duration) -> float:
    """Return a duration in seconds. Raises ValueError for other types, including bool."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        return parse_duration(duration)
    try:
        if not isinstance(duration, bool):
            return float(duration)
    except TypeError:
        pass
    raise ValueError(f"got {a_type(duration)}; use seconds, a timedelta or a phrase such as '30s'")


def parse_duration(text: str, unit: str = "s") -> float:
    """Parse a phrase into seconds. ``unit`` applies to a plain number. Raises ValueError."""
    phrase = text.strip().lower()
    if _NUMBER_PATTERN.fullmatch(phrase):
        return _bounded(float(phrase) * SECONDS_BY_UNIT[unit], text)
    total = 0.0
    end = 0
    while part := _PART_PATTERN.match(phrase, end):
        if part[2] not in SECONDS_BY_UNIT:
            raise ValueError(f"{part[2]!r} is not a unit of time; available: {', '.join(SECONDS_BY_UNIT)}")
        total += float(part[1]) * SECONDS_BY_UNIT[part[2]]
        end = part.end()
    if not phrase or end < len(phrase):
        raise ValueError(f"{text!r} is not a duration; write for example 250ms, 30s, 5m, 1.5h or 2d")
    return _bounded(total, text)


def format_duration(seconds: float) -> str:
    """Return the shortest phrase that ``parse_duration`` reads back as the same duration."""
    for unit in ("w", "d", "h", "m", "s"):
        if seconds >= SECONDS_BY_UNIT[unit] and seconds % SECONDS_BY_UNIT[unit] == 0:
            return f"{seconds / SECONDS_BY_UNIT[unit]:.0f}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def _bounded(seconds: float, text: str) -> float:
    if not math.isfinite(seconds) or seconds > MAX_DURATION_SECONDS:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return seconds


def format_time(time: datetime | None) -> str:
    """Return ``2030-01-31 09:00:00Z``, or ``-`` for ``None``."""
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def format_iso_time(time: datetime | None) -> str | None:
    """Return an ISO 8601 text in UTC, for JSON."""
    return None if time is None else time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_span(seconds: float) -> str:
    """Return ``0s``, ``45s``, ``3m 20s``, ``2h 5m`` or ``3d 4h``: at most two units."""
    whole = int(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((index for index, (number, _) in enumerate(parts) if number), 3)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number) or "0s"


def format_short_duration(seconds: float | None) -> str:
    """Return ``0.3ms``, ``12ms``, ``1.2s`` or ``3m 20s``, or ``-`` for ``None``."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.1f}ms" if seconds < 0.01 else f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 60 else format_span(seconds)


def ago(time: datetime | None, now: datetime) -> str:
    """Return ``3m 20s ago``, ``now`` within a second or for a later time, or ``-`` for ``None``."""
    if time is None:
        return "-"
    seconds = (now - time).total_seconds()
    return "now" if seconds < 1 else f"{format_span(seconds)} ago"


def away(time: datetime, now: datetime) -> str:
    """Return ``3m 20s ago``, ``in 5m`` or ``now``."""
    seconds = (now - time).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{format_span(seconds)} ago" if seconds > 0 else f"in {format_span(-seconds)}"


class RunTime(msgspec.Struct, frozen=True):
    """A time, or a delay by the store's clock; with neither, now."""

    run_at: datetime | None = None
    delay: float | None = None


def parse_run_time(text: str) -> RunTime:
    """Parse ``2030-01-31T09:00:00Z``, ``2030-01-31T09:00+01:00`` or ``+5m``. Raises ValueError."""
    if text.startswith("+"):
        return RunTime(delay=parse_duration(text[1:]))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a time (2030-01-31T09:00:00Z) nor a delay (+5m)") from None
    if time.utcoffset() is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC, or an offset such as +01:00")
    return RunTime(run_at=time)


class PastTime(msgspec.Struct, frozen=True):
    """A time, or a number of seconds before now by the store's clock."""

    at: datetime | None = None
    ago: float = 0.0

    async def by(self, now: Callable[[], Awaitable[datetime]]) -> datetime:
        """Return the time. ``now`` reads the store's clock."""
        return self.at or await now() - timedelta(seconds=self.ago)

    def __str__(self) -> str:
        return f"{format_span(self.ago)} ago" if self.at is None else self.at.isoformat()


def parse_past_time(text: str) -> PastTime:
    """Parse ``2h`` (ago) or ``2030-01-31T09:00:00Z``. A time without an offset is in UTC. Raises ValueError."""
    try:
        return PastTime(ago=parse_duration(text))
    except ValueError as duration_error:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{duration_error}; or a time: 2030-01-31T09:00:00Z") from None
    return PastTime(at=at if at.tzinfo is not None else at.replace(tzinfo=UTC))
