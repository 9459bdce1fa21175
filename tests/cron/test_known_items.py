"""What a store's known items show: which no live scheduler has, and which missed a tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from stowhand.cron.known_items import MAX_DELAY, cron_figures, missed_tick
from stowhand.protocols.counts import CronFigures
from stowhand.protocols.queue_store import SCHEDULER_TIMEOUT, KnownItem
from tests.conftest import Run
from tests.cron.harness import Harness, in_harness

NIGHTLY = "0 2 * * * nightly"
MORNING = datetime(2030, 1, 5, 9, tzinfo=UTC)
LAST_NIGHT = datetime(2030, 1, 5, 2, tzinfo=UTC)
ITEM = KnownItem(identifier="nightly", known_since=datetime(2030, 1, 1, tzinfo=UTC), last_tick=LAST_NIGHT, spec=NIGHTLY)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, None),
        ({"last_tick": LAST_NIGHT - timedelta(days=1)}, LAST_NIGHT),
        ({"last_tick": None}, LAST_NIGHT),
        ({"last_tick": None, "known_since": LAST_NIGHT + timedelta(hours=1)}, None),
        ({"spec": "0 5 * * * nightly"}, datetime(2030, 1, 5, 5, tzinfo=UTC)),
        ({"spec": "0 5 * * * nightly", "spec_since": MORNING}, None),
        ({"spec": "0 4 1 1 * nightly", "last_tick": None}, None),
        ({"spec": "by_function()", "last_tick": None}, None),
        ({"spec": "0 5 * * * shop.tasks.nightly"}, datetime(2030, 1, 5, 5, tzinfo=UTC)),
    ],
    ids=[
        "made",
        "missed",
        "never ticked",
        "new",
        "other time",
        "changed after its time",
        "days ago",
        "a function",
        "with dots",
    ],
)
def test_a_missed_tick_is_one_of_the_last_day_that_made_no_job(
    changes: dict[str, object], missed: datetime | None
) -> None:
    assert missed_tick(msgspec.structs.replace(ITEM, **changes), MORNING) == missed


def test_a_tick_is_not_missed_while_it_may_be_just_late() -> None:
    before = msgspec.structs.replace(ITEM, last_tick=LAST_NIGHT - timedelta(days=1))
    assert missed_tick(before, LAST_NIGHT + MAX_DELAY - timedelta(seconds=1)) is None
    assert missed_tick(before, LAST_NIGHT + MAX_DELAY) == LAST_NIGHT


async def figures(harness: Harness) -> CronFigures:
    return await cron_figures(harness.store.timetable)


def test_a_running_scheduler_reports_its_items_and_a_stopped_one_does_not(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T00:00:10") as harness:
            await harness.start(f"{NIGHTLY}\n0 3 * * * backup")
            (first, _) = await harness.store.timetable.known_items()
            assert first.scheduled_by is not None
            for _ in range(5):
                await harness.clock.advance(60)
                assert await figures(harness) == CronFigures(known=("backup", "nightly"))
            await harness.stop()
            await harness.clock.advance(SCHEDULER_TIMEOUT.total_seconds())
            assert (await figures(harness)).unscheduled == ("backup", "nightly")
            await harness.goes_to("2030-01-01T03:30:00")
            assert list((await figures(harness)).missed) == ["backup", "nightly"]

    run(scenario())


def test_an_item_removed_by_a_reload_is_no_longer_scheduled(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T00:00:10") as harness:
            scheduler = await harness.start(f"{NIGHTLY}\n0 3 * * * backup")
            scheduler.reload([item for item in scheduler.items if item.identifier == "nightly"])
            for _ in range(5):
                await harness.clock.advance(60)
            assert (await figures(harness)).unscheduled == ("backup",)
            assert await harness.store.timetable.forget_item("backup")
            assert await figures(harness) == CronFigures(known=("nightly",))

    run(scenario())
