"""One scheduler and the hour: what it makes, what it makes up for, and what it never makes twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from stowhand.cron.crontab import parse_cron_items, parse_crontab
from stowhand.cron.item import CronDate, CronItem, CronOptions
from stowhand.events import CronClockMoved, CronConflict, CronScheduled, CronStarted, CronTrouble
from tests.conftest import Run
from tests.cron.desk import at_desk, cron_of

HOURLY = "0 * * * * hourly"


def test_an_unknown_item_is_made_known_and_nothing_is_made_up_for(run: Run) -> None:
    async def scenario() -> None:  # case 104
        async with at_desk("2030-01-01T12:30:10") as desk:
            await desk.start("0 * * * * hourly ?fill=4w")
            (known,) = await desk.store.known_items()
            assert (known.identifier, known.last_tick) == ("hourly", None)
            assert known.known_since == await desk.at()
            assert await desk.jobs() == []
            (started,) = desk.told(CronStarted)
            assert (started.items, started.backfilled) == (("hourly",), 0)

    run(scenario())


def test_a_tick_becomes_one_job_when_its_minute_comes(run: Run) -> None:
    async def scenario() -> None:  # case 109
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start("0 */4 * * * rollup ?max=3&queue=slow&priority=-2 {a: 1}")
            await desk.goes_to("2030-01-01T03:59:59")
            assert await desk.jobs() == []
            await desk.goes_to("2030-01-01T04:00:01")
            (job,) = await desk.jobs()
            assert cron_of(job) == {"ts": "2030-01-01T04:00:00.000Z", "backfilled": False}
            assert (job.task, job.max_attempts, job.queue, job.priority) == ("rollup", 3, "slow", -2)  # case 116
            assert job.run_at.isoformat() == "2030-01-01T04:00:00+00:00"
            (scheduled,) = desk.told(CronScheduled)
            assert (scheduled.identifier, scheduled.job_id, scheduled.backfilled) == ("rollup", job.id, False)
            assert scheduled.late < 0.01
            await desk.goes_to("2030-01-01T07:59:00")
            assert len(await desk.jobs()) == 1

    run(scenario())


def test_a_start_on_the_very_minute_schedules_it(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T04:00:00") as desk:
            await desk.start(HOURLY)
            assert await desk.ticks() == ["2030-01-01T04:00"]

    run(scenario())


@pytest.mark.parametrize(
    ("fill", "made_up_for"),
    [
        ("", []),  # case 107
        ("?fill=2h", ["2030-01-01T05:00*", "2030-01-01T06:00*"]),  # case 106
        ("?fill=1d", ["2030-01-01T04:00*", "2030-01-01T05:00*", "2030-01-01T06:00*"]),  # only since its last tick
    ],
)
def test_after_a_downtime_fill_decides_what_is_made_up_for(run: Run, fill: str, made_up_for: list[str]) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T02:30:00") as desk:
            crontab = f"0 * * * * hourly {fill}"
            await desk.start(crontab)
            await desk.goes_to("2030-01-01T03:30:00")
            await desk.stop()
            await desk.goes_to("2030-01-01T06:30:00")
            await desk.start(crontab)
            assert await desk.ticks() == ["2030-01-01T03:00", *made_up_for]
            assert desk.told(CronStarted)[-1].backfilled == len(made_up_for)
            await desk.goes_to("2030-01-01T07:00:01")
            assert (await desk.ticks())[-1] == "2030-01-01T07:00"

    run(scenario())


def test_an_item_without_a_tick_is_made_up_for_since_it_is_known(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T02:30:00") as desk:
            crontab = "0 * * * * hourly ?fill=1w"
            await desk.start(crontab)
            await desk.stop()
            await desk.goes_to("2030-01-01T04:30:00")
            await desk.start(crontab)
            assert await desk.ticks() == ["2030-01-01T03:00*", "2030-01-01T04:00*"]

    run(scenario())


def test_a_clock_that_goes_back_repeats_nothing_and_is_told(run: Run) -> None:
    async def scenario() -> None:  # case 110
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start(HOURLY)
            await desk.goes_to("2030-01-01T04:00:10")
            desk.store.ahead -= timedelta(seconds=70)
            await desk.clock.advance(180)
            assert await desk.ticks() == ["2030-01-01T04:00"]
            (moved,) = desk.told(CronClockMoved)
            assert moved.seconds == pytest.approx(-70)

    run(scenario())


def test_a_clock_that_was_a_year_ahead_does_not_silence_the_schedule(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:30:00") as desk:
            await desk.start(HOURLY)
            desk.store.ahead += timedelta(days=365)
            await desk.clock.advance(120)
            assert len(await desk.jobs()) == 24, "a day is caught up, and no more"
            desk.store.ahead -= timedelta(days=365)
            await desk.goes_to("2030-01-01T05:00:01")
            assert (await desk.ticks())[-2:] == ["2030-01-01T04:00", "2030-01-01T05:00"]

    run(scenario())


def test_a_process_that_slept_catches_up_and_calls_nothing_backfilled(run: Run) -> None:
    async def scenario() -> None:  # case 112
        async with at_desk("2030-01-01T03:58:00") as desk:
            await desk.start("0 4 * * * daily\n* * * * * minutely")
            desk.store.ahead += timedelta(minutes=7)
            await desk.clock.advance(60)
            assert await desk.ticks("daily") == ["2030-01-01T04:00"]
            minutes = ["03:58", "03:59", "04:00", "04:01", "04:02", "04:03", "04:04", "04:05", "04:06"]
            assert await desk.ticks("minutely") == [f"2030-01-01T{minute}" for minute in minutes]
            assert desk.told(CronClockMoved)[0].seconds == pytest.approx(420)
            assert 300 <= max(desk.lateness()) <= 480

    run(scenario())


def test_what_is_overdue_by_more_than_a_day_is_a_matter_of_fill(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T00:30:00") as desk:
            await desk.start("0 * * * * plain\n0 * * * * filled ?fill=1w")
            desk.store.ahead += timedelta(hours=30)
            await desk.clock.advance(60)
            plain, filled = await desk.ticks("plain"), await desk.ticks("filled")
            assert (plain[0], plain[-1], len(plain)) == ("2030-01-01T07:00", "2030-01-02T06:00", 24)
            assert filled == [f"2030-01-01T0{hour}:00*" for hour in range(1, 7)] + plain

    run(scenario())


def test_an_outage_loses_no_tick_and_is_told_once(run: Run) -> None:
    async def scenario() -> None:  # case 115
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start("*/10 * * * * often")
            desk.store.down = True
            await desk.goes_to("2030-01-01T05:00:30")
            assert await desk.jobs() == []
            (trouble,) = desk.told(CronTrouble)
            assert "does not answer" in trouble.error
            desk.store.down = False
            await desk.clock.advance(6)
            hour = [f"2030-01-01T04:{minute}0" for minute in range(6)]
            assert await desk.ticks() == [*hour, "2030-01-01T05:00"]
            assert len(desk.told(CronStarted)) == 2

    run(scenario())


def test_trouble_that_goes_on_is_told_once_and_met_with_longer_and_longer_pauses(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start("0 4 * * * daily")
            desk.store.mute = 1000  # it answers every other question, so that each attempt begins well
            await desk.goes_to("2030-01-01T04:10:00")
            assert len(desk.told(CronTrouble)) == 1
            assert len(desk.store.batches) < 135, "five seconds between two attempts, in the end"
            desk.store.mute = 0
            await desk.clock.advance(60)
            desk.store.down = True
            await desk.clock.advance(120)
            assert len(desk.told(CronTrouble)) == 2, "another time, another trouble"
            assert await desk.ticks() == ["2030-01-01T04:00"]

    run(scenario())


def test_an_outage_at_the_start_is_waited_for_and_what_came_due_meanwhile_is_owed(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start("0 * * * * hourly ?fill=1d")
            await desk.stop()
            desk.store.down = True
            await desk.start("0 * * * * hourly ?fill=1d")
            await desk.goes_to("2030-01-01T05:00:30")
            desk.store.down = False
            await desk.clock.advance(6)
            assert await desk.ticks() == ["2030-01-01T04:00*", "2030-01-01T05:00*"], "nobody knew the time"

    run(scenario())


def test_a_lost_reply_makes_no_second_job(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start(HOURLY)
            desk.store.mute = 1
            await desk.goes_to("2030-01-01T04:02:00")
            assert await desk.ticks() == ["2030-01-01T04:00"]
            assert len(desk.store.batches) == 2
            assert desk.told(CronConflict) == [], "it was ourselves"

    run(scenario())


def test_identical_crontabs_share_the_work(run: Run) -> None:
    async def scenario() -> None:  # case 113
        async with at_desk("2030-01-01T03:30:30") as desk:
            for _ in range(3):
                await desk.start("*/5 * * * * a\n0 * * * * b ?fill=1d")
            await desk.goes_to("2030-01-01T06:00:30")
            count = await desk.count()
            assert set(count.values()) == {1}
            assert len(count) == 30 + 3
            assert desk.told(CronConflict) == []

    run(scenario())


def test_different_items_under_one_identifier_make_one_job_and_a_warning(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start("0 * * * * one ?id=x")
            await desk.start("0 * * * * other ?id=x")
            await desk.goes_to("2030-01-01T04:00:30")
            assert len(await desk.jobs()) == 1
            (conflict,) = desk.told(CronConflict)
            assert conflict.identifier == "x"
            assert {"one", "other"} <= {*conflict.ours.split(), *conflict.theirs.split()}
            await desk.goes_to("2030-01-01T08:30:00")
            assert len(await desk.jobs()) == 5
            assert len(desk.told(CronConflict)) <= 5

    run(scenario())


def test_a_minutely_conflict_is_told_once_an_hour(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start("* * * * * one ?id=x")
            await desk.start("* * * * * other ?id=x")
            await desk.goes_to("2030-01-01T05:30:00")
            assert len(desk.told(CronConflict)) == 2

    run(scenario())


def test_other_items_are_taken_up_and_old_ones_owe_what_they_owed(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:30:00") as desk:
            scheduler = await desk.start("0 * * * * stays\n0 * * * * goes")
            desk.store.down = True
            await desk.goes_to("2030-01-01T04:30:00")
            scheduler.reload(parse_crontab("0 * * * * stays\n0 * * * * comes ?fill=1w"))
            desk.store.down = False
            await desk.goes_to("2030-01-01T05:30:00")
            assert await desk.ticks("stays") == ["2030-01-01T04:00", "2030-01-01T05:00"]
            assert await desk.ticks("goes") == []
            assert await desk.ticks("comes") == ["2030-01-01T05:00"], "it was not known before"

    run(scenario())


def test_a_scheduler_without_items_asks_nothing_until_it_has_some(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk() as desk:
            scheduler = await desk.start("")
            await desk.clock.advance(3600)
            assert desk.store.asked == 0
            scheduler.reload(parse_crontab(HOURLY))
            await desk.clock.advance(3600)
            assert len(await desk.jobs()) == 2  # the reload was on the very hour

    run(scenario())


def test_a_reload_in_the_middle_of_a_backfill_is_taken_up_after_it(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:30:00") as desk:
            await desk.start("0 * * * * hourly ?fill=1d")
            await desk.stop()
            await desk.goes_to("2030-01-01T05:30:00")
            desk.store.gate = asyncio.Event()
            scheduler = await desk.start("0 * * * * hourly ?fill=1d")
            scheduler.reload(parse_crontab("0 * * * * other"))
            await desk.clock.settle()
            gate, desk.store.gate = desk.store.gate, None
            gate.set()
            await desk.goes_to("2030-01-01T06:30:00")
            assert await desk.ticks("hourly") == ["2030-01-01T04:00*", "2030-01-01T05:00*"]
            assert await desk.ticks("other") == ["2030-01-01T06:00"]

    run(scenario())


def test_stopping_does_not_wait_for_a_store_that_does_not_answer(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start(HOURLY)
            desk.store.gate = asyncio.Event()
            await desk.goes_to("2030-01-01T04:00:30")
            await desk.stop()  # looks that it has ended, without any time passing

    run(scenario())


def test_a_scheduler_that_was_stopped_first_does_nothing(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T04:00:00") as desk:
            scheduler = desk.scheduler(HOURLY)
            scheduler.stop()
            await scheduler.run()
            assert await desk.jobs() == []

    run(scenario())


def test_once_takes_the_minute_that_is_running_and_fill(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T04:00:20") as desk:
            crontab = "0 * * * * hourly ?fill=1d\n0 * * * * plain"
            assert await desk.scheduler(crontab).run_once() == 2
            assert await desk.scheduler(crontab).run_once() == 0, "in the same minute"
            await desk.goes_to("2030-01-01T06:00:59")
            assert await desk.scheduler(crontab).run_once() == 3
            hours = ["2030-01-01T04:00", "2030-01-01T05:00*", "2030-01-01T06:00"]
            assert await desk.ticks("hourly") == hours
            assert await desk.ticks("plain") == [hours[0], hours[2]]

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
        async with at_desk("2030-01-01T03:58:30") as desk:
            await desk.start(items)
            await desk.goes_to("2030-01-01T04:00:01")
            assert await desk.ticks("right") == await desk.ticks("plain") == ["2030-01-01T04:00"]
            assert len(desk.told(CronTrouble)) == 2, "once for each of its minutes"
            assert "ZeroDivisionError" in desk.told(CronTrouble)[0].error

    run(scenario())


def test_an_item_whose_job_the_store_refuses_harms_no_other_item(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T03:59:30") as desk:
            desk.store.refused = "b"
            await desk.start("0 * * * * a\n0 * * * * b\n0 * * * * c")
            await desk.goes_to("2030-01-01T05:00:01")
            for task in ("a", "c"):
                assert await desk.ticks(task) == ["2030-01-01T04:00", "2030-01-01T05:00"]
            assert await desk.ticks("b") == []
            assert [trouble.error for trouble in desk.told(CronTrouble)] == [
                "b: this tick is passed over: no b here"
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
        async with at_desk("2030-01-01T03:59:30") as desk:
            await desk.start(items)
            await desk.stop()
            await desk.goes_to("2030-01-01T04:02:30")
            await desk.start(items)
            assert await desk.ticks() == ["2030-01-01T04:00*", "2030-01-01T04:02*"]
            desk.store.ahead += timedelta(hours=2)
            await desk.clock.advance(60)
            minutes = [int(tick.removesuffix("*")[-2:]) for tick in await desk.ticks()]
            assert minutes == [0, 2, *range(3, 60), 0, *range(2, 60), 0, 2, 3]
            assert len(desk.told(CronTrouble)) == 2, "once for each time that it was asked about many"

    run(scenario())


def test_a_function_that_is_asked_about_many_days_does_not_keep_the_loop(run: Run) -> None:
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
        async with at_desk("2030-01-01T00:00:30") as desk:
            await desk.scheduler(items).run_once()
            desk.store.ahead += timedelta(days=10)
            seen.clear()
            other = asyncio.create_task(others())
            await asyncio.sleep(0)
            assert await desk.scheduler(items).run_once() == 7
            other.cancel()
            assert seen.total() >= 7 * 1440
            assert max(seen.values()) <= 1441, "a day at a time"

    run(scenario())


def test_a_long_backfill_goes_in_order_and_in_short_transactions(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T00:00:30") as desk:
            crontab = "* * * * * a ?fill=1w\n* * * * * b ?fill=1w"
            await desk.start(crontab)
            await desk.stop()
            await desk.goes_to("2030-01-02T00:00:30")
            await desk.start(crontab)
            ticks = await desk.ticks()
            assert len(ticks) == 2 * 1440
            assert ticks == sorted(ticks), "in the order of time, over all items"
            assert max(desk.store.batches) <= 200

    run(scenario())


def test_a_long_catching_up_goes_on_where_it_was_broken_off(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T00:00:30") as desk:
            await desk.start("* * * * * a")
            desk.store.lost_batch = 2
            desk.store.ahead += timedelta(hours=10)
            await desk.clock.advance(60)
            assert len(await desk.jobs()) == 601
            assert desk.store.batches[:3] == [200, 200, 200]
            assert sum(desk.store.batches) < 820, "what was done is not offered again, but for the lost batch"

    run(scenario())


def test_between_ticks_the_clock_is_looked_at_once_a_minute(run: Run) -> None:
    async def scenario() -> None:
        async with at_desk("2030-01-01T00:00:30") as desk:
            await desk.start("0 12 * * * daily")
            await desk.clock.advance(3600)
            assert 55 <= desk.store.asked <= 65

    run(scenario())
