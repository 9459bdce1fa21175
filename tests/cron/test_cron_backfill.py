"""Which ticks are made up for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from stowhand.cron.crontab import parse_crontab
from stowhand.cron.scheduler import plan_backfill
from stowhand.protocols.queue_store import LEDGER_DAYS, KnownItem

START = datetime(2026, 1, 5, 10, 30, 20, tzinfo=UTC)
LONG_AGO = START - timedelta(days=300)


def plan(
    fill: str, *, last: datetime | None = None, known: datetime = LONG_AGO, have: tuple[datetime, ...] = ()
) -> list[str]:
    (item,) = parse_crontab(f"0 */4 * * * rollup ?fill={fill}")
    found = KnownItem(identifier="rollup", known_since=known, last_tick=last, spec=item.spec)
    return [f"{tick:%d %H}" for tick in plan_backfill(item, found, START, have)]


def test_only_ticks_younger_than_the_fill_are_made_up_for() -> None:
    assert plan("12h") == ["05 00", "05 04", "05 08"]
    assert plan("2h") == []


def test_without_a_fill_nothing_is_made_up_for() -> None:
    assert plan("0s") == []


def test_nothing_before_the_latest_tick_is_made_up_for() -> None:
    assert plan("2d", last=datetime(2026, 1, 5, tzinfo=UTC)) == ["05 00", "05 04", "05 08"]


def test_nothing_before_the_item_was_known_is_made_up_for() -> None:
    assert plan("2d", known=datetime(2026, 1, 5, 4, 0, 1, tzinfo=UTC)) == ["05 08"]
    assert plan("2d", known=START) == []


def test_what_is_in_the_ledger_is_not_made_up_for_again() -> None:
    last = datetime(2026, 1, 5, tzinfo=UTC)
    assert plan("2d", last=last, have=(last, datetime(2026, 1, 5, 8, tzinfo=UTC))) == ["05 04"]


def test_a_clock_that_was_set_back_makes_up_for_nothing() -> None:
    assert plan("2d", last=START + timedelta(days=1)) == []


def test_a_tick_of_this_very_minute_is_not_late_but_one_that_is_over_is() -> None:
    (item,) = parse_crontab("* * * * * t ?fill=2m")
    known = KnownItem(identifier="t", known_since=LONG_AGO, last_tick=None, spec=item.spec)
    on_the_minute = START.replace(second=0)
    before = [on_the_minute - timedelta(minutes=2), on_the_minute - timedelta(minutes=1)]
    assert list(plan_backfill(item, known, on_the_minute, ())) == before
    assert list(plan_backfill(item, known, START, ())) == [before[1], on_the_minute]


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    st.integers(0, 3 * 1440),
    st.integers(0, 3 * 1440),
    st.none() | st.integers(0, 3 * 1440),
    st.sets(st.integers(0, 3 * 1440), max_size=20),
)
def test_a_plan_is_what_walking_through_the_minutes_finds(
    fill: int, known: int, last: int | None, have: set[int]
) -> None:
    def ago(minutes: int) -> datetime:
        return START.replace(second=0) - timedelta(minutes=minutes)

    (item,) = parse_crontab(f"*/7 * * * * t ?fill={fill}m")
    remembered = KnownItem(
        identifier="t", known_since=ago(known), last_tick=None if last is None else ago(last), spec=item.spec
    )
    since = max(START - timedelta(minutes=fill), ago(known if last is None else last))
    done = {ago(minutes) for minutes in have}
    expected = [
        at
        for at in (ago(minutes) for minutes in range(3 * 1440, -1, -1))
        if since <= at < START and at.minute % 7 == 0 and at not in done
    ]
    assert list(plan_backfill(item, remembered, START, done)) == (expected if fill else [])


def test_a_fill_never_reaches_beyond_what_the_ledger_remembers() -> None:
    (item,) = parse_crontab("* * * * * t ?fill=366d")
    assert timedelta(seconds=item.fill) < timedelta(days=LEDGER_DAYS)
