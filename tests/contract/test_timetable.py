"""What recurs: known items, and the ledger by which each tick makes one job, whoever schedules it and however often."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.queue_store import (
    LEDGER_DAYS,
    REPORT_INTERVAL,
    SCHEDULER_TIMEOUT,
    KnownItem,
    LedgerEntry,
    QueueStore,
    Tick,
)
from stowhand.protocols.store import SECONDS_PER_DAY
from tests.contract.backends import payload_of
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("timetable")


def tick(at: datetime, identifier: str = "report", *, spec: str = "0 4 * * *", **details: object) -> Tick:
    """A tick of that minute, whose job says which."""
    job = NewJob(task="t", payload=f'"{at.isoformat()}"', **details)  # type: ignore[arg-type]
    return Tick(identifier=identifier, at=at, job=job, spec=spec)


def minute(harness: StoreHarness, back: int = 0) -> datetime:
    """A whole minute, so many of them ago."""
    return harness.now.replace(second=0, microsecond=0) - timedelta(minutes=back)


async def test_now_is_the_stores_clock(harness: StoreHarness) -> None:
    assert await harness.store.timetable.now() == harness.now
    await harness.pass_time(12.5)
    now = await harness.store.timetable.now()
    assert (now, now.utcoffset()) == (harness.now, timedelta(0))


# -- known items ----------------------------------------------------------------------------------------


async def test_a_new_item_is_known_since_now_and_has_not_ticked(harness: StoreHarness) -> None:
    (item,) = await harness.store.timetable.register([("report", "0 4 * * *")])
    assert item == KnownItem(identifier="report", known_since=harness.now, last_tick=None, spec="0 4 * * *")
    assert list(await harness.store.timetable.known_items()) == [item]


async def test_what_is_known_keeps_its_times_takes_the_new_spec_and_is_given_as_it_was(harness: StoreHarness) -> None:
    (first,) = await harness.store.timetable.register([("report", "0 4 * * *")])
    at = minute(harness)
    await harness.store.timetable.schedule([tick(at)])
    await harness.pass_time(300)
    (again,) = await harness.store.timetable.register([("report", "0 5 * * *")])
    assert again == KnownItem(identifier="report", known_since=first.known_since, last_tick=at, spec="0 4 * * *")
    (now,) = await harness.store.timetable.known_items()
    assert now == KnownItem(
        identifier="report", known_since=first.known_since, last_tick=at, spec="0 5 * * *", spec_since=harness.now
    )


async def test_items_come_in_the_order_given_and_are_listed_by_identifier(harness: StoreHarness) -> None:
    names = ["b", "B", "a b", "_", "ä", "a", "A:1", "a-1"]
    assert [
        item.identifier for item in await harness.store.timetable.register([(name, "s") for name in names])
    ] == names
    assert [item.identifier for item in await harness.store.timetable.known_items()] == sorted(names)
    assert list(await harness.store.timetable.register([])) == []


@pytest.mark.parametrize("identifier", ["", "x" * 257, "two\nlines"])
async def test_an_identifier_is_one_line_of_1_to_256_characters(harness: StoreHarness, identifier: str) -> None:
    with pytest.raises(InvalidJob, match="identifier"):
        await harness.store.timetable.register([("fine", "s"), (identifier, "s")])
    with pytest.raises(InvalidJob, match="identifier"):
        await harness.store.timetable.schedule([tick(minute(harness)), tick(minute(harness), identifier)])
    assert list(await harness.store.timetable.known_items()) == []
    assert list(await harness.everything()) == []
    await harness.store.timetable.register([("x" * 256, "s")])


@pytest.mark.parametrize("spec", ["\0", "\ud800", 5, None], ids=ascii)
async def test_a_spec_is_a_text_that_any_store_can_hold(harness: StoreHarness, spec: Any) -> None:
    with pytest.raises(InvalidJob, match=r"^odd: its spec"):
        await harness.store.timetable.register([("fine", "s"), ("odd", spec)])
    with pytest.raises(InvalidJob, match=r"^odd: its spec"):
        await harness.store.timetable.schedule([tick(minute(harness)), tick(minute(harness), "odd", spec=spec)])
    assert list(await harness.store.timetable.known_items()) == []
    assert list(await harness.everything()) == []


async def test_what_is_given_as_a_row_that_is_read_once_is_not_lost(harness: StoreHarness) -> None:
    items = harness.store.timetable.register((name, "s") for name in ("a", "b"))  # type: ignore[arg-type]
    assert [item.identifier for item in await items] == ["a", "b"]
    entered = harness.store.timetable.schedule(tick(minute(harness), name) for name in ("a", "b"))  # type: ignore[arg-type]
    assert [one.is_own for one in await entered] == [True, True]


async def test_several_schedulers_that_register_at_once_know_the_same(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(4)]
    names = [f"item{number}" for number in range(8)]
    orders = (names, names[::-1], names[3:] + names[:3], names)
    answers = await asyncio.gather(
        *(
            store.timetable.register([(name, "s") for name in order])
            for store, order in zip(stores, orders, strict=True)
        )
    )
    for order, items in zip(orders, answers, strict=True):
        assert [(item.identifier, item.known_since) for item in items] == [(name, harness.now) for name in order]
    assert [item.identifier for item in await harness.store.timetable.known_items()] == names


# -- who schedules them ---------------------------------------------------------------------------------


async def known(harness: StoreHarness, identifier: str = "report") -> KnownItem:
    return next(item for item in await harness.store.timetable.known_items() if item.identifier == identifier)


async def test_an_item_is_scheduled_while_a_scheduler_reports_it(harness: StoreHarness) -> None:
    timetable = harness.store.timetable
    await timetable.register([("report", "s"), ("gone", "s")])
    assert not (await known(harness)).is_scheduled(harness.now), "known, and no more than that"
    await timetable.report(["report", "never registered"], "a:1")
    item = await known(harness)
    assert (item.scheduled_by, item.scheduled_at) == ("a:1", harness.now)
    assert (await known(harness, "gone")).scheduled_by is None
    assert len(await timetable.known_items()) == 2, "a report makes nothing known"
    await harness.pass_time(SCHEDULER_TIMEOUT.total_seconds() - 1)
    assert item.is_scheduled(harness.now)
    await harness.pass_time(1)
    assert not item.is_scheduled(harness.now)
    await timetable.register([("report", "s")])
    assert await known(harness) == item, "registering is not a report"


async def test_a_recent_report_counts_for_all_schedulers(harness: StoreHarness) -> None:
    timetable, other = harness.store.timetable, (await harness.another()).timetable
    await timetable.register([("report", "s")])
    await timetable.report(["report"], "a:1")
    first = await known(harness)
    await harness.pass_time(REPORT_INTERVAL.total_seconds() - 1)
    await other.report(["report"], "b:2")
    assert await known(harness) == first, "nothing is written"
    await harness.pass_time(1)
    await other.report(["report"], "b:2")
    item = await known(harness)
    assert (item.scheduled_by, item.scheduled_at) == ("b:2", harness.now)


async def test_an_item_that_a_live_scheduler_has_is_not_forgotten(harness: StoreHarness) -> None:
    timetable = harness.store.timetable
    await timetable.register([("report", "s"), ("other", "s")])
    at = minute(harness)
    await timetable.schedule([tick(at)])
    await timetable.report(["report"], "a:1")
    assert not await timetable.forget_item("report")
    assert not await timetable.forget_item("never there")
    await harness.pass_time(SCHEDULER_TIMEOUT.total_seconds())
    assert await timetable.forget_item("report")
    assert [item.identifier for item in await timetable.known_items()] == ["other"]
    assert harness.backend.ticks("report") == [at], "a repeat would not run it again"
    (back,) = await timetable.register([("report", "s")])
    assert (back.known_since, back.last_tick, back.scheduled_by) == (harness.now, None, None)


# -- the ledger -----------------------------------------------------------------------------------------


async def test_a_tick_makes_its_job_and_is_remembered(harness: StoreHarness) -> None:
    await harness.store.timetable.register([("report", "0 4 * * *")])
    at = minute(harness)
    await harness.pass_time(2)
    (entered,) = await harness.store.timetable.schedule(
        [tick(at, serial="q", priority=3, max_attempts=4, flags=("f",))]
    )
    job = await harness.job(entered.job_id)
    assert entered == LedgerEntry(is_own=True, job_id=job.id, spec="0 4 * * *")
    assert (job.state, job.task, payload_of(job.payload_text)) == (State.QUEUED, "t", at.isoformat())
    assert (job.serial, job.priority, job.max_attempts, job.flags) == ("q", 3, 4, ("f",))
    assert (job.run_at, job.created_at) == (harness.now, harness.now)
    (item,) = await harness.store.timetable.known_items()
    assert item.last_tick == at
    assert harness.backend.ticks("report") == [at]


@pytest.mark.parametrize("end", [State.QUEUED, State.COMPLETED, State.FAILED, State.CANCELED, None])
async def test_a_tick_is_scheduled_once_whatever_became_of_its_job(harness: StoreHarness, end: State | None) -> None:
    at = minute(harness)
    (first,) = await harness.store.timetable.schedule([tick(at, spec="mine")])
    if end is State.COMPLETED:
        await harness.settle(await harness.take())
    elif end is State.FAILED:
        await harness.store.admin.permanently_fail_jobs([first.job_id])
    elif end is State.CANCELED:
        await harness.store.admin.cancel(first.job_id)
    elif end is None:
        await harness.store.admin.remove(first.job_id)
    await harness.pass_time(3 * SECONDS_PER_DAY)
    await harness.heartbeats.maintain()
    (again,) = await (await harness.another()).timetable.schedule([tick(at, spec="theirs")])
    assert again == LedgerEntry(is_own=False, job_id=first.job_id, spec="mine")
    assert [job.id for job in await harness.everything()] == [first.job_id] * (end in (State.QUEUED, State.FAILED))


async def test_answers_come_in_the_order_given_some_mine_some_not(harness: StoreHarness) -> None:
    at = minute(harness)
    (known,) = await harness.store.timetable.schedule([tick(at, "b")])
    ticks = [tick(at, "c"), tick(at, "b"), tick(at, "a"), tick(at - timedelta(minutes=1), "b")]
    entered = await harness.store.timetable.schedule(ticks)
    assert [one.is_own for one in entered] == [True, False, True, True]
    assert entered[1].job_id == known.job_id
    assert [(await harness.job(one.job_id)).payload_text for one in entered if one.is_own] == [
        ticks[n].job.payload for n in (0, 2, 3)
    ]
    assert len(await harness.everything()) == 4
    assert list(await harness.store.timetable.schedule([])) == []


async def test_one_tick_twice_in_a_call_is_one_job(harness: StoreHarness) -> None:
    at = minute(harness)
    first, second = await harness.store.timetable.schedule(
        [tick(at), tick(at.astimezone(timezone(timedelta(hours=5))))]
    )
    assert (first.is_own, second.is_own, second.job_id) == (True, False, first.job_id)
    assert len(await harness.everything()) == 1


async def test_scheduling_is_all_or_nothing(harness: StoreHarness) -> None:
    await harness.store.timetable.register([("report", "s")])
    at = minute(harness)
    bad = Tick(identifier="report", at=at, job=NewJob(task="x" * 200), spec="s")
    with pytest.raises(InvalidJob):
        await harness.store.timetable.schedule([tick(at - timedelta(minutes=1)), tick(at, "other"), bad])
    assert list(await harness.everything()) == []
    assert harness.backend.ticks("report") == []
    (item,) = await harness.store.timetable.known_items()
    assert item.last_tick is None
    assert [
        one.is_own for one in await harness.store.timetable.schedule([tick(at - timedelta(minutes=1)), tick(at)])
    ] == [
        True,
        True,
    ]


async def test_the_last_tick_is_the_latest_and_not_the_one_scheduled_last(harness: StoreHarness) -> None:
    at = minute(harness)
    await harness.store.timetable.register([("report", "s")])
    await harness.store.timetable.schedule([tick(at)])
    old = tick(at - timedelta(days=2))
    backfill = Tick(identifier="report", at=old.at, job=old.job, spec="s", backfilled=True)
    assert [one.is_own for one in await harness.store.timetable.schedule([backfill])] == [True]
    (item,) = await harness.store.timetable.known_items()
    assert item.last_tick == at
    assert harness.backend.ticks("report") == [at - timedelta(days=2), at]


async def test_scheduling_an_unknown_item_registers_it(harness: StoreHarness) -> None:
    at = minute(harness)
    await harness.store.timetable.schedule([tick(at, spec="every minute")])
    assert list(await harness.store.timetable.known_items()) == [
        KnownItem(identifier="report", known_since=harness.now, last_tick=at, spec="every minute")
    ]


async def test_scheduling_leaves_the_registered_spec_alone(harness: StoreHarness) -> None:
    await harness.store.timetable.register([("report", "new")])
    await harness.store.timetable.schedule([tick(minute(harness), spec="old")])
    (item,) = await harness.store.timetable.known_items()
    assert item.spec == "new"


async def test_a_tick_is_a_whole_minute_with_a_time_zone(harness: StoreHarness) -> None:
    for wrong in (minute(harness) + timedelta(seconds=1), minute(harness).replace(tzinfo=None), "now", None):
        value = Tick(identifier="report", at=wrong, job=NewJob(task="t"), spec="s")  # type: ignore[arg-type]
        with pytest.raises(InvalidJob, match="whole minute"):
            await harness.store.timetable.schedule([value])
    nothing = Tick(identifier="report", at=minute(harness), job=None, spec="s")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="NoneType is not a job"):
        await harness.store.timetable.schedule([nothing])
    assert list(await harness.everything()) == []


async def test_a_keyed_item_has_at_most_one_job_waiting(harness: StoreHarness) -> None:
    at = minute(harness)
    first, second = await harness.store.timetable.schedule(
        [tick(at - timedelta(minutes=1), key="k"), tick(at, key="k")]
    )
    assert (first.is_own, second.is_own, first.job_id) == (True, True, second.job_id)
    (job,) = await harness.everything()
    assert (job.key, job.revision, payload_of(job.payload_text)) == ("k", 1, at.isoformat())
    lease = await harness.take()
    (third,) = await harness.store.timetable.schedule([tick(at + timedelta(minutes=1), key="k")])
    assert third.job_id != lease.job_id


async def test_a_tick_of_somebody_elses_does_not_touch_the_job_of_its_key(harness: StoreHarness) -> None:
    at = minute(harness)
    await harness.store.timetable.schedule([tick(at, key="k")])
    (before,) = await harness.everything()
    await harness.pass_time(5)
    await (await harness.another()).timetable.schedule([tick(at, key="k")])
    assert list(await harness.everything()) == [before]


async def test_a_scheduled_job_wakes_a_worker_and_is_claimed(harness: StoreHarness) -> None:
    while await harness.store.wait(0.05):
        pass
    sleeping = asyncio.create_task(harness.store.wait(20.0))
    await asyncio.sleep(0)
    (entered,) = await (await harness.another()).timetable.schedule([tick(minute(harness), serial="q")])
    assert await sleeping
    assert (await harness.take()).job_id == entered.job_id


# -- several schedulers ---------------------------------------------------------------------------------


async def test_schedulers_of_the_same_ticks_make_each_job_once(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(4)]
    at = minute(harness)

    async def serve(store: QueueStore, backwards: bool) -> int:
        mine = 0
        for back in range(30):
            ticks = [tick(at - timedelta(minutes=back), name) for name in ("a", "b", "c")]
            mine += sum(one.is_own for one in await store.timetable.schedule(ticks[::-1] if backwards else ticks))
        return mine

    counts = await asyncio.gather(*(serve(store, n % 2 == 1) for n, store in enumerate(stores)))
    jobs = await harness.everything()
    assert sum(counts) == len(jobs) == 90
    assert len({job.payload for job in jobs}) == 30


async def test_the_second_scheduler_gets_the_job_of_the_first(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(3)]
    for back in range(10):
        at = minute(harness, back)
        answers = await asyncio.gather(
            *(store.timetable.schedule([tick(at, spec=f"spec {n}")]) for n, store in enumerate(stores))
        )
        entered = [one for (one,) in answers]
        (winner,) = (n for n, one in enumerate(entered) if one.is_own)
        assert {(one.job_id, one.spec) for one in entered} == {(entered[winner].job_id, f"spec {winner}")}


# -- pruning --------------------------------------------------------------------------------------------


async def test_the_ledger_is_pruned_after_its_days_and_no_tick_older_than_that_is_scheduled(
    harness: StoreHarness,
) -> None:
    at = minute(harness)
    await harness.store.timetable.register([("report", "s")])
    (first,) = await harness.store.timetable.schedule([tick(at)])
    await harness.pass_time((LEDGER_DAYS - 1) * SECONDS_PER_DAY)
    await harness.heartbeats.maintain()
    assert harness.backend.ticks("report") == [at]
    (again,) = await harness.store.timetable.schedule([tick(at)])
    assert again == LedgerEntry(is_own=False, job_id=first.job_id, spec="0 4 * * *")
    await harness.pass_time(3 * SECONDS_PER_DAY)
    with pytest.raises(InvalidJob, match=f"{LEDGER_DAYS} days"):
        await harness.store.timetable.schedule([tick(minute(harness)), tick(at)])
    await harness.heartbeats.maintain()
    assert harness.backend.ticks("report") == []
    assert len(await harness.everything()) == 1
    (item,) = await harness.store.timetable.known_items()
    assert (item.identifier, item.last_tick) == ("report", at)


async def test_what_may_still_be_scheduled_is_never_pruned(harness: StoreHarness) -> None:
    at = datetime(2031, 3, 1, tzinfo=UTC)
    await harness.pass_time((at + timedelta(days=LEDGER_DAYS) - harness.now).total_seconds())
    (first,) = await harness.store.timetable.schedule([tick(at)])
    await harness.heartbeats.maintain()
    (again,) = await harness.store.timetable.schedule([tick(at)])
    assert (first.is_own, again.is_own) == (True, False)


async def test_a_tick_may_be_of_a_built_in_task(harness: StoreHarness) -> None:
    ticks = [
        tick(minute(harness), "before"),
        Tick(identifier="purge", at=minute(harness), job=NewJob(task=PURGE_TASK, key="p"), spec="s"),
        tick(minute(harness), "after"),
    ]
    entered = await harness.store.timetable.schedule(ticks)
    jobs = [await harness.store.jobs.get(each.job_id) for each in entered]
    assert [job.task for job in jobs if job is not None] == ["t", PURGE_TASK, "t"]
