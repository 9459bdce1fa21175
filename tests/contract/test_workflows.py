"""Workflows: recorded steps, waits, events and children, as every store with this part keeps them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Cancel, Complete, Fail, Retry, Settlement, Wait, Waiting
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import Reply, Verdict
from stowhand.protocols.workflows import (
    EVENT_RETENTION_SECONDS,
    STEP_OF_CHILDREN,
    NewStep,
    RecordedStep,
    Workflows,
)
from tests.contract.needs import needs
from tests.contract.store_harness import LEASE, SETTLEMENTS, StoreHarness, judged, new_token

pytestmark = needs("workflows")

DAY = 86_400.0


def workflows_of(harness: StoreHarness) -> Workflows:
    assert harness.store.workflows is not None
    return harness.store.workflows


async def record(
    harness: StoreHarness, lease: Lease, name: str, value: str | None = "1", error: str | None = None
) -> bool:
    (is_held,) = await workflows_of(harness).record([(lease, NewStep(name, value, error))])
    return is_held


async def steps(harness: StoreHarness, job_id: int) -> dict[str, RecordedStep]:
    """The steps of a job by name; children of a step as ``name[place]``."""
    recorded = await workflows_of(harness).read(job_id)
    with_children = {step.name for step in recorded if step.place == STEP_OF_CHILDREN}
    return {
        f"{step.name}[{step.place}]" if step.name in with_children and step.place >= 0 else step.name: step
        for step in recorded
    }


async def wait(harness: StoreHarness, lease: Lease, step: str = "pause", **options: Any) -> Reply:
    return await harness.settle(lease, judged(Waiting(Wait(step=step, **options))))


async def call_children(
    harness: StoreHarness, lease: Lease, number: int, step: str = "pack", **options: Any
) -> list[int]:
    """Let the job wait for new children of the task ``child``; return their ids."""
    children = tuple(NewJob(task="child", payload=f'{{"number": {place}}}') for place in range(number))
    value = json.dumps({"size": number})
    reply = await wait(harness, lease, step, children=children, places=tuple(range(number)), value=value, **options)
    assert reply is Verdict.SETTLED
    jobs = await harness.store.inspect.list(JobFilter(task="child", limit=1000))
    return [job.id for job in jobs if job.parent_id == lease.job_id]


async def claim_task(harness: StoreHarness, task: str = "t") -> Lease | None:
    claims = await harness.claim(tasks=(task,))
    return claims[0].lease if claims else None


async def end_child(harness: StoreHarness, settlement: Settlement) -> Lease:
    lease = await harness.take(tasks=("child",))
    assert await harness.settle(lease, settlement) is Verdict.SETTLED
    return lease


def with_result(value: str) -> Settlement:
    return Settlement(State.COMPLETED, judged(Complete()).ended, result=value)


# -- steps --------------------------------------------------------------------------------------------------


async def test_a_step_is_recorded_and_kept_for_later_attempts(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert await record(harness, lease, "charge", '{"paid":true}')
    assert await record(harness, lease, "mail", "null")
    await harness.settle(lease, SETTLEMENTS["retry"])
    recorded = await workflows_of(harness).read(lease.job_id)
    assert [(step.name, step.place, step.value, step.error) for step in recorded] == [
        ("charge", 0, '{"paid":true}', None),
        ("mail", 0, "null", None),
    ]
    assert recorded[0].at == harness.now


async def test_the_text_of_a_value_is_kept_as_it_is(harness: StoreHarness) -> None:
    lease = await harness.start()
    for place, value in enumerate(('"é\\u00e9\\n%s{}"', "1.50", '{"b":1,"a":[null,true]}', '"' + "x" * 100_000 + '"')):
        assert await record(harness, lease, f"step {place}", value)
        assert (await steps(harness, lease.job_id))[f"step {place}"].value == value


async def test_the_first_recorded_value_is_kept(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert await record(harness, lease, "charge", "1")
    assert await record(harness, lease, "charge", "2"), "the repeat of a call whose reply was lost"
    assert (await steps(harness, lease.job_id))["charge"].value == "1"


async def test_a_batch_records_the_steps_of_several_jobs(harness: StoreHarness) -> None:
    leases = [await harness.start() for _ in range(3)]
    await harness.settle(leases[1])
    batch = [(lease, NewStep(f"step {number}", str(number))) for lease in leases for number in range(2)]
    assert await workflows_of(harness).record(batch) == [True, True, False, False, True, True]
    assert set(await steps(harness, leases[2].job_id)) == {"step 0", "step 1"}
    assert not await steps(harness, leases[1].job_id)
    assert await workflows_of(harness).record([]) == []


@pytest.mark.parametrize("how", ["settle", "reset", "release"])
async def test_a_stale_lease_records_nothing(harness: StoreHarness, how: str) -> None:
    lease = await harness.start()
    match how:
        case "settle":
            await harness.settle(lease, SETTLEMENTS["retry"])
        case "reset":
            await harness.lose(lease)
        case "release":
            await harness.heartbeats.release([lease])
    assert not await record(harness, lease, "charge")
    await harness.pass_time(DAY)
    again = await harness.take()
    assert again.job_id == lease.job_id
    assert not await record(harness, lease, "charge")
    assert await record(harness, again, "charge", "2")
    assert (await steps(harness, lease.job_id))["charge"].value == "2"


async def test_a_failed_step_is_recorded_with_its_error(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert await record(harness, lease, "event", None, "timed out")
    step = (await steps(harness, lease.job_id))["event"]
    assert (step.value, step.error, step.is_recorded) == (None, "timed out", True)


# -- waits --------------------------------------------------------------------------------------------------


async def test_a_sleeping_job_is_queued_and_due_at_the_end_of_its_sleep(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert await wait(harness, lease, delay=DAY) is Verdict.SETTLED
    job = await harness.job(lease.job_id)
    assert (job.state, job.attempts, job.run_at) == (State.QUEUED, 0, harness.now + timedelta(seconds=DAY))
    assert job.waits_for == "time:pause"
    step = (await steps(harness, lease.job_id))["pause"]
    assert (step.value, step.until, step.is_over, step.is_recorded) == (None, job.run_at, False, False)
    assert await harness.store.next_due(None) == DAY
    assert await claim_task(harness) is None
    await harness.pass_time(DAY)
    assert await claim_task(harness) is not None
    assert (await steps(harness, lease.job_id))["pause"].is_over
    assert (await harness.job(lease.job_id)).attempts == 1


async def test_a_job_can_sleep_until_a_time(harness: StoreHarness) -> None:
    lease = await harness.start()
    until = harness.now + timedelta(hours=3)
    await wait(harness, lease, until=until)
    assert (await harness.job(lease.job_id)).run_at == until


async def test_a_job_that_is_woken_early_keeps_the_end_of_its_sleep(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, delay=DAY)
    until = (await harness.job(lease.job_id)).run_at
    await harness.store.admin.retry_jobs([lease.job_id])
    await harness.pass_time(60)
    lease = await harness.take()
    assert not (await steps(harness, lease.job_id))["pause"].is_over
    await wait(harness, lease, delay=DAY)
    assert (await harness.job(lease.job_id)).run_at == until


async def test_a_wait_sets_the_attempts_that_count(harness: StoreHarness) -> None:
    lease = await harness.start()
    for _ in range(2):
        await harness.settle(lease, SETTLEMENTS["retry"])
        await harness.pass_time(DAY)
        lease = await harness.take()
    assert (await harness.job(lease.job_id)).attempts == 3
    await wait(harness, lease, delay=1.0, attempts=2)
    assert (await harness.job(lease.job_id)).attempts == 2
    await harness.pass_time(1.0)
    await wait(harness, await harness.take(), "other", delay=1.0)
    assert (await harness.job(lease.job_id)).attempts == 0


async def test_a_canceled_job_does_not_wait(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.store.admin.cancel_jobs([lease.job_id])
    await wait(harness, lease, delay=DAY)
    job = await harness.job(lease.job_id)
    assert (job.state, job.waits_for) == (State.CANCELED, None)


async def test_a_waiting_job_can_be_canceled(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid")
    await harness.store.admin.cancel_jobs([lease.job_id])
    assert (await harness.job(lease.job_id)).state is State.CANCELED
    assert await workflows_of(harness).emit("paid", "1")


async def test_the_repeat_of_a_wait_changes_nothing(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 2)
    settlement = judged(Waiting(Wait(step="pack", children=(NewJob(task="child"),), places=(0,), value="{}")))
    assert await harness.settle(lease, settlement, repeat=True) is Verdict.ALREADY_SETTLED
    assert len(await harness.store.inspect.list(JobFilter(task="child"))) == 2


async def test_the_next_settlement_clears_what_a_job_waits_for(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid", delay=1.0)
    assert (await harness.job(lease.job_id)).waits_for == "event:paid"
    await harness.pass_time(1.0)
    await harness.settle(await harness.take(), SETTLEMENTS["retry"])
    assert (await harness.job(lease.job_id)).waits_for is None


# -- events -------------------------------------------------------------------------------------------------


async def test_an_event_wakes_the_job_that_waits_for_it(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "event:paid:42", event="paid:42")
    assert await harness.store.next_due(None) is None or await claim_task(harness) is None
    await harness.pass_time(365 * DAY)
    assert await claim_task(harness) is None, "it waits without end"
    assert await workflows_of(harness).emit("paid:42", '{"amount":3}')
    assert (await harness.job(lease.job_id)).run_at == harness.now
    lease = await harness.take()
    step = (await steps(harness, lease.job_id))["event:paid:42"]
    assert (step.value, step.error) == ('{"amount":3}', None)


async def test_an_event_that_was_emitted_before_ends_the_wait_at_once(harness: StoreHarness) -> None:
    assert await workflows_of(harness).emit("paid", '"yes"')
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid", delay=DAY)
    assert (await harness.job(lease.job_id)).run_at == harness.now
    assert (await steps(harness, lease.job_id))["event:paid"].value == '"yes"'
    assert await claim_task(harness) is not None


async def test_the_first_event_of_a_name_counts(harness: StoreHarness) -> None:
    workflows = workflows_of(harness)
    assert await workflows.emit("paid", "1")
    assert not await workflows.emit("paid", "2")
    assert await workflows.is_emitted("paid")
    assert not await workflows.is_emitted("other")
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid")
    assert (await steps(harness, lease.job_id))["event:paid"].value == "1"


async def test_an_event_for_one_job_wakes_only_this_job(harness: StoreHarness) -> None:
    first, second = [await harness.start(f"t{number}") for number in range(2)]
    for lease in (first, second):
        await wait(harness, lease, "event:approved", event="approved")
    assert await workflows_of(harness).emit("approved", "true", first.job_id)
    assert (await steps(harness, first.job_id))["event:approved"].value == "true"
    assert not (await steps(harness, second.job_id))["event:approved"].is_recorded
    assert await workflows_of(harness).emit("approved", "false")
    assert (await steps(harness, second.job_id))["event:approved"].value == "false"
    assert (await steps(harness, first.job_id))["event:approved"].value == "true"
    assert await workflows_of(harness).is_emitted("approved", first.job_id)


async def test_an_event_for_one_job_may_precede_its_wait(harness: StoreHarness) -> None:
    lease = await harness.start()
    assert await workflows_of(harness).emit("approved", "1", lease.job_id)
    await wait(harness, lease, "event:approved", event="approved")
    assert (await steps(harness, lease.job_id))["event:approved"].value == "1"


async def test_one_event_wakes_many_jobs(harness: StoreHarness) -> None:
    leases = [await harness.start(f"t{number}") for number in range(20)]
    for lease in leases:
        await wait(harness, lease, "event:open", event="open")
    await workflows_of(harness).emit("open", "1")
    assert len(await harness.claim(100)) == 20


async def test_an_event_after_the_deadline_is_not_the_value_of_the_wait(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid", delay=60.0)
    await harness.pass_time(60.0)
    lease = await harness.take()
    step = (await steps(harness, lease.job_id))["event:paid"]
    assert (step.is_over, step.is_recorded) == (True, False)
    await workflows_of(harness).emit("paid", "1")
    assert await record(harness, lease, "event:paid", None, "timed out")
    assert (await steps(harness, lease.job_id))["event:paid"].error == "timed out"


async def test_an_event_before_the_deadline_wins(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid", delay=60.0)
    await workflows_of(harness).emit("paid", "1")
    await harness.pass_time(120.0)
    lease = await harness.take()
    assert await record(harness, lease, "event:paid", None, "timed out")
    assert (await steps(harness, lease.job_id))["event:paid"].value == "1"


async def test_events_are_kept_for_a_time(harness: StoreHarness) -> None:
    await workflows_of(harness).emit("paid", "1")
    lease = await harness.start()
    await wait(harness, lease, "event:paid", event="paid")
    await harness.pass_time(EVENT_RETENTION_SECONDS + 1)
    await harness.heartbeats.maintain()
    assert not await workflows_of(harness).is_emitted("paid")
    assert (await steps(harness, lease.job_id))["event:paid"].value == "1", "the job has a copy"


async def test_no_wake_up_is_lost_when_a_job_starts_to_wait_while_its_event_is_emitted(harness: StoreHarness) -> None:
    another = await harness.another()
    assert another.workflows is not None
    for number in range(25):
        lease = await harness.start()
        await asyncio.gather(
            wait(harness, lease, f"event:{number}", event=str(number)),
            another.workflows.emit(str(number), "1"),
        )
        again = await harness.take()
        assert again.job_id == lease.job_id
        assert (await steps(harness, lease.job_id))[f"event:{number}"].value == "1"
        await harness.settle(again)


# -- children -----------------------------------------------------------------------------------------------


async def test_the_last_child_to_end_wakes_the_parent(harness: StoreHarness) -> None:
    lease = await harness.start()
    ids = await call_children(harness, lease, 3)
    assert len(ids) == 3
    parent = await harness.job(lease.job_id)
    assert (parent.state, parent.waits_for) == (State.QUEUED, "children:pack")
    for number in range(3):
        assert (await steps(harness, lease.job_id))["pack"].remaining == 3 - number
        assert await claim_task(harness) is None
        await end_child(harness, with_result(f'"result {number}"'))
    assert await claim_task(harness) is not None
    recorded = await steps(harness, lease.job_id)
    assert recorded["pack"].remaining == 0
    assert recorded["pack"].value == '{"size": 3}'
    assert [recorded[f"pack[{place}]"].value for place in range(3)] == [f'"result {place}"' for place in range(3)]


async def test_a_child_without_a_result_has_the_value_null(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 2)
    claims = await harness.claim(2, tasks=("child",))
    await harness.store.settle([(claim.lease, SETTLEMENTS["complete"]) for claim in claims])
    recorded = await steps(harness, lease.job_id)
    assert [recorded[f"pack[{place}]"].value for place in range(2)] == ["null", "null"]
    assert await claim_task(harness) is not None


@pytest.mark.parametrize("how", ["fail", "cancel", "fail_by_hand", "remove", "cancel_by_hand", "reset"])
async def test_a_child_that_does_not_complete_records_an_error(harness: StoreHarness, how: str) -> None:
    lease = await harness.start()
    (child,) = await call_children(harness, lease, 1)
    match how:
        case "fail":
            await end_child(harness, judged(Fail("no stock")))
        case "cancel":
            await end_child(harness, judged(Cancel("no stock")))
        case "fail_by_hand":
            await harness.store.admin.permanently_fail_jobs([child], "no stock")
        case "remove":
            await harness.store.admin.remove_jobs([child])
        case "cancel_by_hand":
            await harness.store.admin.cancel_jobs([child])
        case "reset":
            for _ in range(6):
                claims = await harness.claim(tasks=("child",)) or await harness.claim(tasks=("child",), suspects=True)
                await harness.lose(claims[0].lease)
    assert await claim_task(harness) is not None, how
    step = (await steps(harness, lease.job_id))["pack[0]"]
    assert step.value is None
    assert step.error
    if how in ("fail", "cancel", "fail_by_hand"):
        assert "no stock" in step.error


async def test_a_child_that_is_retried_has_not_ended(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 1)
    await end_child(harness, judged(Retry("again", delay=60)))
    assert await claim_task(harness) is None
    await harness.pass_time(60)
    await end_child(harness, with_result("7"))
    assert (await steps(harness, lease.job_id))["pack[0]"].value == "7"


async def test_a_child_has_its_own_options_and_names_its_parent(harness: StoreHarness) -> None:
    lease = await harness.start()
    children = (
        NewJob(task="child", priority=7, queue="slow", max_attempts=2, serial="s", flags=("f",)),
        NewJob(task="child", delay=60.0, on_failure=NewJob(task="report"), expires=600.0),
    )
    await wait(harness, lease, "pack", children=children, places=(0, 1), value='{"size": 2}')
    first, second = sorted(await harness.store.inspect.list(JobFilter(task="child")), key=lambda job: job.id)
    assert (first.priority, first.queue, first.max_attempts, first.serial) == (7, "slow", 2, "s")
    assert first.flags == ("f",)
    assert second.run_at == harness.now + timedelta(seconds=60)
    assert [first.parent_id, second.parent_id] == [lease.job_id] * 2
    assert (await harness.job(lease.job_id)).parent_id is None


async def test_a_finished_child_still_names_its_parent(harness: StoreHarness) -> None:
    lease = await harness.start()
    (child,) = await call_children(harness, lease, 1)
    await end_child(harness, with_result("1"))
    assert (await harness.job(child)).parent_id == lease.job_id


async def test_the_children_of_a_step_are_created_once_even_by_two_workers(harness: StoreHarness) -> None:
    lease = await harness.start()
    settlement = judged(Waiting(Wait(step="pack", children=(NewJob(task="child"),), places=(0,), value="{}")))
    another = await harness.another()
    replies = await asyncio.gather(
        harness.store.settle([(lease, settlement)]), another.settle([(lease, settlement)], repeat=True)
    )
    assert sorted(str(reply) for (reply,) in replies) == sorted([str(Verdict.SETTLED), str(Verdict.ALREADY_SETTLED)])
    assert len(await harness.store.inspect.list(JobFilter(task="child"))) == 1


async def test_a_stale_attempt_creates_no_children(harness: StoreHarness) -> None:
    lease = await harness.start()
    await harness.lose(lease)
    reply = await wait(harness, lease, "pack", children=(NewJob(task="child"),), places=(0,), value="{}")
    assert reply is Verdict.LOST
    assert not await harness.store.inspect.list(JobFilter(task="child"))
    assert not await steps(harness, lease.job_id)


async def test_failed_children_can_be_created_anew(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 3)
    await end_child(harness, with_result("0"))
    await end_child(harness, judged(Fail("no")))
    await end_child(harness, with_result("2"))
    lease = await harness.take(tasks=("t",))
    child = NewJob(task="child", payload='{"number": 1}')
    await wait(harness, lease, "pack", children=(child,), places=(1,), value='{"size": 3, "attempts": 1}', attempts=1)
    recorded = await steps(harness, lease.job_id)
    assert recorded["pack"].remaining == 1
    assert recorded["pack"].value == '{"size": 3, "attempts": 1}'
    assert "pack[1]" not in recorded
    await end_child(harness, with_result("1"))
    recorded = await steps(harness, lease.job_id)
    assert [recorded[f"pack[{place}]"].value for place in range(3)] == ["0", "1", "2"]
    assert (await harness.job(lease.job_id)).attempts == 1
    assert await claim_task(harness) is not None


async def test_a_failed_child_that_was_created_anew_records_nothing_when_it_is_retried(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 1)
    old = await end_child(harness, judged(Fail("no")))
    lease = await harness.take(tasks=("t",))
    await wait(harness, lease, "pack", children=(NewJob(task="child"),), places=(0,), value='{"size": 1}')
    new = await harness.take(tasks=("child",))
    await harness.store.admin.retry_jobs([old.job_id])
    await end_child(harness, with_result('"old"'))
    assert await claim_task(harness) is None
    await harness.settle(new, with_result('"new"'))
    assert (await steps(harness, lease.job_id))["pack[0]"].value == '"new"'
    assert await claim_task(harness) is not None


async def test_a_failed_child_that_is_retried_replaces_its_error(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 2)
    failed = await end_child(harness, judged(Fail("no")))
    await harness.store.admin.retry_jobs([failed.job_id])
    for value in ("1", "2"):
        await end_child(harness, with_result(value))
    recorded = await steps(harness, lease.job_id)
    assert recorded["pack"].remaining == 0
    assert {recorded[f"pack[{place}]"].value for place in range(2)} == {"1", "2"}


@pytest.mark.parametrize("act", ["cancel", "remove", "fail"])
async def test_the_end_of_a_waiting_parent_by_hand_cancels_its_children(harness: StoreHarness, act: str) -> None:
    lease = await harness.start()
    ids = await call_children(harness, lease, 3)
    running = await harness.take(tasks=("child",))
    match act:
        case "cancel":
            await harness.store.admin.cancel_jobs([lease.job_id])
        case "remove":
            await harness.store.admin.remove_jobs([lease.job_id])
        case "fail":
            await harness.store.admin.permanently_fail_jobs([lease.job_id], "no")
    states = {job_id: (await harness.job(job_id)).state for job_id in ids}
    assert states.pop(running.job_id) is State.PROCESSING
    assert set(states.values()) == {State.CANCELED}
    assert (await harness.job(running.job_id)).cancel_requested


async def test_canceling_a_parent_cancels_the_children_of_its_children(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 1)
    child = await harness.take(tasks=("child",))
    await wait(harness, child, "more", children=(NewJob(task="grandchild"),), places=(0,), value="{}")
    (grandchild,) = await harness.store.inspect.list(JobFilter(task="grandchild"))
    await harness.store.admin.cancel_jobs([lease.job_id])
    assert (await harness.job(grandchild.id)).state is State.CANCELED


async def test_children_that_end_at_the_same_time_wake_the_parent_once(harness: StoreHarness) -> None:
    another = await harness.another()
    for round_number in range(10):
        task = f"parent {round_number}"
        job = await harness.add(task)
        lease = await harness.take(tasks=(task,))
        await call_children(harness, lease, 2)
        first, second = (claim.lease for claim in await harness.claim(2, tasks=("child",)))
        await asyncio.gather(
            harness.store.settle([(first, with_result("1"))]), another.settle([(second, with_result("2"))])
        )
        again = await claim_task(harness, task)
        assert again is not None
        assert again.job_id == job.id
        assert (await steps(harness, job.id))["pack"].remaining == 0


async def test_a_parent_that_is_woken_early_waits_for_the_other_children(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 2)
    await harness.store.admin.retry_jobs([lease.job_id])
    lease = await harness.take(tasks=("t",))
    await end_child(harness, with_result("1"))
    await wait(harness, lease, "pack", value='{"size": 2}')
    assert (await steps(harness, lease.job_id))["pack"].remaining == 1
    assert await claim_task(harness) is None
    await end_child(harness, with_result("2"))
    assert await claim_task(harness) is not None


async def test_children_that_end_while_their_parent_runs_are_counted(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 1)
    await harness.store.admin.retry_jobs([lease.job_id])
    lease = await harness.take(tasks=("t",))
    await end_child(harness, with_result("1"))
    await wait(harness, lease, "pack", value='{"size": 1}')
    assert await claim_task(harness) is not None, "all children have ended, so there is nothing to wait for"


async def test_a_step_without_children_ends_at_once(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "pack", value='{"size": 0}')
    assert await claim_task(harness) is not None
    assert (await steps(harness, lease.job_id))["pack"].remaining == 0


async def test_a_completion_by_hand_and_an_expiry_end_a_child(harness: StoreHarness) -> None:
    lease = await harness.start()
    children = (NewJob(task="child"), NewJob(task="child", expires=60.0))
    await wait(harness, lease, "pack", children=children, places=(0, 1), value='{"size": 2}')
    first, _ = sorted(await harness.store.inspect.list(JobFilter(task="child")), key=lambda job: job.id)
    await harness.store.admin.complete_jobs([first.id])
    await harness.pass_time(61.0)
    await harness.heartbeats.maintain()
    recorded = await steps(harness, lease.job_id)
    assert (recorded["pack[0]"].value, recorded["pack[0]"].error) == ("null", None)
    assert "expired" in str(recorded["pack[1]"].error)
    assert await claim_task(harness) is not None


async def test_without_a_history_the_results_of_children_are_recorded(forgetful_harness: StoreHarness) -> None:
    harness = forgetful_harness
    lease = await harness.start()
    await call_children(harness, lease, 3)
    claims = await harness.claim(2, tasks=("child",))
    await harness.store.settle([(claim.lease, with_result(str(claim.lease.job_id))) for claim in claims])
    last = await end_child(harness, with_result("7"))
    recorded = await steps(harness, lease.job_id)
    values = [recorded[f"pack[{place}]"].value for place in range(3)]
    assert values == [*(str(claim.lease.job_id) for claim in claims), "7"]
    assert await harness.store.jobs.get(last.job_id) is None
    assert await claim_task(harness) is not None


async def test_the_value_of_a_child_that_is_retried_by_hand_replaces_its_error(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 2)
    failed = await end_child(harness, judged(Fail("no")))
    assert (await steps(harness, lease.job_id))["pack"].remaining == 1
    await harness.store.admin.retry_jobs([failed.job_id])
    again = await harness.take(tasks=("child",))
    if again.job_id != failed.job_id:
        again = await harness.take(tasks=("child",))
    assert await harness.settle(again, with_result("1")) is Verdict.SETTLED
    recorded = await steps(harness, lease.job_id)
    assert (recorded["pack[0]"].value, recorded["pack[0]"].error) == ("1", None)
    assert recorded["pack"].remaining == 1, "its first end was counted"


@pytest.mark.parametrize("how", ["retry", "retry_failed"])
async def test_a_retry_by_hand_lets_failed_children_run_anew(harness: StoreHarness, how: str) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 1)
    await end_child(harness, judged(Fail("no")))
    await harness.settle(await harness.take(tasks=("t",)), SETTLEMENTS["fail"])
    if how == "retry":
        await harness.store.admin.retry(lease.job_id)
    else:
        await harness.store.admin.retry_failed([lease.job_id])
    value = (await steps(harness, lease.job_id))["pack"].value
    assert value is not None
    assert json.loads(value) == {"size": 1, "attempts": -1}


async def test_a_canceled_parent_that_is_retried_finds_its_children_ended(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 2)
    await harness.store.admin.cancel(lease.job_id)
    await harness.store.admin.retry(lease.job_id)
    recorded = await steps(harness, lease.job_id)
    assert recorded["pack"].remaining == 0
    assert recorded["pack[0]"].error
    assert await claim_task(harness) is not None


async def test_a_failed_child_that_was_created_anew_is_not_counted_again(harness: StoreHarness) -> None:
    lease = await harness.start()
    (old,) = await call_children(harness, lease, 1)
    await end_child(harness, judged(Fail("no")))
    again = {"children": (NewJob(task="child"),), "places": (0,), "value": '{"size": 1}'}
    await wait(harness, await harness.take(tasks=("t",)), "pack", **again)
    await harness.store.admin.remove_jobs([old])
    assert (await steps(harness, lease.job_id))["pack"].remaining == 1
    await end_child(harness, with_result("2"))
    recorded = await steps(harness, lease.job_id)
    assert (recorded["pack"].remaining, recorded["pack[0]"].value) == (0, "2")


async def test_jobs_that_wait_without_end_are_not_due_next(harness: StoreHarness) -> None:
    await wait(harness, await harness.start(), "event:paid", event="paid")
    due = await harness.store.next_due(None)
    assert due is None or due > 365 * DAY


# -- the end of a job ---------------------------------------------------------------------------------------


async def test_steps_are_deleted_with_the_history_of_their_job(harness: StoreHarness) -> None:
    kept, gone = await harness.start("a"), await harness.start("b")
    for lease in (kept, gone):
        await record(harness, lease, "charge")
    await harness.settle(gone)
    await harness.heartbeats.maintain()
    assert await steps(harness, gone.job_id), "the history still has the job"
    await harness.pass_time(3 * DAY)
    await harness.heartbeats.maintain()
    assert not await steps(harness, gone.job_id)
    assert await steps(harness, kept.job_id)


async def test_without_a_history_steps_are_deleted_soon(forgetful_harness: StoreHarness) -> None:
    lease = await forgetful_harness.start()
    await record(forgetful_harness, lease, "charge")
    await forgetful_harness.settle(lease)
    await forgetful_harness.pass_time(2 * 3600)
    await forgetful_harness.heartbeats.maintain()
    assert not await steps(forgetful_harness, lease.job_id)


async def test_a_fork_has_the_steps_before_the_named_one(harness: StoreHarness) -> None:
    lease = await harness.start(payload='{"order": 7}', priority=3)
    await record(harness, lease, "charge", "1")
    await harness.pass_time(1)
    await record(harness, lease, "pack", "2")
    await harness.pass_time(1)
    await record(harness, lease, "mail", "3")
    await harness.settle(lease)
    fork = await workflows_of(harness).fork(lease.job_id, "pack")
    assert isinstance(fork, Job)
    assert (fork.task, fork.payload_text, fork.priority, fork.state) == ("t", '{"order": 7}', 3, State.QUEUED)
    assert fork.id != lease.job_id
    assert [step.name for step in await workflows_of(harness).read(fork.id)] == ["charge"]
    assert (await harness.take()).epoch > 1, "a first claim has the epoch 1, so its worker reads no steps"
    with pytest.raises(InvalidJob, match="nowhere"):
        await workflows_of(harness).fork(lease.job_id, "nowhere")
    assert await workflows_of(harness).fork(10**9, "pack") is None


async def test_a_fork_has_the_sleeps_that_are_over_and_no_pending_waits(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, "sleep", delay=60.0)
    await harness.pass_time(60.0)
    lease = await harness.take()
    await wait(harness, lease, "event:paid", event="paid")
    await harness.store.admin.retry(lease.job_id)
    await record(harness, await harness.take(), "mail")
    fork = await workflows_of(harness).fork(lease.job_id, "mail")
    assert fork is not None
    (step,) = await workflows_of(harness).read(fork.id)
    assert (step.name, step.is_over) == ("sleep", True)


async def test_a_workflow_that_is_replaced_under_its_key_starts_anew(harness: StoreHarness) -> None:
    lease = await harness.start(key="order")
    await record(harness, lease, "charge")
    ids = await call_children(harness, lease, 2)
    running = await harness.take(tasks=("child",))
    replaced = await harness.add("t", key="order")
    assert (replaced.id, replaced.waits_for) == (lease.job_id, None)
    assert not await steps(harness, lease.job_id)
    assert [(await harness.job(child)).state for child in ids if child != running.job_id] == [State.CANCELED]
    assert (await harness.job(running.job_id)).cancel_requested
    again = await harness.take(tasks=("t",))
    await call_children(harness, again, 2)
    await harness.settle(running, with_result('"old"'))
    recorded = await steps(harness, lease.job_id)
    assert recorded["pack"].remaining == 2
    assert "pack[0]" not in recorded


async def test_a_retried_job_keeps_its_steps(harness: StoreHarness) -> None:
    lease = await harness.start()
    await record(harness, lease, "charge", "1")
    await harness.settle(lease, SETTLEMENTS["fail"])
    await harness.store.admin.retry_jobs([lease.job_id])
    again = await harness.take()
    assert (await steps(harness, again.job_id))["charge"].value == "1"
    await harness.pass_time(LEASE)
    assert await harness.claim(token=new_token()) == []


# -- explanations -------------------------------------------------------------------------------------------


async def first_reason(harness: StoreHarness, job_id: int) -> tuple[str, str]:
    explanation = await harness.store.inspect.explain(job_id)
    assert explanation is not None
    return explanation.reasons[0].code, explanation.reasons[0].text


@needs("inspect")
async def test_explain_says_what_a_workflow_waits_for(harness: StoreHarness) -> None:
    lease = await harness.start()
    await wait(harness, lease, event="paid:42")
    code, text = await first_reason(harness, lease.job_id)
    assert code == "waits_for_event"
    assert text.startswith("it waits for the event 'paid:42' for ")
    assert text.endswith("; nothing has emitted it")
    sleeper = await harness.start()
    await wait(harness, sleeper, delay=DAY)
    code, text = await first_reason(harness, sleeper.job_id)
    assert code == "sleeps"
    assert text.startswith("it sleeps in its step 'pause' until ")


@needs("inspect")
async def test_explain_counts_the_children_that_a_workflow_waits_for(harness: StoreHarness) -> None:
    lease = await harness.start()
    await call_children(harness, lease, 3)
    await end_child(harness, judged(Fail("broken")))
    code, text = await first_reason(harness, lease.job_id)
    assert code == "waits_for_child_jobs"
    assert text.startswith("it waits for 2 of 3 children of its step 'pack' (1 failed), for ")
