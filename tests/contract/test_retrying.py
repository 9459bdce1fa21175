"""Retrying what has failed, many at once: only what has, whatever became of the others since they were counted."""

from __future__ import annotations

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import State
from tests.contract.needs import needs
from tests.contract.store_harness import STATES, StoreHarness
from tests.contract.test_wake import asleep, woken

pytestmark = needs("admin")


async def test_of_many_only_those_that_have_failed_are_retried(harness: StoreHarness) -> None:
    jobs = {state: await harness.in_state(state, serial="q" if state is State.FAILED else None) for state in STATES}
    await harness.pass_time(5)
    ids = [job.id for job in reversed(jobs.values())]
    assert list(await harness.store.admin.retry_failed([*ids, ids[0], 12345, -1])) == [jobs[State.FAILED].id]
    for state in set(STATES) - {State.FAILED}:
        assert await harness.job(jobs[state].id) == jobs[state], "it is as it was"
    retried = await harness.job(jobs[State.FAILED].id)
    assert (retried.state, retried.attempts, retried.run_at) == (State.QUEUED, 0, harness.now)
    assert list(await harness.store.admin.retry_failed(ids)) == [], "once"
    assert (await harness.take(tasks=(retried.task,))).job_id == retried.id


async def test_many_are_retried_in_one_call_and_come_in_order(harness: StoreHarness) -> None:
    ids = [(await harness.add()).id for _ in range(450)]
    await harness.store.admin.permanently_fail_jobs(ids)
    assert list(await harness.store.admin.retry_failed(ids[::-1])) == ids
    assert (await harness.store.inspect.counts())[State.QUEUED] == 450


async def test_a_killer_of_workers_has_all_its_chances_again(harness: StoreHarness) -> None:
    job = await harness.make_suspect()
    await harness.store.admin.permanently_fail_jobs([job.id])
    assert list(await harness.store.admin.retry_failed([job.id])) == [job.id]
    assert (await harness.job(job.id)).resets == 0
    assert (await harness.take()).job_id == job.id


async def test_a_retry_of_many_wakes_a_worker_in_another_process(harness: StoreHarness) -> None:
    job = await harness.in_state(State.FAILED)
    waiting = await asleep(harness, await harness.another())
    await harness.store.admin.retry_failed([job.id])
    assert await woken(waiting)


async def test_what_is_no_list_of_ids_is_refused(harness: StoreHarness) -> None:
    for ids in ("12", ["1"], [1.5]):
        with pytest.raises(InvalidJob, match="job_ids"):
            await harness.store.admin.retry_failed(ids)  # type: ignore[arg-type]
    assert list(await harness.store.admin.retry_failed([])) == []
