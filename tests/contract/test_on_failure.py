"""``on_failure``: whatever fails a job for good enqueues the job that tells of it, once per end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.failure import Failure
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, Settlement
from stowhand.protocols.queue_store import Reschedule
from stowhand.protocols.store import Verdict
from tests.contract.backends import payload_of
from tests.contract.needs import cases, needs
from tests.contract.store_harness import ERRORED, FAILED, LEASE, SNOOZED, StoreHarness

pytestmark = needs("jobs")

TOLD = NewJob(task="told", priority=3, max_attempts=4, flags=("a", "b"))


async def told(harness: StoreHarness) -> list[Failure]:
    """What was told of since the last call."""
    claims = await harness.claim(20, tasks=("told",))
    jobs = [await harness.store.jobs.get(int(claim.lease.job_id)) for claim in claims]
    for claim in claims:
        await harness.settle(claim.lease)
    return [msgspec.json.decode(job.payload_text, type=Failure) for job in jobs if job is not None]


async def by_settlement(harness: StoreHarness) -> None:
    await harness.settle(await harness.start(on_failure=TOLD, payload='{"n": 1}'), FAILED)


async def by_a_lost_key(harness: StoreHarness) -> None:
    lease = await harness.start(key="k", on_failure=TOLD, payload='{"n": 1}')
    await harness.add("newer", key="k")
    await harness.settle(lease, ERRORED)


async def by_its_workers_death(harness: StoreHarness) -> None:
    await harness.lose(await harness.start(on_failure=TOLD, payload='{"n": 1}', max_resets=0))


async def by_hand(harness: StoreHarness) -> None:
    job = await harness.add(on_failure=TOLD, payload='{"n": 1}')
    await harness.store.admin.permanently_fail_jobs([job.id])


async def by_new_numbers_that_leave_it_failed(harness: StoreHarness) -> None:
    lease = await harness.start(on_failure=TOLD, payload='{"n": 1}', max_resets=0)
    await harness.pass_time(LEASE + 1)
    await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(attempts=25))


async def by_hand_after_its_lease(harness: StoreHarness) -> None:
    lease = await harness.start(on_failure=TOLD, payload='{"n": 1}')
    await harness.pass_time(LEASE + 1)
    await harness.store.admin.permanently_fail_jobs([lease.job_id])


async def by_its_numbers(harness: StoreHarness) -> None:
    job = await harness.add(on_failure=TOLD, payload='{"n": 1}')
    await harness.store.admin.reschedule_jobs([job.id], Reschedule(attempts=25))


async def by_its_numbers_after_its_lease(harness: StoreHarness) -> None:
    lease = await harness.start(on_failure=TOLD, payload='{"n": 1}')
    await harness.pass_time(LEASE + 1)
    await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(max_attempts=1, attempts=1))


async def by_an_unlock(harness: StoreHarness) -> None:
    await harness.start(on_failure=TOLD, payload='{"n": 1}', max_resets=0)
    await harness.store.admin.force_unlock_workers(["w1"])


ENDS: dict[Callable[[StoreHarness], Coroutine[Any, Any, None]], str] = {
    by_settlement: "jobs",
    by_a_lost_key: "keys",
    by_its_workers_death: "limits",
    by_hand: "admin",
    by_hand_after_its_lease: "admin",
    by_its_numbers: "admin",
    by_its_numbers_after_its_lease: "admin",
    by_new_numbers_that_leave_it_failed: "admin",
    by_an_unlock: "admin",
}


@cases("end", ENDS, needs=ENDS)
async def test_every_permanent_failure_is_reported_once(
    harness: StoreHarness, end: Callable[[StoreHarness], Coroutine[Any, Any, None]]
) -> None:
    await end(harness)
    (failure,) = await told(harness)
    died = end in (by_its_workers_death, by_an_unlock, by_new_numbers_that_leave_it_failed)
    by_a_hand = "by hand" if ENDS[end] == "admin" else None
    assert failure.error_class == ("WorkerDied" if died else by_a_hand)
    job = await harness.store.jobs.get(failure.job_id)
    assert job is not None
    assert (job.state, failure.task, failure.arguments) == (State.FAILED, "t", {"n": 1})
    assert failure.error == (job.last_error or "")
    assert await told(harness) == []


async def test_the_report_has_the_options_of_its_task(harness: StoreHarness) -> None:
    handler = msgspec.structs.replace(TOLD, serial="q", delay=5.0, max_resets=2)
    await harness.settle(await harness.start(on_failure=handler), FAILED)
    await harness.pass_time(4)
    assert list(await harness.claim(tasks=("told",))) == []
    await harness.pass_time(1)
    (claim,) = await harness.claim(tasks=("told",))
    job = claim.record
    assert (job.serial, job.priority, job.max_attempts, job.max_resets, job.flags) == ("q", 3, 4, 2, ("a", "b"))
    assert (job.key, job.run_at - job.created_at) == (None, timedelta(seconds=5))


@pytest.mark.parametrize("settlement", [COMPLETED, ERRORED, SNOOZED])
async def test_a_retry_is_not_reported(harness: StoreHarness, settlement: Settlement) -> None:
    await harness.settle(await harness.start(on_failure=TOLD), settlement)
    assert await told(harness) == []


async def test_a_repeated_settlement_is_reported_once(harness: StoreHarness) -> None:
    lease = await harness.start(on_failure=TOLD)
    assert await harness.settle(lease, FAILED) is Verdict.SETTLED
    assert await harness.settle(lease, FAILED, repeat=True) is Verdict.ALREADY_SETTLED
    assert len(await told(harness)) == 1


async def test_a_simultaneous_settlement_and_sweep_are_reported_once(harness: StoreHarness) -> None:
    leases = [await harness.start(on_failure=TOLD, max_resets=0) for _ in range(8)]
    hearts = [harness.another_heartbeats(await harness.another()) for _ in range(2)]
    await harness.pass_time(LEASE + 5)
    await asyncio.gather(
        *(heart.reset_lease(lease) for heart in hearts for lease in leases),
        *(harness.settle(lease, FAILED) for lease in leases),
        *(heart.reset_lease(lease) for heart in hearts for lease in reversed(leases)),
    )
    for lease in leases:  # a busy row is left to the next sweep
        await hearts[0].reset_lease(lease)
    failures = await told(harness)
    assert sorted(failure.job_id for failure in failures) == [lease.job_id for lease in leases]


@needs("admin")
async def test_each_failure_of_a_job_is_reported_once(harness: StoreHarness) -> None:
    admin, lease = harness.store.admin, await harness.start(on_failure=TOLD)
    await harness.settle(lease, FAILED)
    await admin.permanently_fail_jobs([lease.job_id], "again")
    await admin.reschedule_jobs([lease.job_id], Reschedule(priority=3))
    assert len(await told(harness)) == 1
    await admin.retry(lease.job_id)
    await harness.settle(await harness.take(), FAILED)
    assert len(await told(harness)) == 1


@needs("admin")
async def test_a_canceled_and_retried_job_still_reports_its_failure(harness: StoreHarness) -> None:
    job = await harness.add(on_failure=TOLD)
    await harness.store.admin.cancel(job.id)
    assert await told(harness) == []
    await harness.store.admin.retry(job.id)
    await harness.settle(await harness.take(), FAILED)
    assert [failure.job_id for failure in await told(harness)] == [job.id]


async def test_every_way_of_enqueueing_writes_it_down(harness: StoreHarness) -> None:
    job = NewJob(task="t", on_failure=TOLD, payload='{"text": "ü\\n\\u2028", "n": 1.50}', flags=("x", "x"))
    keyed = msgspec.structs.replace(job, key="k")
    ids = await harness.store.jobs.enqueue_many([NewJob(task="t"), job, keyed, NewJob(task="t", key="l")])
    ids += [one.id for one in await harness.store.jobs.add_jobs([job, NewJob(task="t")])]
    ids.append((await harness.store.jobs.enqueue(job)).id)
    first = await harness.start("first")
    await harness.settle(first, Settlement(State.COMPLETED, COMPLETED.ended, then=(job, job)))
    claims = list(await harness.claim(20, tasks=("t",)))
    assert len(claims) == len(ids) + 2
    for claim in claims:
        await harness.settle(claim.lease, FAILED)
    failures = await told(harness)
    assert len(failures) == 6
    assert all(failure.arguments == payload_of(job.payload) for failure in failures)
    assert {ids[1], ids[2], ids[4], ids[6]} < {failure.job_id for failure in failures}


@needs("keys")
async def test_a_key_update_replaces_it_like_every_detail(harness: StoreHarness) -> None:
    await harness.add(key="k", on_failure=TOLD, payload="[1]")
    await harness.add(key="k", payload="[2]")
    await harness.settle(await harness.take(), FAILED)
    assert await told(harness) == []
    await harness.add(key="k", on_failure=TOLD, payload="[3]")
    await harness.settle(await harness.take(), FAILED)
    assert [failure.arguments for failure in await told(harness)] == [[3]]


@pytest.mark.parametrize(
    ("payload", "arguments", "error"),
    [
        ('"' + "x" * 950_000 + '"', "x" * 950_000, 1000),
        ('"' + "x" * 1_041_000 + '"', None, 1000),
        ("[" * 64 + "]" * 64, None, 16_384),
    ],
    ids=["large", "too large", "deep"],
)
async def test_what_is_handed_on_is_cut_to_the_limits_of_a_payload(
    harness: StoreHarness, payload: str, arguments: object, error: int
) -> None:
    lease = await harness.start(on_failure=TOLD, payload=payload)
    settlement = msgspec.structs.replace(FAILED, error='"x' * 8192, error_class="app.Broken")
    assert await harness.settle(lease, settlement) is Verdict.SETTLED
    (failure,) = await told(harness)
    assert (failure.arguments, failure.error_class) == (arguments, "app.Broken")
    assert failure.error == ('"x' * 8192)[:error]


@pytest.mark.parametrize(
    "handler",
    [
        NewJob(task="told", key="k"),
        NewJob(task="told", payload='{"n": 1}'),
        NewJob(task="told", on_failure=TOLD),
        NewJob(task="jobs:purge_completed"),
        NewJob(task=""),
        NewJob(task="told", flags=tuple(f"{n:0128}" for n in range(64)), serial="ü" * 128, priority=2**40),
    ],
)
async def test_an_invalid_report_is_refused_at_the_enqueue(harness: StoreHarness, handler: NewJob) -> None:
    with pytest.raises(InvalidJob, match="on_failure"):
        await harness.store.jobs.enqueue(NewJob(task="t", on_failure=handler))
    assert await harness.claim() == []


@needs("admin")
async def test_a_reset_failure_that_the_same_call_revives_is_not_reported(harness: StoreHarness) -> None:
    """Its resets were used up, and the call gives it attempts: it has not failed for good."""
    lease = await harness.start(on_failure=TOLD, max_resets=0)
    await harness.pass_time(LEASE + 1)
    (job,) = await harness.store.admin.reschedule_jobs([lease.job_id], Reschedule(attempts=0))
    assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)
    assert await told(harness) == []
    await harness.settle(await harness.take(tasks=("t",)), FAILED)
    assert [one.job_id for one in await told(harness)] == [lease.job_id]
