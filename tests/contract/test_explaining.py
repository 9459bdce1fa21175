"""Why does a job not run? Every reason, the most important first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import Fail
from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.flow_tables import PARKED_FLAG
from stowhand.protocols.operator import Reason, WorkerDescription, WorkerList
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, FAILED, StoreHarness, judged

pytestmark = needs("inspect")

CODES = (
    *("running", "cancel_asked", "completed", "canceled", "failed", "attempts_used_up", "not_due", "waits_for_retry"),
    *("task_paused", "serial_paused", "serial_held", "no_worker", "unknown_task", "slots_busy"),
    *("limit_full", "limit_held", "rate_limited", "key_limit_full", "key_limit_held", "key_rate_limited"),
    *("worker_died", "suspect", "flags", "waits_for_children", "overdue", "due", "expires", "on_failure"),
    "failure_reported",
)
"""Every code that a reason may have."""
CARD = WorkerDescription(name="w1", host="h", pid=7, version="1.2", tasks=("t",), concurrency=4)


async def reasons(harness: StoreHarness, job_id: int) -> dict[str, Reason]:
    result = await harness.store.inspect.explain(job_id)
    assert result is not None
    assert result.job == await harness.job(job_id)
    assert result.reasons, "there is always a reason"
    codes = [reason.code for reason in result.reasons]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= set(CODES)
    return {reason.code: reason for reason in result.reasons}


async def seen(harness: StoreHarness, description: WorkerDescription = CARD) -> None:
    assert isinstance(harness.heartbeats, WorkerList)
    await harness.heartbeats.worker_seen(description, NO_DECLARATIONS)


async def test_an_unknown_job_has_no_explanation(harness: StoreHarness) -> None:
    assert await harness.store.inspect.explain(12345) is None
    assert await harness.store.inspect.explain(-1) is None


async def test_a_due_job_says_how_many_are_ahead_of_it(harness: StoreHarness) -> None:
    await seen(harness)
    await harness.add(priority=-1)
    await harness.add(priority=-1, delay=60.0)
    await harness.add(priority=-1, serial="q")
    job = await harness.add()
    result = await reasons(harness, job.id)
    assert list(result) == ["due"]
    assert result["due"].text == "it is due; ahead of it among those without a serial key: 1"
    await harness.take()
    alone = (await reasons(harness, job.id))["due"].text
    assert alone == "it is due, and no job is ahead of it among those without a serial key"


async def test_one_that_is_not_due_says_when(harness: StoreHarness) -> None:
    await seen(harness)
    job = await harness.add(delay=60.0)
    result = await reasons(harness, job.id)
    assert list(result) == ["not_due"]
    assert f"{job.run_at:%H:%M:%S}Z" in result["not_due"].text
    assert str(job.id) in result["not_due"].advice


async def test_one_that_waits_for_its_retry_says_which(harness: StoreHarness) -> None:
    await seen(harness)
    lease = await harness.start()
    await harness.settle(lease, ERRORED)
    result = await reasons(harness, lease.job_id)
    assert list(result) == ["waits_for_retry"]
    assert "attempt 1 of 25 failed" in result["waits_for_retry"].text


async def test_a_paused_queue_comes_before_its_holder(harness: StoreHarness) -> None:
    await seen(harness)
    holder = await harness.start(serial="my queue")
    job = await harness.add(serial="my queue")
    await harness.add(serial="my queue", priority=5)
    await harness.store.operate.pause_serial("my queue")
    result = await reasons(harness, job.id)
    assert list(result) == ["serial_paused", "serial_held", "due"]
    assert result["serial_paused"].advice == "stowhand serials resume 'my queue'"
    assert f"job {holder.job_id}" in result["serial_held"].text
    assert result["serial_held"].advice == f"if that job is stuck: stowhand jobs cancel {holder.job_id}"
    assert "w1" in result["serial_held"].text
    assert "no job is ahead of it in its serial key" in result["due"].text
    assert list(await reasons(harness, holder.job_id)) == ["running"]


async def test_a_queue_that_a_dead_workers_job_holds_says_so(harness: StoreHarness) -> None:
    await seen(harness)
    holder = await harness.start(serial="q")
    job = await harness.add(serial="q")
    assert "lease" not in (await reasons(harness, job.id))["serial_held"].text
    await harness.pass_time(31)
    held = (await reasons(harness, job.id))["serial_held"].text
    assert f"job {holder.job_id}" in held
    assert "under a lease which has expired: if its worker is lost, another one resets the job" in held


async def test_a_pause_without_a_holder_is_a_pause_alone(harness: StoreHarness) -> None:
    await seen(harness)
    job = await harness.add(serial="q")
    await harness.store.operate.pause_serial("q")
    assert list(await reasons(harness, job.id)) == ["serial_paused", "due"]


async def test_no_worker_and_no_worker_with_the_task(harness: StoreHarness) -> None:
    job = await harness.add("other")
    assert list(await reasons(harness, job.id)) == ["no_worker", "due"]
    await seen(harness)
    assert list(await reasons(harness, job.id)) == ["unknown_task", "due"]
    await seen(harness, WorkerDescription(name="w2", host="h", pid=8, version="1", tasks=None, concurrency=1))
    assert list(await reasons(harness, job.id)) == ["due"]
    await harness.pass_time(3600)
    assert list(await reasons(harness, job.id)) == ["no_worker", "due"], "they have died meanwhile"
    stopping = WorkerDescription(name="w1", host="h", pid=7, version="1", tasks=None, concurrency=4, stopping=True)
    await seen(harness, stopping)
    assert "every worker that is alive is stopping" in (await reasons(harness, job.id))["no_worker"].text
    assert list(await reasons(harness, job.id)) == ["no_worker", "due"]


async def test_a_suspect_and_its_flags_are_reasons(harness: StoreHarness) -> None:
    await seen(harness, WorkerDescription(name="w1", host="h", pid=7, version="1", tasks=None, concurrency=4))
    job = await harness.make_suspect(flags=("gpu", "big"))
    result = await reasons(harness, job.id)
    assert list(result) == ["suspect", "flags", "due"]
    assert "died 2 times" in result["suspect"].text
    once = await harness.make_suspect(times=1)
    assert list(await reasons(harness, once.id))[-2:] == ["worker_died", "due"]
    assert result["flags"].text == "it has flags (gpu, big): no worker alive is known to forbid one"


async def test_workers_that_forbid_a_flag_are_named_and_claim_no_job_before_it(harness: StoreHarness) -> None:
    await harness.add()
    job = await harness.add(flags=("gpu",))
    await seen(harness, _card("careful", forbidden_flags=("gpu", "big")))
    result = await reasons(harness, job.id)
    assert result["flags"].text == (
        "it has flags (gpu): every worker alive that has its task forbids one of them (careful: gpu)"
    )
    assert result["due"].text == "it is due", "no worker can claim it, so no job is claimed before it"
    await seen(harness, _card("asking", forbidden_flags=None))
    result = await reasons(harness, job.id)
    assert result["flags"].text == (
        "it has flags (gpu): one is forbidden by 1 of 2 workers (careful: gpu);"
        " a function decides before each claim of 1 of 2 workers"
    )
    assert result["due"].text == "it is due; ahead of it among those without a serial key: 1"


async def test_only_what_workers_take_that_could_take_the_job_is_ahead_of_it(harness: StoreHarness) -> None:
    for serial in (None, "q"):
        await harness.add("nobodys", serial=serial)
        await harness.add(serial=serial)
        await harness.add("another", serial=serial)
        await harness.add(serial=serial, flags=("big",))
    jobs = [await harness.add(serial=serial) for serial in (None, "q")]
    await seen(harness, _card("both", tasks=("t", "another"), forbidden_flags=("big",)))
    await seen(harness, _card("other", tasks=("nobodys",)))
    assert [(await reasons(harness, job.id))["due"].text[-3:] for job in jobs] == [": 2", ": 2"]


async def test_when_every_slot_is_busy_the_oldest_job_is_named(harness: StoreHarness) -> None:
    first = await harness.start()
    await harness.pass_time(20.0)
    await seen(harness, _card("w1", concurrency=1))
    job = await harness.add()
    busy = (await reasons(harness, job.id))["slots_busy"].text
    assert busy == (
        f"the one slot of the one worker that could claim it is busy, the oldest for 20s with job {first.job_id} (t)"
    )
    await seen(harness, _card("w2", tasks=("another",)))
    assert "slots_busy" in await reasons(harness, job.id), "its slots are of no use to this job"
    await seen(harness, _card("w3"))
    assert "slots_busy" not in await reasons(harness, job.id)


async def test_the_explanation_has_the_error_of_the_job(harness: StoreHarness) -> None:
    await seen(harness)
    error = "LookupError: no such order\nTraceback"
    lease = await harness.start()
    await harness.settle(lease, msgspec.structs.replace(ERRORED, error=error))
    result = await reasons(harness, lease.job_id)
    assert "failed: LookupError: no such order; the next one" in result["waits_for_retry"].text
    lease = await harness.start(max_attempts=1)
    await harness.settle(lease, msgspec.structs.replace(FAILED, error=error))
    result = await reasons(harness, lease.job_id)
    assert result["attempts_used_up"].text.endswith("(1 of 1): LookupError: no such order")


def _card(name: str, **said: Any) -> WorkerDescription:
    instance: dict[str, Any] = {"tasks": ("t",), "concurrency": 4} | said
    return WorkerDescription(name=name, host="h", pid=7, version="1", **instance)


async def test_a_running_job_is_explained_by_its_worker_and_lease(harness: StoreHarness) -> None:
    lease = await harness.start()
    result = await reasons(harness, lease.job_id)
    assert list(result) == ["running"]
    assert "on w1" in result["running"].text
    assert "has expired" not in result["running"].text
    await harness.store.admin.cancel(lease.job_id)
    await harness.pass_time(3600)
    result = await reasons(harness, lease.job_id)
    assert list(result) == ["running", "cancel_asked"]
    assert "which has expired" in result["running"].text


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELED, State.FAILED])
async def test_the_reason_of_an_ended_job_is_its_state(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    result = await reasons(harness, job.id)
    assert list(result) == [state.value]
    assert ("stowhand jobs retry" in result[state.value].advice) == (state is not State.COMPLETED)


async def test_used_up_attempts_are_a_reason(harness: StoreHarness) -> None:
    job = await harness.in_state(State.FAILED, max_attempts=1)
    result = await reasons(harness, job.id)
    assert list(result) == ["attempts_used_up"]
    assert "1 of 1" in result["attempts_used_up"].text


async def test_future_events_of_a_job_are_explained_last(harness: StoreHarness) -> None:
    """Nothing else shows it: when it expires, and what is enqueued when it has failed."""
    job = await harness.add("t", delay=5.0, expires=60.0, on_failure=NewJob(task="notify"))
    result = await reasons(harness, job.id)
    assert list(result)[-2:] == ["expires", "on_failure"]
    ends = job.run_at + timedelta(seconds=60)
    assert f"canceled at {ends:%Y-%m-%d %H:%M:%S}Z" in result["expires"].text
    assert "'notify'" in result["on_failure"].text
    await harness.pass_time(6)
    lease = await harness.take()
    assert list(await reasons(harness, job.id)) == ["running", "on_failure"]
    await harness.settle(lease, FAILED)
    result = await reasons(harness, job.id)
    assert list(result) == ["failed", "failure_reported"]
    assert "'notify'" in result["failure_reported"].text
    await harness.store.admin.retry_jobs([job.id])
    assert list(await reasons(harness, job.id))[-1] == "on_failure"


async def test_a_failure_without_an_enqueued_report_is_not_explained_as_reported(harness: StoreHarness) -> None:
    job = await harness.add("t", on_failure=NewJob(task="notify"))
    await harness.settle(await harness.take(), judged(Fail("broken\non_failure could not be enqueued: no room")))
    assert "failure_reported" not in await reasons(harness, job.id)


async def test_a_job_that_no_free_slot_takes_is_overdue(harness: StoreHarness) -> None:
    """For whatever reason: of the store's own it knows none."""
    inspect = harness.store.inspect
    suspect = await harness.make_suspect("t")
    await harness.add("of another")
    busy = await harness.add(serial="busy")
    await harness.take(tasks=("t",))
    held = await harness.add(serial="busy")
    paused = await harness.add(serial="paused")
    await harness.store.operate.pause_serial("paused")
    later = await harness.add(delay=40.0)
    jobs = [await harness.add(), await harness.add(serial="q", priority=3), suspect]
    await seen(harness)
    assert list(await inspect.overdue(("t",))) == []
    assert "overdue" not in await reasons(harness, jobs[0].id)
    await harness.pass_time(30)
    assert sorted(await inspect.overdue(("t",))) == sorted(job.id for job in jobs)
    assert len(await inspect.overdue(None)) == len(jobs) + 1
    await seen(harness)
    overdue = (await reasons(harness, jobs[0].id))["overdue"].text
    assert overdue.startswith("it has been due for 30s while 3 of 4 slots that could claim it are free")
    for job in (busy, held, paused, later):
        assert "overdue" not in await reasons(harness, job.id)
    for _ in range(3):
        await harness.start("of another kind")
    assert "overdue" not in await reasons(harness, jobs[0].id), "its slots are busy"


async def test_a_parent_of_a_flow_waits_for_its_children(harness: StoreHarness) -> None:
    """To reschedule it would be of no use."""
    await seen(harness)
    await seen(harness, _card("w2", tasks=None))
    parent = await harness.add("f/q", key="flow:f:1", flags=(PARKED_FLAG,), delay=30.0)
    result = await reasons(harness, parent.id)
    assert list(result) == ["waits_for_children"]
    assert "the end of the last one wakes it" in result["waits_for_children"].text
    assert "reschedule" not in result["waits_for_children"].advice


async def test_one_that_has_expired_waits_for_a_claim_to_cancel_it(harness: StoreHarness) -> None:
    job = await harness.add("t", expires=5.0)
    await harness.pass_time(6)
    assert "the next claim of any worker cancels it" in (await reasons(harness, job.id))["expires"].text
