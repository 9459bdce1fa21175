"""The five fields of a crontab, and the minutes of a wall clock that match them.

A *wall minute* is the number of minutes that a wall clock has shown since 0001-01-01 (`date.toordinal` * 1440 + the
minute of the day). `zones.py` converts it to a real minute.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from datetime import date

import msgspec

from stowhand.errors import suggest

HOURS_PER_DAY = 24
MINUTES_PER_DAY = 1440
_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_WEEKDAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MAX_DAYS_PER_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_STEP_PATTERN = re.compile(r"\*/([0-9]+)")
_RANGE_PATTERN = re.compile(r"([0-9]+)-([0-9]+)")
_STEPPED_RANGE_PATTERN = re.compile(r"([0-9]+)(?:-([0-9]+))?/([0-9]+)")
_NAME_PATTERN = re.compile(r"[A-Za-z]+")
FIELD_PATTERN = re.compile(r"[0-9*/,-]+")
"""The characters of a field."""


class Field(msgspec.Struct, frozen=True):
    """One of the five fields, and its possible values."""

    name: str
    minimum: int
    maximum: int
    full_names: tuple[str, ...] = ()
    """Names of the values in other crons. ``App.cron`` accepts them (``in_numbers``), a crontab does not."""

    @property
    def names(self) -> tuple[str, ...]:
        """Abbreviated names, of three letters."""
        return tuple(name[:3] for name in self.full_names)

    @property
    def values(self) -> range:
        """All values of the field."""
        return range(self.minimum, self.maximum + 1)


FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day", 1, 31),
    Field("month", 1, 12, _MONTH_NAMES),
    Field("weekday", 0, 6, _WEEKDAY_NAMES),
)


MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Macros of other crons, which ``App.cron`` accepts too."""


class Pattern(msgspec.Struct, frozen=True):
    """The values of the five fields, each in ascending order. Weekday 0 is Sunday."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    @property
    def every_hour(self) -> bool:
        """Whether the hour is unrestricted, so that the item recurs with real time and not at times of the day."""
        return len(self.hours) == HOURS_PER_DAY

    @property
    def spec(self) -> str:
        """The five fields in normalized form."""
        return " ".join(
            _format_values(field, values) for field, values in zip(FIELDS, msgspec.structs.astuple(self), strict=True)
        )

    @property
    def has_dates(self) -> bool:
        """Whether any date matches. No date matches day 30 and month 2, the 30th of February."""
        if len(self.weekdays) < 7 and len(self.days) < 31:
            return True  # a weekday alone matches too, and every month has each weekday
        return any(self.days[0] <= _MAX_DAYS_PER_MONTH[month - 1] for month in self.months)


class Calendar:
    """A pattern, prepared for finding wall minutes fast."""

    def __init__(self, pattern: Pattern) -> None:
        self._times = [hour * 60 + minute for hour in pattern.hours for minute in pattern.minutes]
        self._days = frozenset(pattern.days)
        self._months = frozenset(pattern.months)
        self._weekdays = frozenset(pattern.weekdays)
        # If both are restricted, either may match. If one is restricted, the other one always matches.
        self._is_either = len(pattern.days) < 31 and len(pattern.weekdays) < 7

    def next(self, wall: int, stop: int) -> int | None:
        """Return the first matching wall minute, from ``wall`` on and before ``stop``."""
        day, minute = divmod(wall, MINUTES_PER_DAY)
        index = bisect_left(self._times, minute)
        if index < len(self._times) and self._matches(day):
            wall_minute = day * MINUTES_PER_DAY + self._times[index]
        else:
            wall_minute = self._next_day(day + 1, stop // MINUTES_PER_DAY) * MINUTES_PER_DAY + self._times[0]
        return wall_minute if wall_minute < stop else None

    def _next_day(self, day: int, last: int) -> int:
        """Return the first matching day; a day after ``last`` if there is none."""
        while day <= last:
            day_date = date.fromordinal(day)
            if day_date.month not in self._months:
                day = date(day_date.year + day_date.month // 12, day_date.month % 12 + 1, 1).toordinal()
            elif self._fits(day_date.day, day):
                return day
            else:
                day += 1
        return day

    def _matches(self, day: int) -> bool:
        day_date = date.fromordinal(day)
        return day_date.month in self._months and self._fits(day_date.day, day)

    def _fits(self, day_of_month: int, day: int) -> bool:
        weekday = day % 7 in self._weekdays  # day 1, 0001-01-01, was a Monday
        if self._is_either:
            return weekday or day_of_month in self._days
        return weekday and day_of_month in self._days


def in_numbers(match: str) -> str:
    """Translate names and macros into the grammar of a crontab: ``0 9 * jan mon-fri`` becomes ``0 9 * 1 1-5``.

    Raises ValueError for an unknown name. Other errors stay in the text.
    """
    if match.lstrip().startswith("@"):
        try:
            return MACROS[match.strip().lower()]
        except KeyError:
            raise ValueError(f"{match[:40]!r}: no such macro{suggest(match.strip(), MACROS)}") from None
    words = match.split()
    if len(words) != len(FIELDS):
        return match
    return " ".join(_in_numbers(field, word) for field, word in zip(FIELDS, words, strict=True))


def _in_numbers(field: Field, word: str) -> str:
    def number(match: re.Match[str]) -> str:
        name = match[0].lower()
        if name not in (*field.names, *field.full_names):
            raise ValueError(f"{field.name} {word[:40]!r}: no name {name[:20]!r}{suggest(name, field.names)}")
        value = field.minimum + field.names.index(name[:3])
        return "7" if name.startswith("sun") and word[: match.start()].endswith("-") else str(value)

    return _NAME_PATTERN.sub(number, word) if field.full_names else word


def parse_pattern(words: Sequence[str], problems: list[str]) -> Pattern | None:
    """Read five fields. Return ``None`` if one is invalid, and add all problems to ``problems``."""
    values_by_field = [_read(field, word, problems) for field, word in zip(FIELDS, words, strict=True)]
    if not all(values_by_field):
        return None
    pattern = Pattern(*(tuple(sorted(values)) for values in values_by_field))
    if not pattern.has_dates:
        problems.append(f"day {words[2]!r} and month {words[3]!r} match no date; no such month has such a day")
        return None
    return pattern


def _read(field: Field, text: str, problems: list[str]) -> Collection[int]:
    """Return the values of one field; none if it is invalid."""
    values: set[int] = set()
    before = len(problems)
    for part in text.split(","):
        try:
            values.update(_parse_part(field, part))
        except ValueError as error:
            problems.append(f"{field.name} {text[:40]!r}: {error}")
    return values if len(problems) == before else ()


def _parse_part(field: Field, part: str) -> Collection[int]:
    """Return the values of one part of a list. Raises ValueError with a suggestion."""
    if part == "*":
        return field.values
    if step := _STEP_PATTERN.fullmatch(part):
        if not step[1].strip("0"):
            raise ValueError("the step is 0; use 1 or more")
        return range(field.minimum, field.maximum + 1, min(_number(step[1]), MINUTES_PER_DAY))
    if ends := _RANGE_PATTERN.fullmatch(part):
        first, last = _value(field, ends[1]), _value(field, ends[2])
        if first >= last:
            raise ValueError(f"the start of {part} is not before its end; write {_ascending(field, first, last)}")
        return {_wrapped(field, value) for value in range(first, last + 1)}
    if part.isascii() and part.isdigit():
        return (_wrapped(field, _value(field, part)),)
    raise ValueError(_correction(field, part))


def _number(digits: str) -> int:
    """Return a number of any length. Numbers of more than nine digits need no exact value."""
    return int(digits.lstrip("0")[:10] or "0")


def _value(field: Field, digits: str) -> int:
    value = _number(digits)
    maximum = 7 if field.name == "weekday" else field.maximum
    if not field.minimum <= value <= maximum:
        sunday = " (0 and 7 are Sunday)" if field.name == "weekday" else ""
        raise ValueError(f"{digits[:12]} is not within {field.minimum} to {maximum}{sunday}")
    return value


def _wrapped(field: Field, value: int) -> int:
    return 0 if field.name == "weekday" and value == 7 else value


def _ascending(field: Field, first: int, last: int) -> str:
    if first == last:
        return str(first)
    halves = (first, field.maximum), (field.minimum, last)
    return ",".join(str(low) if low >= high else f"{low}-{high}" for low, high in halves)


def _correction(field: Field, part: str) -> str:
    """Suggest what to write instead of the syntax of other crons."""
    if not part:
        return "a value is missing before or after a comma"
    if (name := part.lower()[:3]) in field.names and part.isalpha():
        return f"names are not supported; write {field.minimum + field.names.index(name)}"
    if any(name in part.lower() for name in field.names):
        return f"names are not supported; write numbers, {field.minimum} to {field.maximum}"
    if stepped := _STEPPED_RANGE_PATTERN.fullmatch(part):
        first, step = _value(field, stepped[1]), _number(stepped[3])
        last = _value(field, stepped[2]) if stepped[2] else field.maximum
        if step and first <= last:
            listed = ",".join(str(value) for value in range(first, last + 1, step))
            return f"a step is only allowed after *; write {listed}"
        return "a step is only allowed after *, as in */5"
    return f"{part[:20]!r} is not a number, a range (1-5), * or */n"


def _format_values(field: Field, values: Sequence[int]) -> str:
    if len(values) == len(field.values):
        return "*"
    if len(values) > 2:
        step = values[1] - values[0]
        if step > 1 and tuple(values) == tuple(range(field.minimum, field.maximum + 1, step)):
            return f"*/{step}"
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(_format_run(first, last) for first, last in runs)


def _format_run(first: int, last: int) -> str:
    if last - first > 1:
        return f"{first}-{last}"
    return str(first) if first == last else f"{first},{last}"
