"""Waiting for the end of jobs: who waits hears of it, however it came about, and asks once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.job import DROPPED_RESULT, Job, KeyMode, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.producer import JobStatus, Results
from stowhand.protocols.queue_store import QueueStore, Reschedule, require_part
from stowhand.stores.kernel.results import ResultPoll
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, LEASE, SNOOZED, WAYS, StoreHarness

pytestmark = needs("results")
HEARD = 60.0
"""Seconds within which an end is known."""


class Counted:
    """A store's part, and how many questions it is asked."""

    def __init__(self, inner: Results) -> None:
        self.inner = inner
        self.asked = 0
        self.min_pause, self.wait_for_commit, self.retention = inner.min_pause, inner.wait_for_commit, inner.retention

    async def ask(self, job_ids: Sequence[int]) -> Sequence[JobStatus]:
        self.asked += 1
        return await self.inner.ask(job_ids)


@asynccontextmanager
async def waiting(store: QueueStore) -> AsyncIterator[ResultPoll]:
    """As one process waits."""
    poll = ResultPoll(Counted(results_of(store)), SystemClock())
    try:
        yield poll
    finally:
        await poll.close()


def results_of(store: QueueStore) -> Results:
    return require_part(store, "results", store.results)


async def heard(poll: ResultPoll, job: Job) -> JobStatus:
    async with asyncio.timeout(HEARD):
        return await poll.end(job.id, job.revision)


async def begun(poll: ResultPoll, job: Job) -> asyncio.Task[JobStatus]:
    """Somebody waits for it, and the store was asked."""
    waiter = asyncio.create_task(heard(poll, job))
    assert isinstance(poll.results, Counted)
    before = poll.results.asked
    async with asyncio.timeout(HEARD):
        while poll.results.asked == before:  # noqa: ASYNC110 - a test looks from outside
            await asyncio.sleep(0.005)
    return waiter


@pytest.mark.parametrize("state", WAYS)
async def test_a_waiter_receives_the_outcome_of_an_attempt(harness: StoreHarness, state: State) -> None:
    lease = await harness.start(max_attempts=3)
    job = await harness.job(lease.job_id)
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, job)
        result = '{"n": 1}' if state is State.COMPLETED else None
        await harness.settle(lease, msgspec.structs.replace(WAYS[state], result=result))
        if state is State.ERRORED:
            await harness.pass_time(3600.0)
            await harness.settle(await harness.take(), COMPLETED)
        status = await waiter
    after = await harness.job(job.id)
    assert status.applied(job).result == after.result == ({"n": 1} if result else None)
    assert (status.state, status.attempts, status.last_error) == (after.state, after.attempts, after.last_error)
    assert (status.started_at, status.finished_at) == (after.started_at, after.finished_at)
    assert (status.revision, status.replaced, status.is_known) == (0, None, True)


async def test_a_retry_does_not_end_a_wait(harness: StoreHarness) -> None:
    lease = await harness.start()
    job = await harness.job(lease.job_id)
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, job)
        await harness.settle(lease, SNOOZED)
        await harness.pass_time(3600.0)
        await harness.settle(await harness.take(), ERRORED)
        await harness.pass_time(3600.0)
        again = await harness.take()
        await harness.heartbeats.release([again])
        (asked,) = (await results_of(harness.store).ask([job.id]),)
        assert (waiter.done(), list(asked)) == (False, [])
        await harness.settle(await harness.take())
        assert (await waiter).state is State.COMPLETED


Act = Callable[[StoreHarness, Job], Awaitable[object]]
BY_HAND: dict[str, tuple[Act, State | None]] = {
    "cancel": (lambda harness, job: harness.store.admin.cancel(job.id), State.CANCELED),
    "remove": (lambda harness, job: harness.store.admin.remove(job.id), None),
    "remove by key": (lambda harness, job: harness.store.admin.remove_key("k"), None),
    "complete": (lambda harness, job: harness.store.admin.complete_jobs([job.id]), State.COMPLETED),
    "fail": (lambda harness, job: harness.store.admin.permanently_fail_jobs([job.id], "enough"), State.FAILED),
    "reschedule": (
        lambda harness, job: harness.store.admin.reschedule_jobs([job.id], Reschedule(attempts=99)), State.FAILED,
    ),
    "a newer revision": (lambda harness, job: harness.add(key="k", payload='{"n": 2}'), State.QUEUED),
}  # fmt: skip


@needs("admin", "keys")
@pytest.mark.parametrize("how", BY_HAND)
async def test_a_waiter_receives_an_end_by_hand(harness: StoreHarness, how: str) -> None:
    act, state = BY_HAND[how]
    job = await harness.add(key="k")
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, job)
        await act(harness, job)
        status = await waiter
    assert (status.state, status.is_known) == (state, True)
    assert status.is_replaced(job.revision) is (how == "a newer revision")


async def heard_of_lost(harness: StoreHarness, take_away: Callable[[], Awaitable[object]], job: Job) -> JobStatus:
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, job)
        await take_away()
        return await waiter


@needs("sweeps")
async def test_a_waiter_receives_the_failure_by_too_many_resets(harness: StoreHarness) -> None:
    lease = await harness.start(max_resets=0)
    await harness.pass_time(LEASE + 10.0)
    job = await harness.job(lease.job_id)
    status = await heard_of_lost(harness, lambda: harness.heartbeats.reset_stalled(1.0), job)
    assert status.state is State.FAILED
    assert "died" in (status.last_error or "")


@needs("admin")
async def test_a_waiter_receives_a_cancellation_at_the_release(harness: StoreHarness) -> None:
    for way in ("release", "settle", "unlock"):
        lease = await harness.start(way)
        await harness.store.admin.cancel(lease.job_id)

        async def take_away(way: str = way, lease: Lease = lease) -> None:
            match way:
                case "release":
                    await harness.heartbeats.release([lease])
                case "settle":
                    await harness.settle(lease, ERRORED)
                case _:
                    await harness.store.admin.force_unlock_workers(["w1"])

        status = await heard_of_lost(harness, take_away, await harness.job(lease.job_id))
        assert status.state is State.CANCELED, way


async def test_what_has_ended_before_is_answered_at_once(harness: StoreHarness) -> None:
    async with waiting(harness.store) as poll:
        for state in (State.COMPLETED, State.FAILED, State.CANCELED):
            job = await harness.in_state(state)
            assert (await heard(poll, job)).state is state


async def test_a_deleted_job_differs_from_one_that_never_existed(harness: StoreHarness) -> None:
    job = await harness.in_state(State.CANCELED)
    await harness.store.admin.remove(job.id)
    async with waiting(harness.store) as poll:
        assert await heard(poll, job) == JobStatus(job.id)
        never = await heard(poll, msgspec.structs.replace(job, id=job.id + 1000))
        assert (never.state, never.is_known) == (None, False)


async def test_without_a_history_a_job_that_completed_is_nowhere(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    lease = await harness.start()
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, await harness.job(lease.job_id))
        await harness.settle(lease)
        assert await waiter == JobStatus(lease.job_id)
        assert await poll.results.retention() is None


async def test_the_retention_is_that_of_the_history(harness: StoreHarness) -> None:
    assert await results_of(harness.store).retention() == 86_400.0


@needs("keys")
async def test_a_repeat_that_changes_nothing_replaces_nothing(harness: StoreHarness) -> None:
    job = await harness.add(key="k")
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, job)
        again = await harness.add(key="k", key_mode=KeyMode.UNSAFE_DEDUPE)
        assert (again.id, again.revision) == (job.id, 1)
        other = await begun(poll, again)
        await harness.settle(await harness.take())
        assert [(await one).state for one in (waiter, other)] == [State.COMPLETED, State.COMPLETED]


@needs("keys")
async def test_after_a_newer_revision_its_own_end_ends_the_wait(harness: StoreHarness) -> None:
    old = await harness.add(key="k")
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, old)
        new = await harness.add(key="k")
        assert (await waiter).is_replaced(old.revision)
        waiter = await begun(poll, new)
        await harness.settle(await harness.take())
        assert ((await waiter).state, (await waiter).is_replaced(new.revision)) == (State.COMPLETED, False)
        assert (await heard(poll, old)).is_replaced(old.revision)


async def test_several_processes_wait_for_the_same_job(harness: StoreHarness) -> None:
    lease, other = await harness.start("a"), await harness.start("b")
    stores = [harness.store, await harness.another(), await harness.another()]
    async with waiting(stores[0]) as one, waiting(stores[1]) as two, waiting(stores[2]) as three:
        job = await harness.job(lease.job_id)
        waiters = [await begun(poll, job) for poll in (one, two, three)]
        apart = await begun(three, await harness.job(other.job_id))
        await harness.settle(lease)
        assert {(await waiter).state for waiter in waiters} == {State.COMPLETED}
        assert not apart.done()
        await harness.settle(other)
        assert (await apart).state is State.COMPLETED


async def test_a_thousand_jobs_that_end_together_are_few_questions(harness: StoreHarness) -> None:
    ids = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(1000))
    claims = list(await harness.claim(1000))
    while len(claims) < 1000:  # an answer over HTTP has fewer
        claims += await harness.claim(1000)
    async with waiting(harness.store) as poll:
        first = await begun(poll, claims[0].record)
        waiters = [first, *(asyncio.create_task(heard(poll, claim.record)) for claim in claims[1:])]
        await asyncio.sleep(0)
        await harness.store.settle([(claim.lease, COMPLETED) for claim in claims])
        statuses = [await waiter for waiter in waiters]
        assert isinstance(poll.results, Counted)
        assert poll.results.asked <= 40
    assert [status.job_id for status in statuses] == ids
    assert {status.state for status in statuses} == {State.COMPLETED}


async def test_a_cancelled_waiter_does_not_affect_the_others(harness: StoreHarness) -> None:
    lease = await harness.start()
    job = await harness.job(lease.job_id)
    async with waiting(harness.store) as poll:
        stays = await begun(poll, job)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await poll.end(job.id, job.revision)
        await harness.settle(lease)
        assert (await stays).state is State.COMPLETED


async def test_a_store_that_is_closed_ends_every_wait_with_an_error(harness: StoreHarness) -> None:
    async with waiting(harness.store) as poll:
        waiter = await begun(poll, await harness.add())
        await poll.close()
        with pytest.raises(StoreError, match=r"closed while a caller waited for a job; the job continues"):
            await waiter


async def test_a_dropped_result_is_null_to_every_reader_and_known_as_dropped(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.settle(lease, msgspec.structs.replace(COMPLETED, result=DROPPED_RESULT))
    job = await harness.job(lease.job_id)
    assert (job.result, job.result_text) == (None, DROPPED_RESULT)
    async with waiting(harness.store) as poll:
        assert (await heard(poll, job)).is_dropped
