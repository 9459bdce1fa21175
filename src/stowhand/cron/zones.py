"""Time zones: conversion between minutes of a local wall clock and real minutes.

Real minutes and wall minutes are whole numbers, counted as in `fields.py`. Real minutes are UTC. Offsets are rounded
down to whole minutes, which only affects dates before 1973. A year is a sequence of *spans* with one offset each.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

import msgspec

from stowhand.cron.fields import MINUTES_PER_DAY
from stowhand.errors import hint

FIRST_MINUTE = date(2, 1, 1).toordinal() * MINUTES_PER_DAY
"""The first supported real minute. A wall minute may be earlier, by the offset of its zone."""
LAST_MINUTE = date(9998, 1, 1).toordinal() * MINUTES_PER_DAY
_MAX_WALL_DISTANCE = 2 * MINUTES_PER_DAY
"""Maximum difference between two wall times of one real minute: an offset is less than a day either way."""


class Span(msgspec.Struct, frozen=True):
    """Real minutes from ``start`` to ``stop`` (exclusive), in which local time is real time plus ``offset``."""

    start: int
    stop: int
    offset: int


class Zone:
    """A time zone. The spans of each year are computed once."""

    def __init__(self, name: str, info: tzinfo) -> None:
        self.name = name
        self.info = info
        self._years: dict[int, tuple[Span, ...]] = {}

    def spans(self, minute: int) -> Iterator[Span]:
        """Yield the span that contains this real minute, and all later ones."""
        year = date.fromordinal(minute // MINUTES_PER_DAY).year
        while year < date.max.year:
            for span in self._year(year):
                if span.stop > minute:
                    yield span
            year += 1

    def wall(self, minute: int) -> int:
        """Return the minute that the local clock shows at this real minute."""
        return minute + next(self.spans(minute)).offset

    def latest_wall(self, minute: int) -> int:
        """Return the latest wall minute shown up to this real minute. If the clock was set back, it shows less now."""
        walls = []
        for span in self.spans(max(minute - _MAX_WALL_DISTANCE, FIRST_MINUTE)):
            if span.start > minute:
                break
            walls.append(min(span.stop - 1, minute) + span.offset)
        return max(walls)

    def first_minute(self, wall: int) -> int:
        """Return the first real minute at which the local clock shows ``wall``, or has skipped it."""
        for span in self.spans(max(wall - MINUTES_PER_DAY, FIRST_MINUTE)):
            minute = max(span.start, wall - span.offset)
            if minute < span.stop:
                return minute
        raise AssertionError("the wall minute is after the last supported year")

    def _year(self, year: int) -> tuple[Span, ...]:
        spans = self._years.get(year)
        if spans is None:
            spans = self._years[year] = tuple(self._split_year(year))
        return spans

    def _split_year(self, year: int) -> Iterator[Span]:
        start, stop = (date(number, 1, 1).toordinal() * MINUTES_PER_DAY for number in (year, year + 1))
        if self.info is UTC:
            yield Span(start, stop, 0)
            return
        edges = [(start, self._offset(start))]
        for day in range(start, stop, MINUTES_PER_DAY):
            self._split(day, day + MINUTES_PER_DAY, edges)
        for (at, offset), end in zip(edges, [*(at for at, _ in edges[1:]), stop], strict=True):
            if at < end:
                yield Span(at, end, offset)

    def _split(self, low: int, high: int, edges: list[tuple[int, int]]) -> None:
        """Append the change of the offset in (low, high], if any. Zones change at most once within four days."""
        old, new = edges[-1][1], self._offset(high)
        if old == new:
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == old else (low, middle)
        edges.append((high, self._offset(high)))

    def _offset(self, minute: int) -> int:
        """Return the offset in whole minutes, rounded down."""
        time = to_time(min(max(minute, FIRST_MINUTE), LAST_MINUTE))
        offset = time.astimezone(self.info).utcoffset()
        assert offset is not None
        return offset // timedelta(minutes=1)


def to_minute(at: datetime) -> int:
    """Return the real minute of an aware datetime."""
    if at.utcoffset() is None:
        raise ValueError(f"{at.isoformat()} has no time zone; add one, as in datetime.now(UTC)")
    time = at.astimezone(UTC)
    return time.toordinal() * MINUTES_PER_DAY + time.hour * 60 + time.minute


def to_time(minute: int) -> datetime:
    """Return an aware datetime in UTC."""
    day, minute = divmod(minute, MINUTES_PER_DAY)
    return datetime.fromordinal(day).replace(hour=minute // 60, minute=minute % 60, tzinfo=UTC)


@lru_cache(maxsize=64)
def find_zone(name: str) -> Zone:
    """Return a zone by its IANA name, or "UTC". Raises ValueError with a suggestion."""
    return Zone(name, UTC if name == "UTC" else _find(name))


def _find(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # absent; an invalid key; a folder, such as "America"
        names = available_timezones()
    if not names:
        raise ValueError(f"{name[:40]!r}: this machine has no time zones; install the package tzdata")
    suggestion = hint(name, names, 0.5) or "; write for example Europe/Berlin"
    raise ValueError(f"{name[:40]!r} is not a time zone{suggestion}")
