"""When an item is due, beside an oracle that walks through every minute; and what a time zone makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stowhand.cron.crontab import parse_crontab
from stowhand.cron.item import ParsedItem

ONE_MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MOMENTS = st.timedeltas(timedelta(0), timedelta(days=36_500)).map(
    lambda since: datetime(1990, 1, 1, tzinfo=UTC) + since
)
# Walking is slow: what is found is not made smaller.
WALKING = settings(derandomize=True, database=None, deadline=None, phases=[Phase.generate])
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


class Five(msgspec.Struct, frozen=True):
    """Five fields: what is written, and the values that are meant."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    def match(self, at: datetime) -> bool:
        """The rule, in so many words."""
        if at.minute not in self.minutes or at.hour not in self.hours or at.month not in self.months:
            return False
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return day or weekday
        return day and weekday


@st.composite
def fields(draw: st.DrawFn, *, hours: st.SearchStrategy[str] | None = None) -> Five:
    """Any five fields, except dates that do not exist."""
    words, meant = [], []
    for place, (low, high) in enumerate(RANGES):
        parts = draw(st.lists(_part(low, high), min_size=1, max_size=3) | st.just(["*"]))
        if place == 1 and hours is not None:
            parts = draw(hours).split(",")
        words.append(",".join(parts))
        meant.append(frozenset().union(*(_meaning(part, low, high) for part in parts)))
    if min(meant[2]) > 28 and len(meant[4]) == 7:
        words[3], meant[3] = "*", frozenset(range(1, 13))
    return Five(" ".join(words), *meant)


def _part(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, 7 if high == 6 else high)
    spans = st.tuples(numbers, numbers).filter(lambda ends: ends[0] < ends[1]).map(lambda ends: f"{ends[0]}-{ends[1]}")
    return numbers.map(str) | spans | st.integers(1, high).map(lambda step: f"*/{step}")


def _meaning(part: str, low: int, high: int) -> set[int]:
    everything = list(range(low, high + 1))
    if part.startswith("*"):
        return set(everything[:: int(part[2:] or 1)])
    first, _, last = part.partition("-")
    return {value % 7 if high == 6 else value for value in range(int(first), int(last or first) + 1)}


def minutes(start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += ONE_MINUTE


def item_of(five: str, zone: str = "UTC") -> ParsedItem:
    (item,) = parse_crontab(f"{five} task ?tz={zone.replace('+', '%2B')}")
    return item


def local_times(five: str, zone: str, day: str, days: int = 1) -> list[str]:
    """What local clocks show when the item is due, from the midnight of ``day`` in UTC on."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    ticks = item_of(five, zone).ticks(start, start + timedelta(days=days))
    return [f"{tick.astimezone(ZoneInfo(zone)):%d %H:%M%z}" for tick in ticks]


@settings(WALKING, max_examples=3)
@given(fields(), st.integers(1970, 2200))
def test_a_whole_year_is_due_as_the_oracle_says_minute_by_minute(five: Five, year: int) -> None:
    start, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    assert list(item_of(five.text).ticks(start, end)) == [at for at in minutes(start, end) if five.match(at)]


@settings(WALKING, max_examples=12)
@given(fields(), MOMENTS)
def test_the_next_tick_is_the_first_minute_after_that_matches(five: Five, at: datetime) -> None:
    result = item_of(five.text).next_after(at)
    assert result is not None
    assert result > at
    assert five.match(result)
    assert (result.second, result.microsecond, result.tzinfo) == (0, 0, UTC)
    floor = at.replace(second=0, microsecond=0)
    looked = min(result, floor + timedelta(days=5))
    assert not any(five.match(minute) for minute in minutes(floor + ONE_MINUTE, looked))


@settings(WALKING, max_examples=12)
@given(fields(), MOMENTS)
def test_due_ticks_and_next_agree(five: Five, at: datetime) -> None:
    item = item_of(five.text, "Europe/Berlin")
    at = at.replace(second=0, microsecond=0)
    ticks = list(item.ticks(at, at + DAY))
    assert ticks == [minute for minute in minutes(at, at + DAY) if item.due(minute)]
    walked, last = [], at - ONE_MINUTE
    while (following := item.next_after(last)) is not None and following < at + DAY:
        walked.append(following)
        last = following
    assert walked == ticks


# Around changes of many kinds: an hour, half an hour, a day left out, a day lived twice, odd seconds.
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("America/Sao_Paulo", "2018-11-04"),  # midnight is left out
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Africa/Casablanca", "2026-02-15"),
    ("Pacific/Apia", "2011-12-30"),
    ("Pacific/Kwajalein", "1993-08-21"),
    ("Pacific/Kwajalein", "1969-09-30"),
    ("Europe/Amsterdam", "1937-06-30"),  # from 1:19:32 to 1:20
    ("Africa/Monrovia", "1972-01-07"),  # from -0:44:30 to 0
    ("Europe/Berlin", "1893-04-01"),  # from 0:53:28 to 1
    ("Asia/Kathmandu", "1986-01-01"),
]


@pytest.fixture(scope="module")
def clocks() -> Callable[[str, str], list[tuple[datetime, datetime]]]:
    """What a zone's clock shows in each minute of some days around a change: (real, local)."""
    known: dict[tuple[str, str], list[tuple[datetime, datetime]]] = {}

    def walk(zone: str, day: str) -> list[tuple[datetime, datetime]]:
        if (zone, day) not in known:
            middle = datetime.fromisoformat(day).replace(tzinfo=UTC)
            there = ZoneInfo(zone)
            known[zone, day] = [
                (at, at.astimezone(there).replace(tzinfo=None, second=0))
                for at in minutes(middle - 2 * DAY, middle + 3 * DAY)
            ]
        return known[zone, day]

    return walk


def agrees(item: ParsedItem, clock: list[tuple[datetime, datetime]], expected: list[datetime]) -> None:
    """Its ticks are these, and it finds the next one wherever it begins to look: in a repeated hour too."""
    assert list(item.ticks(clock[0][0], clock[-1][0] + ONE_MINUTE)) == expected
    for at, _ in clock[::17]:
        following = next((tick for tick in expected if tick > at), None)
        if following is not None:
            assert item.next_after(at) == following
            assert item.due(following)


@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=str)
@settings(WALKING, max_examples=3)
@given(five=fields(hours=st.sampled_from(["*", "0-23"])))
def test_with_every_hour_each_real_minute_whose_local_time_matches_is_due(
    clocks: Callable[[str, str], list[tuple[datetime, datetime]]], zone: str, day: str, five: Five
) -> None:
    clock = clocks(zone, day)
    expected = [at for at, local in clock if five.match(local)]
    agrees(item_of(five.text, zone), clock, expected)


@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=str)
@settings(WALKING, max_examples=3)
@given(five=fields(hours=st.sampled_from(["0-3", "1,2", "2", "0", "1-22", "*/2", "23", "0-22"])))
def test_with_certain_hours_each_local_time_is_due_once_when_it_is_first_reached_or_passed(
    clocks: Callable[[str, str], list[tuple[datetime, datetime]]], zone: str, day: str, five: Five
) -> None:
    clock = clocks(zone, day)
    reached, expected = clock[0][1] - ONE_MINUTE, []
    for at, local in clock:
        if any(five.match(passed) for passed in minutes(reached + ONE_MINUTE, local + ONE_MINUTE)):
            expected.append(at)
        reached = max(reached, local)
    agrees(item_of(five.text, zone), clock, expected)


def test_a_daily_time_that_is_skipped_is_due_at_the_first_minute_after_the_gap() -> None:
    assert local_times("30 2 * * *", "Europe/Berlin", "2026-03-28", 3) == [
        "28 02:30+0100",
        "29 03:00+0200",
        "30 02:30+0200",
    ]
    assert local_times("30 2 * * *", "America/New_York", "2026-03-08") == ["08 03:00-0400"]
    assert local_times("15 2 * * *", "Australia/Lord_Howe", "2026-10-03") == ["04 02:30+1100"]


def test_many_skipped_times_are_one_tick() -> None:
    assert local_times("*/15 2,3 * * *", "Europe/Berlin", "2026-03-29") == [
        *("29 03:00+0200", "29 03:15+0200", "29 03:30+0200", "29 03:45+0200"),
    ]


def test_a_daily_time_that_is_repeated_is_due_the_first_time() -> None:
    assert local_times("30 2 * * *", "Europe/Berlin", "2026-10-25") == ["25 02:30+0200"]
    assert local_times("30 1 * * *", "America/New_York", "2026-11-01") == ["01 01:30-0400"]
    assert local_times("45 1 * * *", "Australia/Lord_Howe", "2026-04-04") == ["05 01:45+1100"]


def test_every_hour_goes_on_every_real_hour_through_both_changes() -> None:
    for day in ("2026-03-29", "2026-10-25"):
        start = datetime.fromisoformat(day).replace(tzinfo=UTC)
        ticks = list(item_of("0 * * * *", "Europe/Berlin").ticks(start, start + DAY))
        assert [tick - start for tick in ticks] == [timedelta(hours=hour) for hour in range(24)]
    assert local_times("*/30 * * * *", "Europe/Berlin", "2026-10-25")[:4] == [
        *("25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100"),
    ]


def test_half_an_hour_of_summer_time_moves_the_minutes_of_an_hourly_item() -> None:
    ticks = local_times("0 * * * *", "Australia/Lord_Howe", "2026-04-04", 1)
    assert ticks[13:19] == [
        *("05 00:00+1100", "05 01:00+1100", "05 02:00+1030", "05 03:00+1030", "05 04:00+1030", "05 05:00+1030"),
    ]  # fmt: skip


def test_a_skipped_day_is_one_tick_at_its_end() -> None:
    assert local_times("0 9,18 * * *", "Pacific/Apia", "2011-12-28", 4) == [
        *("27 18:00-1000", "28 09:00-1000", "28 18:00-1000", "29 09:00-1000", "29 18:00-1000"),
        *("31 00:00+1400", "31 09:00+1400", "31 18:00+1400", "01 09:00+1400"),
    ]  # fmt: skip
    assert local_times("0 9 30 12 *", "Pacific/Apia", "2011-12-28", 5) == ["31 00:00+1400"]


def test_weekdays_and_dates_are_those_of_the_zone() -> None:
    assert local_times("0 8 * * 1", "Asia/Tokyo", "2026-01-04", 3) == ["05 08:00+0900"]
    assert local_times("0 1 1 * *", "Asia/Tokyo", "2026-01-31", 2) == ["01 01:00+0900"]


def test_a_leap_day_is_found_across_a_century_without_one() -> None:
    for zone in ("UTC", "Europe/Berlin"):
        result = item_of("0 12 29 2 *", zone).next_after(datetime(2097, 1, 1, tzinfo=UTC))
        assert result is not None
        assert (result.year, result.month, result.day) == (2104, 2, 29)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Apia", "America/New_York"])
def test_the_ends_of_the_calendar_are_quiet(zone: str) -> None:
    for five in ("* * * * *", "0 0 * * *"):
        item = item_of(five, zone)
        assert item.next_after(datetime.max.replace(tzinfo=UTC)) is None
        assert list(item.ticks(datetime(9999, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC))) == []
        assert not item.due(datetime.max.replace(tzinfo=UTC))
        assert not item.due(datetime.min.replace(tzinfo=UTC))
        first = item.next_after(datetime.min.replace(tzinfo=UTC))
        assert first is not None
        assert first.year == 2


def test_a_moment_without_a_zone_is_refused() -> None:
    item = item_of("* * * * *")
    for ask in (item.due, item.next_after):
        with pytest.raises(ValueError, match="has no time zone"):
            ask(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_moment_may_be_given_in_any_zone() -> None:
    item = item_of("0 4 * * *")
    there = ZoneInfo("Asia/Tokyo")
    assert item.due(datetime(2026, 1, 1, 13, tzinfo=there))
    assert item.due(datetime(2026, 1, 1, 13, 0, 59, tzinfo=there))
    assert list(item.ticks(datetime(2026, 1, 1, 13, 0, 1, tzinfo=there), datetime(2026, 1, 1, 6, tzinfo=UTC))) == []


def test_looking_far_ahead_is_quick() -> None:
    """Days, not minutes, are walked through: a leap day eight years on costs some hundred steps."""
    steps = 0

    class Counted(frozenset[int]):
        def __contains__(self, value: object) -> bool:
            nonlocal steps
            steps += 1
            return super().__contains__(value)

    item = item_of("59 23 29 2 *")
    item._when._months = Counted(item._when._months)  # type: ignore[union-attr]
    assert item.next_after(datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, 23, 59, tzinfo=UTC)
    assert steps < 1000
