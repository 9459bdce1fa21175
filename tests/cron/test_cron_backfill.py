"""Which ticks are made up for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from stowhand.cron.crontab import parse_crontab
from stowhand.cron.item import ParsedItem
from stowhand.cron.scheduler import fill_from
from stowhand.protocols.queue_store import LEDGER_DAYS, KnownItem

START = datetime(2026, 1, 5, 10, 30, 20, tzinfo=UTC)
LONG_AGO = START - timedelta(days=300)


def backfill(
    item: ParsedItem, start: datetime, known: datetime = LONG_AGO, last: datetime | None = None
) -> list[datetime]:
    remembered = KnownItem(identifier=item.identifier, known_since=known, last_tick=last, spec=item.spec)
    return list(item.ticks(fill_from(item, remembered, start), start))


def plan(fill: str, *, last: datetime | None = None, known: datetime = LONG_AGO) -> list[str]:
    (item,) = parse_crontab(f"0 */4 * * * rollup ?fill={fill}")
    return [f"{tick:%d %H}" for tick in backfill(item, START, known, last)]


def test_only_ticks_younger_than_the_fill_are_made_up_for() -> None:
    assert plan("12h") == ["05 00", "05 04", "05 08"]
    assert plan("2h") == []


def test_without_a_fill_nothing_is_backfilled() -> None:
    assert plan("0s") == []


def test_ticks_up_to_the_last_one_are_not_backfilled() -> None:
    assert plan("2d", last=datetime(2026, 1, 5, tzinfo=UTC)) == ["05 04", "05 08"]


def test_ticks_before_the_registration_are_not_backfilled() -> None:
    assert plan("2d", known=datetime(2026, 1, 5, 4, 0, 1, tzinfo=UTC)) == ["05 08"]
    assert plan("2d", known=START) == []


def test_a_clock_that_was_set_back_backfills_nothing() -> None:
    assert plan("2d", last=START + timedelta(days=1)) == []


def test_a_tick_of_this_very_minute_is_not_late_but_one_that_is_over_is() -> None:
    (item,) = parse_crontab("* * * * * t ?fill=2m")
    on_the_minute = START.replace(second=0)
    before = [on_the_minute - timedelta(minutes=2), on_the_minute - timedelta(minutes=1)]
    assert backfill(item, on_the_minute) == before
    assert backfill(item, START) == [before[1], on_the_minute]


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(st.integers(0, 3 * 1440), st.integers(0, 3 * 1440), st.none() | st.integers(0, 3 * 1440))
def test_a_plan_is_what_walking_through_the_minutes_finds(fill: int, known: int, last: int | None) -> None:
    def ago(minutes: int) -> datetime:
        return START.replace(second=0) - timedelta(minutes=minutes)

    (item,) = parse_crontab(f"*/7 * * * * t ?fill={fill}m")
    expected = [
        at
        for at in (ago(minutes) for minutes in range(3 * 1440, -1, -1))
        if at.minute % 7 == 0
        and START - timedelta(minutes=fill) <= at < START
        and (at >= ago(known) if last is None else at > ago(last))
    ]
    assert backfill(item, START, ago(known), None if last is None else ago(last)) == expected


def test_a_fill_never_reaches_beyond_what_the_ledger_remembers() -> None:
    (item,) = parse_crontab("* * * * * t ?fill=366d")
    assert timedelta(seconds=item.fill) < timedelta(days=LEDGER_DAYS)
