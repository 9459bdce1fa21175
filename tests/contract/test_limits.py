"""Limits of tasks: no store starts more jobs than they allow, and none forgets a slot."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import RateLimited
from stowhand.jobs.queues import Queues
from stowhand.jobs.task_limits import NO_DECLARATIONS, LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.counts import BoundedCount, LimitCounts
from stowhand.protocols.operator import (
    MAX_SHOWN_SLOTS,
    OVERDUE_SECONDS,
    LimitChange,
    LimitRow,
    Reason,
    WorkerDescription,
    WorkerList,
)
from stowhand.protocols.store import ClaimRequest, StoreOptions
from tests.contract.needs import cases, needs
from tests.contract.store_harness import LEASE, SETTLEMENTS, SNOOZED, StoreHarness, judged, new_token
from tests.contract.test_wake import asleep, woken

pytestmark = needs("task_limits")
operated = needs("operate", "inspect")
ENDS = ("beat", "release", "abandon", "reset", *SETTLEMENTS)


async def declare(harness: StoreHarness, **tasks: dict[str, Any]) -> None:
    """Declare limits, as a starting worker does: ``concurrency``, or ``rate`` with ``seconds`` and ``burst``.

    With a ``key`` they are for each key; ``total`` is then the concurrency of all keys. ``fair``: the keys take turns.
    """
    limits: dict[str, LimitValues] = {}
    own_limits = {}
    fair_tasks: set[str] = set()
    for task, options in tasks.items():
        name = options.get("name", task)
        kinds: dict[str, str] = {}
        if "key" in options:
            kinds |= {"key_limit": name} | ({} if options["key"] is None else {"key": options["key"]})
            if "total" in options:
                kinds["concurrency"] = name
            if options.get("fair"):
                fair_tasks.add(task)
            has_rate = "rate" in options
            limits[name] = LimitValues(
                concurrency=options.get("total"),
                key_concurrency=options.get("concurrency"),
                key_rate=options.get("rate"),
                key_rate_seconds=options.get("seconds", 1.0) if has_rate else None,
                key_burst=options.get("burst", 1) if has_rate else None,
            )
        elif "concurrency" in options:
            kinds["concurrency"] = name
            limits[name] = LimitValues(concurrency=options["concurrency"])
        if "rate" in options and "key" not in options:
            kinds["rate"] = f"{name} rate"
            values = LimitValues(
                rate=options["rate"], rate_seconds=options.get("seconds", 1.0), burst=options.get("burst", 1)
            )
            limits[kinds["rate"]] = values
        if kinds:
            own_limits[task] = msgspec.convert({**kinds, "fair": task in fair_tasks}, TaskLimits)
    heartbeats = harness.another_heartbeats(harness.store)
    assert isinstance(heartbeats, WorkerList)
    await heartbeats.declare_tasks(TaskDeclarations(dict.fromkeys(tasks, "default"), own_limits, limits))


async def claimed_tasks(harness: StoreHarness, limit: int = 100, **options: Any) -> list[str]:
    return [claim.task for claim in await harness.claim(limit, **options)]


async def end(harness: StoreHarness, lease: Lease, how: str) -> None:
    match how:
        case "release":
            assert not await harness.heartbeats.release([lease])
        case "abandon":
            assert await harness.heartbeats.abandon(lease.token)
        case "reset":
            await harness.lose(lease)
        case _:
            await harness.settle(lease, SETTLEMENTS[how])


async def test_no_more_jobs_of_a_task_run_than_its_limit_allows(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 3})
    for _ in range(5):
        await harness.add()
        await harness.add("free")
    assert sorted(await claimed_tasks(harness)) == ["free"] * 5 + ["t"] * 3
    assert await claimed_tasks(harness) == []
    assert await harness.store.next_due(("t",)) is None, "the end of a job wakes the workers"


@pytest.mark.parametrize("how", [how for how in ENDS if how != "beat"])
async def test_whatever_ends_a_job_frees_its_slot(harness: StoreHarness, how: str) -> None:
    await declare(harness, t={"concurrency": 1})
    lease = await harness.start()
    for _ in range(2):
        await harness.add(priority=-1)
    assert await claimed_tasks(harness) == []
    await end(harness, lease, how)
    assert await claimed_tasks(harness) == ["t"], how
    assert await claimed_tasks(harness) == []


async def test_a_heartbeat_keeps_the_slot(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 1})
    lease = await harness.start()
    await harness.add()
    await harness.pass_time(LEASE / 2)
    pulse = await harness.heartbeats.beat([lease], LEASE)
    assert not pulse.lost
    assert await claimed_tasks(harness) == []


async def test_tasks_share_a_limit_by_its_name(harness: StoreHarness) -> None:
    await declare(harness, a={"concurrency": 2, "name": "shared"}, b={"concurrency": 2, "name": "shared"})
    for _ in range(2):
        await harness.add("a")
        await harness.add("b")
    assert await claimed_tasks(harness) == ["a", "b"]
    assert await claimed_tasks(harness) == []


async def test_jobs_behind_a_full_limit_do_not_delay_others(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 1})
    for _ in range(50):
        await harness.add(priority=-1)
    await harness.add("free")
    assert await claimed_tasks(harness, limit=10) == ["t"]
    assert await claimed_tasks(harness, limit=10) == ["free"]


async def test_a_serial_key_and_a_limit_of_the_task_both_hold(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 2})
    for serial in ("a", "a", "b", "c"):
        await harness.add(serial=serial)
    first = await harness.claim(10)
    assert [claim.serial for claim in first] == ["a", "b"]
    await harness.settle(first[0].lease)
    assert [claim.serial for claim in await harness.claim(10)] == ["a"]
    await harness.settle(first[1].lease)
    assert [claim.serial for claim in await harness.claim(10)] == ["c"]


async def test_a_suspect_needs_a_slot_too(harness: StoreHarness) -> None:
    await harness.make_suspect("t")
    await declare(harness, t={"concurrency": 1})
    await harness.start("t", priority=-1)
    assert await claimed_tasks(harness, limit=1, suspects=True) == []
    await harness.make_suspect("other")
    assert await claimed_tasks(harness, limit=1, suspects=True) == ["other"], "it does not block other suspects"


async def test_a_rate_starts_jobs_at_even_intervals(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 4, "seconds": 2.0})
    for _ in range(3):
        await harness.add()
    assert await claimed_tasks(harness) == ["t"]
    assert await claimed_tasks(harness) == []
    assert await harness.store.next_due(("t",)) == pytest.approx(0.5, abs=0.001)
    await harness.pass_time(0.5)
    assert await claimed_tasks(harness) == ["t"]
    await harness.pass_time(0.4)
    assert await claimed_tasks(harness) == []
    await harness.pass_time(0.1)
    assert await claimed_tasks(harness) == ["t"]


async def test_a_burst_starts_at_once_after_a_pause(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 10, "burst": 3})
    for _ in range(10):
        await harness.add()
    assert len(await claimed_tasks(harness)) == 3
    assert len(await claimed_tasks(harness)) == 0
    await harness.pass_time(0.1)
    assert len(await claimed_tasks(harness)) == 1
    await harness.pass_time(60)
    assert len(await claimed_tasks(harness)) == 3


@pytest.mark.parametrize("burst", [1, 3])
async def test_no_period_has_more_starts_than_the_rate_allows(harness: StoreHarness, burst: int) -> None:
    await declare(harness, t={"rate": 5, "burst": burst})
    for _ in range(40):
        await harness.add()
    starts: list[float] = []
    for tick in range(60):
        starts += [tick * 0.07] * len(await claimed_tasks(harness, limit=1 + tick % 4))
        await harness.pass_time(0.07)
    for number, first in enumerate(starts):
        for last in range(number, len(starts)):
            assert last - number + 1 <= burst + (starts[last] - first) * 5 + 1e-6
    assert len(starts) >= 20


async def test_a_returned_job_has_used_its_start(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 1})
    lease = await harness.start()
    await end(harness, lease, "release")
    assert await claimed_tasks(harness) == []
    await harness.pass_time(1)
    assert await claimed_tasks(harness) == ["t"]


async def test_a_raised_rate_applies_at_once(harness: StoreHarness) -> None:
    """As after a clock that was set back: the time of the next start is far ahead."""
    await declare(harness, t={"rate": 1, "seconds": 86_400.0})
    for _ in range(3):
        await harness.add()
    assert len(await claimed_tasks(harness)) == 1
    assert len(await claimed_tasks(harness)) == 0
    await declare(harness, t={"rate": 1, "seconds": 2.0})
    assert len(await claimed_tasks(harness)) == 1
    assert await harness.store.next_due(("t",)) == pytest.approx(2, abs=0.001)


async def test_jobs_with_a_rate_are_claimed_only_for_free_slots(harness: StoreHarness) -> None:
    await declare(harness, rated={"rate": 1000, "burst": 100}, limited={"concurrency": 10})
    for task in ("rated", "limited", "free"):
        for _ in range(8):
            await harness.add(task)
    tasks = await claimed_tasks(harness, free_slots=2)
    assert tasks.count("rated") == 2
    assert tasks.count("limited") == 5, "ahead only while less than half of the slots are in use"
    assert tasks.count("free") == 8


async def test_a_worker_names_the_room_that_it_has_for_a_task(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.add()
        await harness.add("free")
    assert sorted(await claimed_tasks(harness, task_rooms={"t": 1, "free": 2})) == ["free", "free", "t"]
    assert sorted(await claimed_tasks(harness)) == ["free", "t", "t"]


async def test_a_refused_call_holds_the_limits_of_its_task(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 1000, "burst": 100, "concurrency": 50}, other={"concurrency": 5})
    lease = await harness.start()
    await harness.add()
    await harness.add("other")
    await harness.settle(lease, judged(RateLimited(30)))
    assert await claimed_tasks(harness) == ["other"]
    assert await harness.store.next_due(("t",)) == pytest.approx(30, abs=0.001)
    await harness.pass_time(30.001)
    assert await claimed_tasks(harness) == ["t", "t"]
    assert (await harness.job(lease.job_id)).attempts == 1, "the refused attempt does not count"


async def test_a_snooze_holds_no_limit(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 50})
    lease = await harness.start()
    await harness.add()
    await harness.settle(lease, SNOOZED)
    assert await claimed_tasks(harness) == ["t"]


async def test_a_zombie_holds_no_limit(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 50})
    lease = await harness.start()
    await harness.lose(lease)
    await harness.settle(lease, judged(RateLimited(30)))
    assert await claimed_tasks(harness) == ["t"]


async def test_the_limits_of_a_task_are_what_the_last_started_worker_declared(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 1}, u={})
    for _ in range(5):
        await harness.add()
    assert len(await claimed_tasks(harness)) == 1
    await declare(harness, t={"concurrency": 3})
    assert len(await claimed_tasks(harness)) == 2
    await declare(harness, t={"concurrency": 1})
    assert len(await claimed_tasks(harness)) == 0, "a lowered limit stops nobody and starts nothing"
    await declare(harness, t={})
    assert len(await claimed_tasks(harness)) == 2


@operated
async def test_the_limits_are_listed_with_their_use_and_the_jobs_that_wait(harness: StoreHarness) -> None:
    inspect = harness.store.inspect
    assert await inspect.limits() == []
    await declare(
        harness, t={"concurrency": 2}, b={"concurrency": 9, "name": "x"}, a={"concurrency": 9, "name": "x", "rate": 1}
    )
    for _ in range(4):
        await harness.add()
    await harness.add(delay=60)
    started = harness.now
    ids = []
    for _ in range(2):
        ids.append((await harness.take()).job_id)
        await harness.pass_time(1)
    row, x, rate = await inspect.limits()
    assert row == LimitRow(
        name="t",
        values=LimitValues(concurrency=2),
        declared=LimitValues(concurrency=2),
        override=LimitValues(),
        tasks=("t",),
        used=2,
        used_by=tuple(ids),
        used_since=started,
        waiting=BoundedCount(3),
        due=BoundedCount(2),
    )
    assert row.is_full
    assert (x.name, x.tasks, x.used, x.is_full, x.waiting) == ("x", ("a", "b"), 0, False, BoundedCount(0))
    assert (rate.name, rate.tasks, str(rate.values), rate.next_start) == ("x rate", ("a",), "1 per 1s", None)
    await harness.start("a")
    assert (await limit(harness, "x rate")).next_start == harness.now + timedelta(seconds=1)
    assert (await limit(harness, "x")).used == 1


@operated
async def test_figures_have_the_use_of_each_limit(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 2, "rate": 100})
    await harness.start()
    await harness.add()
    await harness.add(delay=60)
    figures = await harness.store.inspect.figures()
    waiting = {"waiting": BoundedCount(2), "due": BoundedCount(1)}
    assert list(figures.limits) == [
        LimitCounts(name="t", slots=2, used=1, **waiting),
        LimitCounts(name="t rate", slots=None, used=0, **waiting),
    ]


@operated
async def test_at_most_ten_jobs_of_a_limit_are_listed(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 50})
    for _ in range(12):
        await harness.start()
    row = await limit(harness, "t")
    assert (row.used, len(row.used_by)) == (12, MAX_SHOWN_SLOTS)


@operated
async def test_a_hold_is_listed_until_it_ends(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 50})
    await harness.settle(await harness.start(), judged(RateLimited(30)))
    assert (await limit(harness, "t")).held_until == harness.now + timedelta(seconds=30)
    await harness.pass_time(30)
    assert (await limit(harness, "t")).held_until is None


@operated
async def test_an_override_holds_until_it_is_reset(harness: StoreHarness) -> None:
    operate = harness.store.operate
    await declare(harness, t={"concurrency": 1})
    for _ in range(6):
        await harness.add()
    assert await operate.set_limit("t", LimitValues(concurrency=3)) == LimitChange("t", changed=True)
    assert await operate.set_limit("t", LimitValues(concurrency=3)) == LimitChange("t", changed=False)
    await declare(harness, t={"concurrency": 2})
    row = await limit(harness, "t")
    assert (str(row.declared), str(row.override), str(row.values)) == ("2 at once", "3 at once", "3 at once")
    assert len(await claimed_tasks(harness)) == 3
    assert await operate.reset_limit("t") == LimitChange("t", changed=True)
    assert await operate.reset_limit("t") == LimitChange("t", changed=False)
    assert (await limit(harness, "t")).override == LimitValues()
    assert len(await claimed_tasks(harness)) == 0


@operated
async def test_an_override_of_zero_starts_nothing(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 2})
    await harness.start()
    await harness.add()
    await harness.store.operate.set_limit("t", LimitValues(concurrency=0))
    assert await claimed_tasks(harness) == []
    assert (await limit(harness, "t")).is_full
    await harness.store.operate.reset_limit("t")
    assert await claimed_tasks(harness) == ["t"]


@operated
async def test_an_override_changes_only_the_values_that_it_names(harness: StoreHarness) -> None:
    operate = harness.store.operate
    await declare(harness, t={"rate": 5, "seconds": 2.0, "burst": 3})
    await operate.set_limit("t rate", LimitValues(burst=1))
    await operate.set_limit("t rate", LimitValues(rate=10))
    row = await limit(harness, "t rate")
    assert (row.override, str(row.values)) == (LimitValues(rate=10, burst=1), "10 per 2s")
    await operate.set_limit("t rate", LimitValues(rate=1, rate_seconds=60.0))
    assert str((await limit(harness, "t rate")).values) == "1 per 1m"


@operated
@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("unknown", LimitValues(concurrency=1), "there is no limit 'unknown': a worker declares limits when it starts"),
        ("t", LimitValues(), "limit 't': no value is given; use a concurrency, a rate or a burst"),
        ("t", LimitValues(rate=1), "limit 't' has no rate: its tasks declare none"),
        ("t", LimitValues(burst=2), "limit 't' has no rate: its tasks declare none"),
        ("t rate", LimitValues(concurrency=1), "limit 't rate' has no concurrency: its tasks declare none"),
        (
            "t",
            LimitValues(concurrency=-1),
            "limit 't': Concurrency: limit: got -1; use a whole number from 1 to 1,000,000",
        ),
        ("t rate", LimitValues(rate=0), "limit 't rate': Rate: limit: got 0; use a whole number from 1 to 1,000,000"),
        ("t rate", LimitValues(rate_seconds=0.0), "limit 't rate': Rate: per: got 0.0; use 1 ms to 366 days"),
    ],
)
async def test_an_override_that_the_limit_cannot_have_is_refused(
    harness: StoreHarness, name: str, changes: LimitValues, reason: str
) -> None:
    await declare(harness, t={"concurrency": 2, "rate": 5})
    with pytest.raises(InvalidJob) as refusal:
        await harness.store.operate.set_limit(name, changes)
    assert str(refusal.value) == reason
    assert {row.override for row in await harness.store.inspect.limits()} == {LimitValues()}


@operated
async def test_an_unknown_limit_cannot_be_reset(harness: StoreHarness) -> None:
    with pytest.raises(InvalidJob, match="there is no limit 'unknown'"):
        await harness.store.operate.reset_limit("unknown")


@operated
async def test_a_limit_that_no_task_declares_stays_while_it_is_overridden(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 2})
    await harness.store.operate.set_limit("t", LimitValues(concurrency=1))
    await declare(harness, t={})
    assert (await limit(harness, "t")).tasks == ()
    await harness.store.operate.reset_limit("t")
    assert await harness.store.inspect.limits() == []


@cases("how", SETTLEMENTS, needs={})
async def test_the_end_of_a_job_of_a_full_limit_wakes_a_worker(harness: StoreHarness, how: str) -> None:
    await declare(harness, t={"concurrency": 1})
    lease = await harness.start()
    await harness.add()
    waiting = await asleep(harness, harness.store)
    await (await harness.another()).settle([(lease, SETTLEMENTS[how])])
    assert await woken(waiting)
    assert await claimed_tasks(harness) == ["t"]


@operated
async def test_a_changed_limit_wakes_a_worker(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 1})
    await harness.start()
    await harness.add()
    waiting = await asleep(harness, harness.store)
    await (await harness.another()).operate.set_limit("t", LimitValues(concurrency=2))
    assert await woken(waiting)
    assert await claimed_tasks(harness) == ["t"]


@operated
async def test_an_explanation_names_the_jobs_of_a_full_limit(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 3, "name": "send"})
    since = f"{harness.now:%Y-%m-%d %H:%M:%S}Z"
    one, two, three = [(await harness.start()).job_id for _ in range(3)]
    job = await harness.add()
    await harness.pass_time(OVERDUE_SECONDS + 1)
    reason = await explained(harness, job.id)
    assert reason.code == "limit_full"
    assert reason.text == f"its limit 'send' (3 at once) is full: held by jobs {one}, {two} and {three}, since {since}"
    assert reason.advice == "to run more at once: stowhand limits set send --concurrency N"
    await harness.store.operate.set_limit("send", LimitValues(concurrency=1))
    lowered = (await explained(harness, job.id)).text
    assert f"(1 at once) is full: held by jobs {one}, {two} and {three}, since" in lowered


@operated
async def test_an_explanation_lists_ten_jobs_of_a_limit_and_counts_the_others(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 12})
    leases = [await harness.start() for _ in range(12)]
    job = await harness.add()
    shown = ", ".join(str(lease.job_id) for lease in leases[:10])
    assert f"held by jobs {shown} and 2 more, since" in (await explained(harness, job.id)).text


@operated
async def test_an_explanation_names_a_limit_that_starts_nothing(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 3})
    await harness.store.operate.set_limit("t", LimitValues(concurrency=0))
    reason = await explained(harness, (await harness.add()).id)
    assert (reason.code, reason.text) == ("limit_full", "its limit 't' (0 at once) starts nothing")
    assert reason.advice == "stowhand limits reset t"


@operated
async def test_an_explanation_names_the_next_start_of_a_rate(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 6, "seconds": 60.0})
    await harness.start()
    job = await harness.add()
    reason = await explained(harness, job.id)
    opens_at = harness.now + timedelta(seconds=10)
    assert reason.code == "rate_limited"
    assert reason.text == f"its limit 't rate' (6 per 1m) starts the next job at {opens_at:%Y-%m-%d %H:%M:%S}Z"
    await harness.pass_time(10)
    assert (await explained(harness, job.id)).code == "no_worker"


@operated
async def test_an_explanation_names_a_refused_call(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 1000, "burst": 100, "concurrency": 50})
    await harness.settle(await harness.start(), judged(RateLimited(30)))
    job = await harness.add()
    reason = await explained(harness, job.id)
    until = harness.now + timedelta(seconds=30)
    assert reason.code == "limit_held"
    assert f"starts nothing before {until:%Y-%m-%d %H:%M:%S}Z (a job raised RateLimited)" in reason.text
    assert reason.advice == "to end that: stowhand limits reset 't rate'"


@operated
async def test_jobs_that_wait_for_a_limit_are_not_overdue(harness: StoreHarness) -> None:
    inspect = harness.store.inspect
    await declare(harness, full={"concurrency": 1}, rated={"rate": 1, "seconds": 600.0}, held={"concurrency": 9})
    for task in ("full", "rated", "held"):
        lease = await harness.start(task)
        await harness.add(task)
        if task == "held":
            await harness.settle(lease, judged(RateLimited(570)))
    free = await harness.add("free")
    await harness.pass_time(OVERDUE_SECONDS + 1)
    assert await inspect.overdue(None) == [free.id]
    await harness.pass_time(580)
    assert len(await inspect.overdue(None)) == 2, "the hold has ended; the rate lets a job start since a second ago"
    await harness.pass_time(OVERDUE_SECONDS)
    assert len(await inspect.overdue(None)) == 3


@operated
async def test_a_job_that_its_rate_let_start_a_short_time_ago_is_not_overdue(harness: StoreHarness) -> None:
    assert isinstance(harness.heartbeats, WorkerList)
    await declare(harness, t={"rate": 1, "seconds": 60.0})
    await harness.start()
    job = await harness.add()
    await harness.pass_time(65)
    worker = WorkerDescription(name="w2", host="h", pid=7, version="1", tasks=("t",), concurrency=4)
    await harness.heartbeats.worker_seen(worker, NO_DECLARATIONS)
    assert (await explained(harness, job.id)).code == "due"
    await harness.pass_time(OVERDUE_SECONDS)
    assert (await explained(harness, job.id)).code == "overdue"


@operated
async def test_the_values_of_a_key_are_overridden_for_all_keys(harness: StoreHarness) -> None:
    operate = harness.store.operate
    await declare(harness, t={"concurrency": 1, "key": "customer"})
    for customer in ("a", "a", "a", "b", "b"):
        await harness.add(payload=f'{{"customer": "{customer}"}}')
    assert len(await claimed_tasks(harness)) == 2
    with pytest.raises(InvalidJob, match="limit 't': Concurrency: limit: got -1"):
        await operate.set_limit("t", LimitValues(key_concurrency=-1))
    with pytest.raises(InvalidJob, match="limit 't' has no rate per key: its tasks declare none"):
        await operate.set_limit("t", LimitValues(key_rate=1))
    assert (await operate.set_limit("t", LimitValues(key_concurrency=2))).changed
    row = await limit(harness, "t")
    assert (str(row.values), row.tasks, row.waiting) == ("2 at once per key", ("t",), BoundedCount(3))
    assert len(await claimed_tasks(harness)) == 2
    assert (await operate.reset_limit("t")).changed
    assert len(await claimed_tasks(harness)) == 0


@operated
async def test_an_explanation_names_the_jobs_of_a_full_key(harness: StoreHarness) -> None:
    await declare(harness, t={"concurrency": 2, "key": "customer", "name": "api"})
    payload = '{"customer": "a"}'
    jobs = [await harness.add(payload=payload) for _ in range(4)]
    assert len(await claimed_tasks(harness)) == 2
    reason = await explained(harness, jobs[3].id)
    assert reason.code == "key_limit_full"
    held = f"held by jobs {jobs[0].id} and {jobs[1].id}, since {harness.now:%Y-%m-%d %H:%M:%S}Z"
    assert reason.text == f"its key 'a' of the limit 'api' (2 at once) is full: {held}"
    assert reason.advice == "to run more at once: stowhand limits set api --key-concurrency N"
    await harness.pass_time(OVERDUE_SECONDS + 1)
    assert await harness.store.inspect.overdue(None) == []
    figures = await harness.store.inspect.figures()
    assert list(figures.serials) == [], "a key of a limit is no serial key"


@operated
async def test_jobs_that_wait_for_the_rate_of_their_key_are_explained_and_not_overdue(harness: StoreHarness) -> None:
    await declare(harness, t={"rate": 1, "seconds": 60.0, "key": "customer"})
    jobs = [await harness.add(payload='{"customer": "a"}') for _ in range(3)]
    await harness.settle(await harness.take())
    assert await claimed_tasks(harness) == []
    await harness.pass_time(30)
    opens_at = harness.now + timedelta(seconds=30)
    text = f"its key 'a' of the limit 't' (1 per 1m) starts the next job at {opens_at:%Y-%m-%d %H:%M:%S}Z"
    reason = await explained(harness, jobs[2].id)
    assert (reason.code, reason.text) == ("key_rate_limited", text)
    assert await harness.store.inspect.overdue(None) == []
    await harness.pass_time(30)
    await harness.settle(await harness.take(), judged(RateLimited(300)))
    assert (await explained(harness, jobs[2].id)).code == "key_limit_held"
    await harness.pass_time(OVERDUE_SECONDS + 1)
    assert await harness.store.inspect.overdue(None) == []
    await harness.pass_time(300)
    assert await harness.store.inspect.overdue(None) == [jobs[2].id]


async def explained(harness: StoreHarness, job_id: int) -> Reason:
    """The most important reason."""
    explanation = await harness.store.inspect.explain(job_id)
    assert explanation is not None
    return explanation.reasons[0]


async def limit(harness: StoreHarness, name: str) -> LimitRow:
    return next(row for row in await harness.store.inspect.limits() if row.name == name)


def keyed(key: str = "customer", **options: Any) -> dict[str, Any]:
    """Options of ``declare`` for a limit with a key."""
    return {"key": key, **options}


def customers(claims: Any) -> list[Any]:
    return [claim.record.payload.get("customer") for claim in claims]


async def add_for(harness: StoreHarness, customer: Any, number: int = 1, **details: Any) -> None:
    for _ in range(number):
        await harness.add(payload=json.dumps({"customer": customer}), **details)


async def test_no_more_jobs_of_a_key_run_than_its_limit_allows(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=2))
    await add_for(harness, "a", 5)
    await add_for(harness, "b", 1)
    first = await harness.claim(100)
    assert customers(first) == ["a", "a", "b"]
    assert await harness.claim(100) == []
    assert await harness.store.next_due(("t",)) is None
    assert [claim.record.serial for claim in first] == [None] * 3
    await harness.settle(first[0].lease)
    await harness.settle(first[2].lease)
    assert customers(await harness.claim(100)) == ["a"]


@pytest.mark.parametrize("how", [how for how in ENDS if how != "beat"])
async def test_whatever_ends_a_job_frees_the_slot_of_its_key(harness: StoreHarness, how: str) -> None:
    await declare(harness, t=keyed(concurrency=1))
    await add_for(harness, "a", 3, priority=-1)
    (claim,) = await harness.claim(100)
    assert await harness.claim(100) == []
    await end(harness, claim.lease, how)
    assert len(await harness.claim(100)) == 1, how
    assert await harness.claim(100) == []


async def test_jobs_without_the_argument_share_a_key(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1))
    await harness.add(payload="{}")
    await harness.add(payload='{"customer": null}')
    await add_for(harness, "a")
    assert len(await harness.claim(100)) == 2


async def test_a_key_is_a_member_of_an_argument(harness: StoreHarness) -> None:
    await declare(harness, t=keyed("order.region", concurrency=1))
    for region in ("eu", "eu", "us", 7, 7):
        await harness.add(payload=json.dumps({"order": {"region": region}}))
    regions = [claim.record.payload["order"]["region"] for claim in await harness.claim(100)]
    assert sorted(map(str, regions)) == ["7", "eu", "us"]


async def test_long_keys_are_different_keys(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1))
    for end_ in ("a", "b", "b"):
        await add_for(harness, "x" * 300 + end_)
    assert len(await harness.claim(100)) == 2


async def test_tasks_share_the_keys_of_a_limit_by_its_name(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1, name="shared"), u=keyed(concurrency=1, name="shared"))
    await add_for(harness, "a")
    await harness.add("u", payload='{"customer": "a"}')
    await harness.add("u", payload='{"customer": "b"}')
    assert customers(await harness.claim(100)) == ["a", "b"]


async def test_a_limit_and_its_keys_both_hold(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1, total=3))
    for customer in "aabbccdd":
        await add_for(harness, customer)
    first = await harness.claim(100)
    assert customers(first) == ["a", "b", "c"]
    assert await harness.claim(100) == []
    await harness.settle(first[1].lease)
    (fourth,) = await harness.claim(100)
    assert customers([fourth]) in (["b"], ["d"])


async def test_jobs_of_full_keys_do_not_delay_others(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1))
    await add_for(harness, "a", 30, priority=-1)
    await harness.add("free")
    claimed: list[str] = []
    for _ in range(8):
        claimed += await claimed_tasks(harness, limit=10)
    assert sorted(claimed) == ["free", "t"]


async def test_a_rate_of_a_key_starts_its_jobs_at_even_intervals(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(rate=2))
    await add_for(harness, "a", 3)
    await add_for(harness, "b", 1)
    first = await harness.claim(100)
    assert customers(first) == ["a", "b"]
    for claim in first:
        await harness.settle(claim.lease)
    assert await harness.claim(100) == []
    assert await harness.store.next_due(("t",)) == pytest.approx(0.5, abs=0.001)
    await harness.pass_time(0.5)
    (second,) = await harness.claim(100)
    assert customers([second]) == ["a"]
    assert await harness.claim(100) == []
    await harness.pass_time(0.5)
    assert customers(await harness.claim(100)) == ["a"]


async def test_a_refused_call_holds_only_its_key(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=5, total=50))
    await add_for(harness, "a", 1)
    (claim,) = await harness.claim(100)
    await add_for(harness, "a", 2)
    await harness.settle(claim.lease, judged(RateLimited(30)))
    await add_for(harness, "b", 1)
    assert customers(await harness.claim(100)) == ["b"]
    assert await harness.store.next_due(("t",)) == pytest.approx(30, abs=0.01)
    await harness.pass_time(30.001)
    assert len(await all_claims(harness)) == 3


async def all_claims(harness: StoreHarness) -> list[Any]:
    """Claim until nothing more may start: a key may start one parked job in each claim."""
    claims: list[Any] = []
    while found := await harness.claim(100):
        claims += found
    return claims


async def test_a_retried_job_waits_for_its_key_again(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1))
    await add_for(harness, "a", 1)
    (claim,) = await harness.claim(100)
    await harness.settle(claim.lease, SETTLEMENTS["retry"])
    await add_for(harness, "a", 1)
    await harness.pass_time(61)
    assert len(await harness.claim(100)) == 1
    assert await harness.claim(100) == []


async def test_waiting_jobs_get_a_key_that_is_declared_later(harness: StoreHarness) -> None:
    await add_for(harness, "a", 3)
    await declare(harness, t=keyed(concurrency=1))
    assert len(await harness.claim(100)) == 1
    assert await harness.claim(100) == []
    await declare(harness, t=keyed(concurrency=3))
    assert len(await all_claims(harness)) == 2


@operated
async def test_jobs_of_a_key_start_when_the_jobs_before_them_are_canceled(harness: StoreHarness) -> None:
    """The first claim parks the last jobs of the key, and starts none of it, as another key takes the last slot."""
    await declare(harness, t=keyed(concurrency=2, total=1))
    await add_for(harness, "b")
    jobs = [await harness.add(payload='{"customer": "a"}') for _ in range(4)]
    (claim,) = await harness.claim(100)
    assert customers([claim]) == ["b"]
    for job in jobs[:2]:
        await harness.store.admin.cancel(job.id)
    await harness.settle(claim.lease)
    assert customers(await harness.claim(100)) == ["a"]


@pytest.mark.parametrize("change", [{"name": "other"}, {"key": "order"}])
async def test_waiting_jobs_move_to_the_key_that_their_task_declares_now(
    harness: StoreHarness, change: dict[str, str]
) -> None:
    """A running job keeps the slot that it has."""
    await declare(harness, t=keyed(concurrency=1))
    for _ in range(4):
        await harness.add(payload='{"customer": "a", "order": "b"}')
    (first,) = await harness.claim(100)
    assert await harness.claim(100) == []
    await declare(harness, t={**keyed(concurrency=1), **change})
    assert len(await harness.claim(100)) == 1
    await harness.settle(first.lease)
    assert await harness.claim(100) == []


async def test_waiting_jobs_of_a_task_without_its_key_start_at_once(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=1))
    await add_for(harness, "a", 4)
    assert len(await harness.claim(100)) == 1
    await declare(harness, t={})
    assert len(await harness.claim(100)) == 3


async def test_a_suspect_needs_a_slot_of_its_key(harness: StoreHarness) -> None:
    await harness.make_suspect("t", payload='{"customer": "a"}')
    await declare(harness, t=keyed(concurrency=1))
    await add_for(harness, "a", priority=-1)
    (claim,) = await harness.claim(100)
    assert await claimed_tasks(harness, limit=1, suspects=True) == []
    await harness.make_suspect("other")
    assert await claimed_tasks(harness, limit=1, suspects=True) == ["other"]
    await harness.settle(claim.lease)
    assert await claimed_tasks(harness, limit=1, suspects=True) == ["t"]


@operated
async def test_a_reset_ends_the_hold_of_a_key(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=5), other=keyed(concurrency=5))
    for task in ("t", "other"):
        lease = await harness.start(task, payload='{"customer": "a"}')
        await harness.settle(lease, judged(RateLimited(30)))
        await harness.add(task, payload='{"customer": "a"}')
    assert await harness.claim(100) == []
    assert await harness.store.operate.reset_limit("t") == LimitChange("t", changed=True)
    assert await harness.store.operate.reset_limit("t") == LimitChange("t", changed=False)
    assert await claimed_tasks(harness) == ["t"]


@operated
async def test_one_key_of_a_limit_is_paused(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(concurrency=2))
    await add_for(harness, "a", 3)
    await add_for(harness, "b", 1)
    assert (await harness.store.operate.pause_serial("t\ta")).changed
    assert customers(await all_claims(harness)) == ["b"]
    assert await harness.store.next_due(("t",)) is None
    assert (await harness.store.operate.resume_serial("t\ta")).changed
    assert customers(await all_claims(harness)) == ["a", "a"]


async def test_an_enqueuer_computes_the_key(harness: StoreHarness) -> None:
    await declare(harness, t={"key": None, "concurrency": 1})
    for serial in ("t\teu", "t\teu", "t\tus", None, None):
        await harness.add(serial=serial)
    assert len(await all_claims(harness)) == 3
    with pytest.raises(InvalidJob):
        await harness.add(serial="t\t" + "x" * 129)


def fair(**options: Any) -> dict[str, Any]:
    """Options of ``declare`` for a limit whose keys take turns."""
    return keyed(**{"concurrency": 100, "fair": True, **options})


async def turns(harness: StoreHarness, number: int, *, settles: bool = False, **options: Any) -> list[Any]:
    """Return the customers of this many claims of one job each."""
    served = []
    for _ in range(number):
        claims = await harness.claim(1, **options)
        served += customers(claims)
        if settles:
            for claim in claims:
                await harness.settle(claim.lease)
    return served


@pytest.mark.parametrize("seed", range(6))
async def test_between_two_claims_of_a_key_every_other_key_with_a_due_job_is_claimed(
    harness: StoreHarness, seed: int
) -> None:
    """So while two keys have due jobs, the numbers of their claims differ by at most one."""
    choice = random.Random(seed)
    await declare(harness, t=fair(concurrency=choice.choice([100, 2])))
    keys = "abcdefgh"[: choice.randint(2, 8)]
    running: list[tuple[str, Any]] = []
    waiting, claimed = Counter(dict.fromkeys(keys, 0)), Counter(dict.fromkeys(keys, 0))
    claimed_before: dict[str, Counter[str]] = {}
    """For each key with a due job: the numbers of claims since when it has had one."""
    for number in range(60):
        for key in choice.choices(keys, k=choice.choice([0, 1, 3])):
            burst = choice.choice([1, 2, 15])
            await add_for(harness, key, burst)
            waiting[key] += burst
            claimed_before.setdefault(key, claimed.copy())
        still_running: dict[str, Any] = {}  # at most one job of each key, so that every key has room
        for key, claim in running:
            if key in still_running or choice.random() < 0.8:
                await harness.settle(claim.lease)
            else:
                still_running[key] = claim
        await harness.pass_time(choice.choice([0.0, 0.001]))
        claims = await harness.claim(choice.choice([1, 1, 2, 3, 5]))
        served = customers(claims)
        assert bool(served) == (waiting.total() > 0)
        running = [*still_running.items(), *zip(served, claims, strict=True)]
        waiting.subtract(served)
        claimed.update(served)
        for key, before in claimed_before.items():
            behind = {other: claimed[other] - before[other] - (claimed[key] - before[key]) for other in keys}
            assert max(behind.values()) <= 1, f"claim {number} of {served}: {key} has waited for {behind}"
        claimed_before = {key: before for key, before in claimed_before.items() if waiting[key]}
    assert claimed.total() > 40


async def test_a_burst_of_one_key_does_not_delay_another(harness: StoreHarness) -> None:
    """The burst is more than one claim parks."""
    await declare(harness, t=fair())
    await harness.store.jobs.enqueue_many(NewJob(task="t", payload='{"customer": "a"}') for _ in range(1_200))
    await add_for(harness, "b", 2)
    assert await turns(harness, 4) == ["a", "b", "a", "b"]


async def test_other_tasks_are_claimed_while_a_burst_is_parked(harness: StoreHarness) -> None:
    await declare(harness, t=fair())
    await harness.add("other", priority=1)
    await harness.store.jobs.enqueue_many(NewJob(task="t", payload='{"customer": "a"}') for _ in range(1_200))
    tasks = [task for _ in range(5) for task in await claimed_tasks(harness, limit=1)]
    assert tasks.count("other") == 1
    assert tasks[0] == "other"


async def test_workers_that_claim_at_the_same_time_give_every_key_its_turn(harness: StoreHarness) -> None:
    """The claims are at the same time by the clock, which stands still."""
    workers = [await harness.another() for _ in range(3)]
    await declare(harness, t=fair())
    for key in "abcde":
        await add_for(harness, key, 15)
    counts = Counter(dict.fromkeys("abcde", 0))
    for _ in range(20):
        requests = [ClaimRequest(worker=f"w{n}", token=new_token(), limit=1, lease=LEASE) for n in range(3)]
        claims = await asyncio.gather(*(store.claim(one) for store, one in zip(workers, requests, strict=True)))
        counts.update(customers(claim for found in claims for claim in found))
        assert max(counts.values()) - min(counts.values()) <= len(workers), counts
    assert counts.total() >= 20


async def test_keys_with_one_slot_take_turns(harness: StoreHarness) -> None:
    await declare(harness, t=fair(concurrency=1))
    for key in "abc":
        await add_for(harness, key, 2)
    assert await turns(harness, 6, settles=True) == ["a", "b", "c"] * 2


async def test_keys_with_a_rate_take_turns(harness: StoreHarness) -> None:
    await declare(harness, t=keyed(rate=1, burst=2, fair=True))
    for key in "abc":
        await add_for(harness, key, 4)
    assert await turns(harness, 7) == ["a", "b", "c"] * 2
    await harness.pass_time(1)
    assert await turns(harness, 4) == ["a", "b", "c"]


async def test_keys_take_turns_at_the_slots_of_all(harness: StoreHarness) -> None:
    await declare(harness, t=fair(total=1))
    for key in "abc":
        await add_for(harness, key, 3)
    served = []
    for _ in range(6):
        (claim,) = await harness.claim(10)
        served += customers([claim])
        await harness.settle(claim.lease)
    assert served == ["a", "b", "c"] * 2


async def test_the_priority_precedes_the_turns(harness: StoreHarness) -> None:
    await declare(harness, t=fair())
    await add_for(harness, "a", 2)
    await add_for(harness, "b", 2, priority=-1)
    assert await turns(harness, 4) == ["b", "b", "a", "a"]


async def test_keys_of_a_queue_take_turns(harness: StoreHarness) -> None:
    await declare(harness, t=fair())
    for key in "aab":
        await add_for(harness, key, queue="mail")
    await add_for(harness, "c")
    assert await turns(harness, 4, queues=Queues(only=("mail",))) == ["a", "b", "a"]
    assert await turns(harness, 1) == ["c"]


async def test_keys_take_turns_among_the_jobs_that_a_worker_may_claim(harness: StoreHarness) -> None:
    await declare(harness, t=fair())
    for key in "aabb":
        await add_for(harness, key, flags=("red",))
        await add_for(harness, key)
    assert await turns(harness, 5, forbidden_flags=("red",)) == ["a", "b"] * 2
    assert await turns(harness, 5) == ["a", "b"] * 2


async def test_a_returned_job_waits_for_the_next_turn_of_its_key(harness: StoreHarness) -> None:
    await declare(harness, t=fair())
    await add_for(harness, "a", 2)
    await add_for(harness, "b", 2)
    await end(harness, await harness.take(), "release")
    assert await turns(harness, 5) == ["b", "a", "b", "a"]


async def test_keys_that_an_enqueuer_computes_take_turns(harness: StoreHarness) -> None:
    await declare(harness, t={"key": None, "concurrency": 100, "fair": True})
    for key in "aaabbb":
        await add_for(harness, key, serial=f"t\t{key}")
    assert await turns(harness, 6) == ["a", "b"] * 3


async def test_keys_take_turns_from_a_declaration_to_the_next(harness: StoreHarness) -> None:
    for key in "abaaabb":
        await add_for(harness, key)
    await declare(harness, t=keyed(concurrency=100))
    assert await turns(harness, 1) == ["a"]
    await declare(harness, t=fair())
    assert await turns(harness, 4) == ["b", "a", "b", "a"]
    await declare(harness, t=keyed(concurrency=100))
    assert await turns(harness, 2) == ["a", "b"]


async def test_a_clock_that_is_set_back_hides_no_key(harness: StoreHarness) -> None:
    await declare(harness, t=fair())
    await harness.pass_time(100)
    await add_for(harness, "a", 2, run_at=harness.now - timedelta(seconds=90))
    assert await turns(harness, 1) == ["a"]
    earlier = harness.backend.store(StoreOptions(pinned=lambda: harness.now - timedelta(seconds=60)))
    await earlier.open()
    claims = await earlier.claim(ClaimRequest(worker="w", token=new_token(), limit=1, lease=LEASE))
    await earlier.close()
    assert customers(claims) == ["a"]
