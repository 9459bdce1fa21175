"""One scheduler and the hour: what it makes, what it makes up for, and what it never makes twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from stowhand.cron.crontab import parse_cron_items, parse_crontab
from stowhand.cron.item import CronDate, CronItem, CronOptions
from stowhand.events import CronClockMoved, CronConflict, CronScheduled, CronStarted, SchedulingFailed
from tests.conftest import Run
from tests.cron.harness import cron_of, in_harness

HOURLY = "0 * * * * hourly"


def test_a_new_item_is_registered_without_a_backfill(run: Run) -> None:
    async def scenario() -> None:  # case 104
        async with in_harness("2030-01-01T12:30:10") as harness:
            await harness.start("0 * * * * hourly ?fill=4w")
            (known,) = await harness.store.timetable.known_items()
            assert (known.identifier, known.last_tick) == ("hourly", None)
            assert known.known_since == await harness.at()
            assert await harness.jobs() == []
            (started,) = harness.told(CronStarted)
            assert (started.items, started.backfilled) == (("hourly",), 0)

    run(scenario())


def test_a_tick_becomes_one_job_when_its_minute_comes(run: Run) -> None:
    async def scenario() -> None:  # case 109
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start("0 */4 * * * rollup ?max=3&queue=slow&priority=-2 {a: 1}")
            await harness.goes_to("2030-01-01T03:59:59")
            assert await harness.jobs() == []
            await harness.goes_to("2030-01-01T04:00:01")
            (job,) = await harness.jobs()
            assert cron_of(job) == {"ts": "2030-01-01T04:00:00.000Z", "backfilled": False}
            assert (job.task, job.max_attempts, job.serial, job.priority) == ("rollup", 3, "slow", -2)  # case 116
            assert job.run_at.isoformat() == "2030-01-01T04:00:00+00:00"
            (scheduled,) = harness.told(CronScheduled)
            assert (scheduled.identifier, scheduled.job_id, scheduled.backfilled) == ("rollup", job.id, False)
            assert scheduled.late < 0.01
            await harness.goes_to("2030-01-01T07:59:00")
            assert len(await harness.jobs()) == 1

    run(scenario())


def test_a_start_on_the_very_minute_schedules_it(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T04:00:00") as harness:
            await harness.start(HOURLY)
            assert await harness.ticks() == ["2030-01-01T04:00"]

    run(scenario())


@pytest.mark.parametrize(
    ("fill", "made_up_for"),
    [
        ("", []),  # case 107
        ("?fill=2h", ["2030-01-01T05:00*", "2030-01-01T06:00*"]),  # case 106
        ("?fill=1d", ["2030-01-01T04:00*", "2030-01-01T05:00*", "2030-01-01T06:00*"]),  # only since its last tick
    ],
)
def test_after_a_downtime_fill_limits_the_backfill(run: Run, fill: str, made_up_for: list[str]) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T02:30:00") as harness:
            crontab = f"0 * * * * hourly {fill}"
            await harness.start(crontab)
            await harness.goes_to("2030-01-01T03:30:00")
            await harness.stop()
            await harness.goes_to("2030-01-01T06:30:00")
            await harness.start(crontab)
            assert await harness.ticks() == ["2030-01-01T03:00", *made_up_for]
            assert harness.told(CronStarted)[-1].backfilled == len(made_up_for)
            await harness.goes_to("2030-01-01T07:00:01")
            assert (await harness.ticks())[-1] == "2030-01-01T07:00"

    run(scenario())


def test_an_item_without_a_tick_is_backfilled_from_its_registration(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T02:30:00") as harness:
            crontab = "0 * * * * hourly ?fill=1w"
            await harness.start(crontab)
            await harness.stop()
            await harness.goes_to("2030-01-01T04:30:00")
            await harness.start(crontab)
            assert await harness.ticks() == ["2030-01-01T03:00*", "2030-01-01T04:00*"]

    run(scenario())


def test_a_clock_that_goes_back_repeats_no_tick_and_is_reported(run: Run) -> None:
    async def scenario() -> None:  # case 110
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start(HOURLY)
            await harness.goes_to("2030-01-01T04:00:10")
            harness.store.ahead -= timedelta(seconds=70)
            await harness.clock.advance(180)
            assert await harness.ticks() == ["2030-01-01T04:00"]
            (moved,) = harness.told(CronClockMoved)
            assert moved.seconds == pytest.approx(-70)

    run(scenario())


def test_a_clock_that_was_a_year_ahead_does_not_silence_the_schedule(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:30:00") as harness:
            await harness.start(HOURLY)
            harness.store.ahead += timedelta(days=365)
            await harness.clock.advance(120)
            assert len(await harness.jobs()) == 24, "a day is caught up, and no more"
            harness.store.ahead -= timedelta(days=365)
            await harness.goes_to("2030-01-01T05:00:01")
            assert (await harness.ticks())[-2:] == ["2030-01-01T04:00", "2030-01-01T05:00"]

    run(scenario())


def test_a_process_that_slept_catches_up_and_calls_nothing_backfilled(run: Run) -> None:
    async def scenario() -> None:  # case 112
        async with in_harness("2030-01-01T03:58:00") as harness:
            await harness.start("0 4 * * * daily\n* * * * * minutely")
            harness.store.ahead += timedelta(minutes=7)
            await harness.clock.advance(60)
            assert await harness.ticks("daily") == ["2030-01-01T04:00"]
            minutes = ["03:58", "03:59", "04:00", "04:01", "04:02", "04:03", "04:04", "04:05", "04:06"]
            assert await harness.ticks("minutely") == [f"2030-01-01T{minute}" for minute in minutes]
            assert harness.told(CronClockMoved)[0].seconds == pytest.approx(420)
            assert 300 <= max(harness.lateness()) <= 480

    run(scenario())


def test_what_is_overdue_by_more_than_a_day_is_a_matter_of_fill(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T00:30:00") as harness:
            await harness.start("0 * * * * plain\n0 * * * * filled ?fill=1w")
            harness.store.ahead += timedelta(hours=30)
            await harness.clock.advance(60)
            plain, filled = await harness.ticks("plain"), await harness.ticks("filled")
            assert (plain[0], plain[-1], len(plain)) == ("2030-01-01T07:00", "2030-01-02T06:00", 24)
            assert filled == [f"2030-01-01T0{hour}:00*" for hour in range(1, 7)] + plain

    run(scenario())


def test_an_outage_loses_no_tick_and_is_reported_once(run: Run) -> None:
    async def scenario() -> None:  # case 115
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start("*/10 * * * * often")
            harness.store.down = True
            await harness.goes_to("2030-01-01T05:00:30")
            assert await harness.jobs() == []
            (trouble,) = harness.told(SchedulingFailed)
            assert "does not answer" in trouble.error
            harness.store.down = False
            await harness.clock.advance(6)
            hour = [f"2030-01-01T04:{minute}0" for minute in range(6)]
            assert await harness.ticks() == [*hour, "2030-01-01T05:00"]
            assert len(harness.told(CronStarted)) == 2

    run(scenario())


def test_repeated_failures_are_reported_once_with_growing_delays(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start("0 4 * * * daily")
            harness.store.mute = 1000  # it answers every other question, so that each attempt begins well
            await harness.goes_to("2030-01-01T04:10:00")
            assert len(harness.told(SchedulingFailed)) == 1
            assert len(harness.store.batches) < 135, "five seconds between two attempts, in the end"
            harness.store.mute = 0
            await harness.clock.advance(60)
            harness.store.down = True
            await harness.clock.advance(120)
            assert len(harness.told(SchedulingFailed)) == 2, "another time, another trouble"
            assert await harness.ticks() == ["2030-01-01T04:00"]

    run(scenario())


def test_after_an_outage_at_the_start_missed_ticks_are_enqueued(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start("0 * * * * hourly ?fill=1d")
            await harness.stop()
            harness.store.down = True
            await harness.start("0 * * * * hourly ?fill=1d")
            await harness.goes_to("2030-01-01T05:00:30")
            harness.store.down = False
            await harness.clock.advance(6)
            assert await harness.ticks() == ["2030-01-01T04:00*", "2030-01-01T05:00*"], "nobody knew the time"

    run(scenario())


def test_a_lost_reply_makes_no_second_job(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start(HOURLY)
            harness.store.mute = 1
            await harness.goes_to("2030-01-01T04:02:00")
            assert await harness.ticks() == ["2030-01-01T04:00"]
            assert len(harness.store.batches) == 2
            assert harness.told(CronConflict) == [], "it was ourselves"

    run(scenario())


def test_identical_crontabs_share_the_work(run: Run) -> None:
    async def scenario() -> None:  # case 113
        async with in_harness("2030-01-01T03:30:30") as harness:
            for _ in range(3):
                await harness.start("*/5 * * * * a\n0 * * * * b ?fill=1d")
            await harness.goes_to("2030-01-01T06:00:30")
            count = await harness.count()
            assert set(count.values()) == {1}
            assert len(count) == 30 + 3
            assert harness.told(CronConflict) == []

    run(scenario())


def test_different_items_under_one_identifier_make_one_job_and_a_warning(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start("0 * * * * one ?id=x")
            await harness.start("0 * * * * other ?id=x")
            await harness.goes_to("2030-01-01T04:00:30")
            assert len(await harness.jobs()) == 1
            (conflict,) = harness.told(CronConflict)
            assert conflict.identifier == "x"
            assert {"one", "other"} <= {*conflict.own_spec.split(), *conflict.other_spec.split()}
            await harness.goes_to("2030-01-01T08:30:00")
            assert len(await harness.jobs()) == 5
            assert len(harness.told(CronConflict)) <= 5

    run(scenario())


def test_a_conflict_is_reported_once_an_hour(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start("* * * * * one ?id=x")
            await harness.start("* * * * * other ?id=x")
            await harness.goes_to("2030-01-01T05:30:00")
            assert len(harness.told(CronConflict)) == 2

    run(scenario())


def test_other_items_are_taken_up_and_old_ones_owe_what_they_owed(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:30:00") as harness:
            scheduler = await harness.start("0 * * * * stays\n0 * * * * goes")
            harness.store.down = True
            await harness.goes_to("2030-01-01T04:30:00")
            scheduler.reload(parse_crontab("0 * * * * stays\n0 * * * * comes ?fill=1w"))
            harness.store.down = False
            await harness.goes_to("2030-01-01T05:30:00")
            assert await harness.ticks("stays") == ["2030-01-01T04:00", "2030-01-01T05:00"]
            assert await harness.ticks("goes") == []
            assert await harness.ticks("comes") == ["2030-01-01T05:00"], "it was not known before"

    run(scenario())


def test_a_scheduler_without_items_asks_nothing_until_it_has_some(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness() as harness:
            scheduler = await harness.start("")
            await harness.clock.advance(3600)
            assert harness.store.asked == 0
            scheduler.reload(parse_crontab(HOURLY))
            await harness.clock.advance(3600)
            assert len(await harness.jobs()) == 2  # the reload was on the very hour

    run(scenario())


def test_a_reload_in_the_middle_of_a_backfill_is_taken_up_after_it(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:30:00") as harness:
            await harness.start("0 * * * * hourly ?fill=1d")
            await harness.stop()
            await harness.goes_to("2030-01-01T05:30:00")
            harness.store.gate = asyncio.Event()
            scheduler = await harness.start("0 * * * * hourly ?fill=1d")
            scheduler.reload(parse_crontab("0 * * * * other"))
            await harness.clock.settle()
            gate, harness.store.gate = harness.store.gate, None
            gate.set()
            await harness.goes_to("2030-01-01T06:30:00")
            assert await harness.ticks("hourly") == ["2030-01-01T04:00*", "2030-01-01T05:00*"]
            assert await harness.ticks("other") == ["2030-01-01T06:00"]

    run(scenario())


def test_stopping_does_not_wait_for_a_store_that_does_not_answer(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start(HOURLY)
            harness.store.gate = asyncio.Event()
            await harness.goes_to("2030-01-01T04:00:30")
            await harness.stop()  # looks that it has ended, without any time passing

    run(scenario())


def test_a_scheduler_that_was_stopped_first_does_nothing(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T04:00:00") as harness:
            scheduler = harness.scheduler(HOURLY)
            scheduler.stop()
            await scheduler.run()
            assert await harness.jobs() == []

    run(scenario())


def test_once_takes_the_minute_that_is_running_and_fill(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T04:00:20") as harness:
            crontab = "0 * * * * hourly ?fill=1d\n0 * * * * plain"
            assert await harness.scheduler(crontab).run_once() == 2
            assert await harness.scheduler(crontab).run_once() == 0, "in the same minute"
            await harness.goes_to("2030-01-01T06:00:59")
            assert await harness.scheduler(crontab).run_once() == 3
            hours = ["2030-01-01T04:00", "2030-01-01T05:00*", "2030-01-01T06:00"]
            assert await harness.ticks("hourly") == hours
            assert await harness.ticks("plain") == [hours[0], hours[2]]

    run(scenario())


def test_an_item_whose_function_raises_harms_no_other_item(run: Run) -> None:
    def wrong(date: CronDate) -> bool:
        raise ZeroDivisionError(f"at {date.minute}")

    def on_the_hour(date: CronDate) -> bool:
        return date.minute == 0

    async def scenario() -> None:
        items = parse_cron_items(
            [
                CronItem(task="wrong", match=wrong),
                CronItem(task="right", match=on_the_hour),
                CronItem(task="plain", match="0 * * * *"),
            ]
        )
        async with in_harness("2030-01-01T03:58:30") as harness:
            await harness.start(items)
            await harness.goes_to("2030-01-01T04:00:01")
            assert await harness.ticks("right") == await harness.ticks("plain") == ["2030-01-01T04:00"]
            assert len(harness.told(SchedulingFailed)) == 2, "once for each of its minutes"
            assert "ZeroDivisionError" in harness.told(SchedulingFailed)[0].error

    run(scenario())


def test_an_item_whose_job_the_store_refuses_harms_no_other_item(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T03:59:30") as harness:
            harness.store.refused = "b"
            await harness.start("0 * * * * a\n0 * * * * b\n0 * * * * c")
            await harness.goes_to("2030-01-01T05:00:01")
            for task in ("a", "c"):
                assert await harness.ticks(task) == ["2030-01-01T04:00", "2030-01-01T05:00"]
            assert await harness.ticks("b") == []
            assert [trouble.error for trouble in harness.told(SchedulingFailed)] == [
                "b: this tick is skipped: no b here"
            ] * 2

    run(scenario())


def test_a_function_that_raises_costs_that_minute_alone_also_among_many(run: Run) -> None:
    def picky(date: CronDate) -> bool:
        if date.minute == 1:
            raise LookupError("no such day in the calendar")
        return True

    async def scenario() -> None:
        item = CronItem(task="picky", match=picky, options=CronOptions(backfill_period=3600))
        items = parse_cron_items([item])
        async with in_harness("2030-01-01T03:59:30") as harness:
            await harness.start(items)
            await harness.stop()
            await harness.goes_to("2030-01-01T04:02:30")
            await harness.start(items)
            assert await harness.ticks() == ["2030-01-01T04:00*", "2030-01-01T04:02*"]
            harness.store.ahead += timedelta(hours=2)
            await harness.clock.advance(60)
            minutes = [int(tick.removesuffix("*")[-2:]) for tick in await harness.ticks()]
            assert minutes == [0, 2, *range(3, 60), 0, *range(2, 60), 0, 2, 3]
            assert len(harness.told(SchedulingFailed)) == 2, "once for each time that it was asked about many"

    run(scenario())


def test_a_function_called_for_many_days_does_not_block_the_loop(run: Run) -> None:
    turns = 0
    seen: Counter[int] = Counter()

    def noon(date: CronDate) -> bool:
        seen[turns] += 1
        return (date.hour, date.minute) == (12, 0)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        items = parse_cron_items([CronItem(task="noon", match=noon, options=CronOptions(backfill_period=604_800))])
        async with in_harness("2030-01-01T00:00:30") as harness:
            await harness.scheduler(items).run_once()
            harness.store.ahead += timedelta(days=10)
            seen.clear()
            other = asyncio.create_task(others())
            await asyncio.sleep(0)
            assert await harness.scheduler(items).run_once() == 7
            other.cancel()
            assert seen.total() >= 7 * 1440
            assert max(seen.values()) <= 1441, "a day at a time"

    run(scenario())


def test_a_long_backfill_goes_in_order_and_in_short_transactions(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T00:00:30") as harness:
            crontab = "* * * * * a ?fill=1w\n* * * * * b ?fill=1w"
            await harness.start(crontab)
            await harness.stop()
            await harness.goes_to("2030-01-02T00:00:30")
            await harness.start(crontab)
            ticks = await harness.ticks()
            assert len(ticks) == 2 * 1440
            assert ticks == sorted(ticks), "in the order of time, over all items"
            assert max(harness.store.batches) <= 200

    run(scenario())


def test_a_long_catching_up_goes_on_where_it_was_broken_off(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T00:00:30") as harness:
            await harness.start("* * * * * a")
            harness.store.lost_batch = 2
            harness.store.ahead += timedelta(hours=10)
            await harness.clock.advance(60)
            assert len(await harness.jobs()) == 601
            assert harness.store.batches[:3] == [200, 200, 200]
            assert sum(harness.store.batches) < 820, "what was done is not offered again, but for the lost batch"

    run(scenario())


def test_between_ticks_the_clock_is_read_once_a_minute(run: Run) -> None:
    async def scenario() -> None:
        async with in_harness("2030-01-01T00:00:30") as harness:
            await harness.start("0 12 * * * daily")
            await harness.clock.advance(3600)
            assert 55 <= harness.store.asked <= 65

    run(scenario())
