"""Durations as people write them: a timedelta, seconds, or a phrase: ``30s``, ``1.5h``, ``250ms``, ``1h30m``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from stowhand.errors import a_type

Duration = timedelta | float | str
"""In Python. A plain number is seconds, and so is a phrase without a unit."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
MAX_DURATION_SECONDS = 100 * 365.25 * UNITS["d"]
"""A hundred years: the limit of every delay, period and age."""
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)


def seconds(duration: Duration) -> float:
    """Return a duration in seconds. Raises ValueError for anything else, also for a bool."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        return parse_duration(duration)
    try:
        if not isinstance(duration, bool):
            return float(duration)
    except TypeError:
        pass
    raise ValueError(f"{a_type(duration)} given; give seconds, a timedelta or a phrase such as '30s'")


def parse_duration(text: str, unit: str = "s") -> float:
    """Parse a phrase into seconds. ``unit`` is that of a plain number. Raises ValueError with a sentence."""
    phrase = text.strip().lower()
    if _NUMBER.fullmatch(phrase):
        return _bounded(float(phrase) * UNITS[unit], text)
    total, end = 0.0, 0
    while part := _PART.match(phrase, end):
        if part[2] not in UNITS:
            raise ValueError(f"{part[2]!r} is no unit of time; there are: {', '.join(UNITS)}")
        total, end = total + float(part[1]) * UNITS[part[2]], part.end()
    if not phrase or end < len(phrase):
        raise ValueError(f"{text!r} is no duration; write for example 250ms, 30s, 5m, 1.5h or 2d")
    return _bounded(total, text)


def say_duration(seconds: float) -> str:
    """Return the shortest phrase that ``parse_duration`` reads back as the same duration."""
    for unit in ("w", "d", "h", "m", "s"):
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0:
            return f"{seconds / UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def _bounded(seconds: float, text: str) -> float:
    if not math.isfinite(seconds) or seconds > MAX_DURATION_SECONDS:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return seconds
