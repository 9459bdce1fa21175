"""A job's way through its queues: what a step is given, what it leaves, and how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import InvalidJob, StoreUnreachable
from stowhand.flows.step_handler import DelayError
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import Fail, Snooze
from stowhand.protocols.flow_shape import Layout, Queue
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import StoreOptions, Verdict
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.flows.queue.harness import Harness, MakeHarness, ManualTime, recording

THREE = (
    Queue("first", next_queue="second", attributes_to_get=("userId", "n", "gone")),
    Queue("second", next_queue="third"),
    Queue("third"),
)


def test_a_job_passes_every_queue_once_and_keeps_every_result(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*THREE, lookup_attributes=("userId",)) as at:
            values: list[dict[str, Any]] = []

            job_id = await at.create({"userId": 1, "n": 3, "text": 'a "b"', "nothing": None}, correlation_id="corr-1")
            await at.step("first", recording(values, {"x": 1}))
            await at.step("second", recording(values, None))
            assert await at.read(job_id) == {
                "id": job_id,
                "userId": 1,
                "n": 3,
                "text": 'a "b"',
                "x": 1,
                "correlationId": "corr-1",
                "completed-queue": "second",
            }
            await at.step("third", recording(values, {"done": True, "n": 4}))
            end = {"id": job_id, "userId": 1, "text": 'a "b"', "x": 1, "correlationId": "corr-1", "n": 4}
            assert await at.read(job_id) == {**end, "done": True, "completed-queue": "third"}
            assert values[0] == {"id": job_id, "userId": 1, "n": 3, "gone": None}
            assert values[1]["completed-queue"] == "first"
            assert values[2]["completed-queue"] == "second"
            assert [await at.begin(queue) for queue in ("first", "second", "third")] == [None] * 3

    run(story())


def test_the_priority_layout_gives_the_jobs_own_facts_too(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        queues = Queue("first", attributes_to_get=("n",), priorities=2), *THREE[1:]
        async with harness(*queues, layout=Layout.PRIORITY) as at:
            values: list[dict[str, Any]] = []
            job_id = await at.create({"n": 3, "m": 4}, correlation_id="c", priority=2)
            await at.step("first", lambda job: values.append(dict(job)))
            assert values == [{"id": job_id, "n": 3, "flowName": "demo", "priority": 2, "correlationId": "c"}]

    run(story())


def test_unrequested_attributes_are_passed_on_unchanged(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*THREE) as at:
            await at.create({"big": 2**70, "text": "ü\u2028"})
            passed = await at.step("first")
            assert f'"big":{2**70},' in passed.settlement.then[0].payload
            assert (await at.begin("second")).claim.record.payload_text == passed.settlement.then[0].payload  # type: ignore[union-attr]

    run(story())


def test_a_result_chooses_the_next_queue_of_this_flow_or_fails_the_job(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        queues = (*THREE[:2], Queue("third", children=(Queue("kid"),)))
        async with harness(*queues) as at:
            chosen = await at.create()
            await at.step("first", lambda job: {"next_queue": "third"})
            assert (await at.due("second"), await at.due("third")) == (0, 1)
            for wrong in ("fourth", "third:kid"):
                job_id = await at.create()
                await at.step("first", recording([], {"x": 1, "next_queue": wrong}))
                job = await at.read(job_id)
                assert job is not None
                assert "x" not in job
                assert job["failedErrorMsg"] == f"the next queue {wrong!r} is not a queue of flow 'demo'"
            assert (await at.read(chosen) or {})["completed-queue"] == "first"

    run(story())


def test_a_priority_changes_on_the_way_and_stays_within_the_next_queues(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        queues = (
            Queue("first", next_queue="second", priorities=3, priority_change=2),
            Queue("second", next_queue="third", priorities=4, priority_change=-9),
            Queue("third", priorities=2),
        )
        async with harness(*queues, layout=Layout.PRIORITY) as at:
            late, soon = await at.create(priority=3), await at.create(priority=1)
            order = [(await at.step("first")).claim.record for _ in range(2)]
            assert [record.priority for record in order] == [1, 3]
            assert [(await at.step("second")).claim.record.priority for _ in range(2)] == [3, 4]
            assert [each.priority for each in await at.engine.positions("third", 9)] == [1, 1]
            assert [each.job_id for each in await at.engine.positions("third", 9)] == [soon, late]

    run(story())


def test_a_failed_job_says_where_and_why_and_can_be_retried_there(harness: MakeHarness, run: Run) -> None:
    def bad(job: Any) -> None:
        raise ValueError("ten is bad")

    async def story() -> None:
        queues = (THREE[0], Queue("second", next_queue="third", max_retries=1), THREE[2])
        async with harness(*queues) as at:
            job_id, other = await at.create({"n": 10}), await at.create()
            await at.step("first")
            first = await at.step("second", bad)
            assert first.settlement.state is State.ERRORED
            assert first.settlement.delay == 0
            assert (await at.read(job_id) or {})["retries:second"] == 1
            await at.step("second", bad)
            failed = {"done": True, "failed": True, "failedQueue": "second", "failedErrorMsg": "ten is bad"}
            assert (await at.read(job_id) or {}).items() >= (failed | {"retries:second": 1}).items()
            assert await at.engine.failed(None, after=None, limit=9) == [job_id]
            assert await at.engine.failed("second", after=None, limit=9) == [job_id]
            assert await at.engine.failed("second", after=job_id, limit=9) == []
            assert await at.engine.failed("first", after=None, limit=9) == []
            answers = await at.engine.retry([job_id, other, "none"])
            assert [answer.result for answer in answers] == [
                ActionResult.DONE,
                ActionResult.REFUSED,
                ActionResult.MISSING,
            ]
            job = await at.read(job_id)
            assert job is not None
            assert not job.keys() & {*failed, "retries:second"}
            await at.step("second")
            assert await at.due("third") == 1

    run(story())


def test_a_job_canceled_by_hand_has_failed_and_can_be_retried(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*THREE) as at:
            job_id = await at.create({"n": 1})
            await at.step("first")
            ((found,),) = [await at.engine._tables.latest([f"flow:demo:{job_id}"])]
            assert found is not None
            await at.store.admin.cancel(found.id)
            job = await at.read(job_id)
            assert job is not None
            assert job["canceled"]
            assert job["failedQueue"] == "second"
            assert [answer.result for answer in await at.engine.retry([job_id])] == [ActionResult.DONE]
            await at.step("second")
            assert await at.due("third") == 1

    run(story())


@pytest.mark.parametrize("queue", ["second", "third"])
def test_results_that_make_a_job_too_large_fail_the_step_with_that_reason(
    harness: MakeHarness, run: Run, queue: str
) -> None:
    async def story() -> None:
        async with harness(*THREE) as at:
            job_id = await at.create({"text": "x" * 600_000})
            for before in ("first", "second"):
                if before == queue:
                    break
                await at.step(before)
            await at.step(queue, lambda job: {"more": "y" * 500_000})
            job = await at.read(job_id)
            assert job is not None
            assert job["failedQueue"] == queue
            assert "more" not in job
            assert "the job's attributes together: 11" in job["failedErrorMsg"]
            assert "the limit is 1048576" in job["failedErrorMsg"]
            with pytest.raises(InvalidJob, match="the limit is 1048576"):
                await at.create({"text": "x" * 600_000, "more": "y" * 500_000})

    run(story())


def test_a_delay_uses_no_attempt(harness: MakeHarness, run: Run) -> None:
    def later(job: Any) -> None:
        raise DelayError("not yet", 60.0)

    async def story() -> None:
        async with harness(Queue("first", delayable=True)) as at:
            job_id = await at.create(delay=5.0)
            assert await at.begin("first") is None
            assert await at.states("first") == {"delayed": 1}
            at.time.move(5.0)
            await at.step("first", later)
            (place,) = await at.engine.positions("first", 9)
            assert (place.state, place.ready_at) == ("delayed", at.time.now().timestamp() + 60.0)
            at.time.move(60.0)
            last = await at.step("first")
            assert last.claim.attempts == 1
            assert (await at.read(job_id) or {})["completed-queue"] == "first"

    run(story())


def test_a_payload_that_cannot_be_read_fails_alone(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*THREE) as at:
            await at.store.jobs.enqueue(NewJob(task="demo/first", payload="[1]", priority=0))
            job_id = await at.create()
            broken = await at.step("first")
            assert isinstance(broken.outcome, Fail)
            assert broken.outcome.poison
            await at.step("first")
            assert (await at.read(job_id) or {})["completed-queue"] == "first"

    run(story())


def test_an_outage_uses_no_attempt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        time = ManualTime()
        async with Harness(MemoryStore(options=StoreOptions(pinned=time.now)), time, THREE, {}) as at:
            await at.create()

            async def silent(ids: object) -> set[str]:
                raise StoreUnreachable("no answer")

            with monkeypatch.context() as outage:
                outage.setattr(at.engine._tables, "exists", silent)
                called: list[object] = []
                put_off = await at.step("first", called.append)
                assert put_off.outcome == Snooze(2.0)
                assert not called
            time.move(2.0)
            assert (await at.step("first")).claim.attempts == 1

    run(story())


def test_a_settlement_whose_reply_was_lost_moves_the_job_once(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*THREE) as at:
            await at.create()
            first = await at.begin("first")
            assert first is not None
            assert await first.settle() is Verdict.SETTLED
            assert await first.settle(repeat=True) is Verdict.ALREADY_SETTLED
            await at.step("second")
            assert await first.settle(repeat=True) is Verdict.ALREADY_SETTLED
            assert (await at.due("second"), await at.due("third")) == (0, 1)

    run(story())


def test_a_crash_before_the_settlement_repeats_only_that_step(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(THREE[0], Queue("second", next_queue="third", max_resets=3), THREE[2]) as at:
            job_id = await at.create()
            await at.step("first")
            zombie = await at.begin("second", lambda job: {"by": "the dead"})
            assert zombie is not None
            assert await at.due("third") == 0
            at.time.move(100.0)
            assert await at.engine.sweep() == 1
            again = await at.step("second", lambda job: {"by": "the living"})
            assert again.claim.lease.job_id == zombie.claim.lease.job_id
            assert await zombie.settle() is Verdict.LOST
            assert await at.due("third") == 1
            await at.step("third")
            assert (await at.read(job_id) or {})["by"] == "the living"

    run(story())


def test_a_worker_that_dies_too_often_fails_the_job_in_its_queue(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*THREE) as at:
            job_id = await at.create()
            await at.step("first")
            await at.begin("second")
            at.time.move(100.0)
            await at.engine.sweep()
            job = await at.read(job_id)
            assert job is not None
            assert job["failedQueue"] == "second"
            assert job["failedErrorMsg"] == "its worker died 1 time while running it"

    run(story())
