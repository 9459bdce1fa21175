"""Parents: they fan out, wait without a slot, and gather."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stowhand.flows.new_job import Ids
from stowhand.flows.queue.parents import Parents
from stowhand.flows.queue.step import ParentLink
from stowhand.jobs.lifecycle import Snooze
from stowhand.protocols.flow_shape import FlowShape, Limiter, Queue
from stowhand.protocols.flow_tables import PARKED_FLAG, FlowTables, ParentWakeup
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import Verdict
from tests.conftest import Run
from tests.flows.queue.harness import Harness, MakeHarness, recording

KIDS = (
    Queue(
        "parent", next_queue="after", children=(Queue("kid", max_retries=1), Queue("other", priorities=2)), priorities=2
    ),
    Queue("after"),
)
NAMES = "children:parent:jobs"
RESULTS = "children:parent:results"


def params(*children: dict[str, Any]) -> dict[str, Any]:
    return {"children:parent:params": list(children)}


async def made(harness: MakeHarness) -> Harness:
    return harness(*KIDS, layout="priority")


async def results_of(at: Harness, job_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await at.read(job_id) or {})[RESULTS]
    return rows


def test_a_parent_fans_out_waits_without_a_slot_and_gathers_in_order(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(
                params({"childName": "kid", "n": 1}, {"childName": "other", "n": 2, "priority": 2}) | {"m": 1},
                correlation_id="corr",
            )
            await at.step("parent")
            assert await at.states("parent") == {"parked": 1}
            assert [each.state for each in await at.engine.positions("parent", 9)] == ["parked"]
            values: list[dict[str, Any]] = []
            await at.step("parent:other", recording(values, {"r": 20}))
            assert values[0].items() >= {"n": 2, "priority": 2, "correlationId": "corr"}.items()
            assert values[0]["flowName"] == "parent:other"
            assert "childName" not in values[0]
            assert await at.states("parent") == {"parked": 1}
            await at.step("parent:kid", lambda job: {"r": 10})
            assert await at.states("parent") == {"waiting": 1}
            await at.step("parent")
            one, two = await results_of(at, job_id)
            assert one.items() >= {"n": 1, "r": 10, "done": True, "completed-queue": "parent:kid"}.items()
            assert two.items() >= {"n": 2, "r": 20, "done": True, "completed-queue": "parent:other"}.items()
            job = await at.read(job_id, resolve=True)
            assert job is not None
            assert job[NAMES] == [one, two]
            assert job["completed-queue"] == "parent"
            assert (await at.read(job_id) or {})[NAMES] == [f"job:{one['id']}", f"job:{two['id']}"]
            assert one["id"].startswith("parent:kid:")
            await at.step("after")

    run(story())


def test_a_permanently_failed_child_is_gathered_with_its_reason(harness: MakeHarness, run: Run) -> None:
    def bad(job: Any) -> None:
        raise ValueError("one is bad")

    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(params({"childName": "kid"}))
            await at.step("parent")
            await at.step("parent:kid", bad)
            assert await at.states("parent") == {"parked": 1}
            (child,) = [name.removeprefix("job:") for name in (await at.read(job_id) or {})[NAMES]]
            await at.step("parent:kid", bad)
            assert await at.engine.failed("parent:kid", after=None, limit=9) == [child]
            assert await at.engine.failed(None, after=None, limit=9) == [child]
            await at.step("parent")
            (result,) = await results_of(at, job_id)
            failed = {"done": True, "failed": True, "failedQueue": "parent:kid", "failedErrorMsg": "one is bad"}
            assert result.items() >= failed.items()
            (answer,) = await at.engine.retry([child])
            assert (answer.result, answer.reason) == (ActionResult.REFUSED, "its parent has continued without it")

    run(story())


def test_a_failed_child_may_be_retried_while_its_parent_waits(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(params({"childName": "other"}, {"childName": "other"}))
            await at.step("parent")
            await at.step("parent:other", lambda job: {"next_queue": "a child has none"})
            (child,) = await at.engine.failed("parent:other", after=None, limit=9)
            assert [answer.result for answer in await at.engine.retry([child])] == [ActionResult.DONE]
            for _ in range(2):
                await at.step("parent:other")
            await at.step("parent")
            assert [result.get("failed") for result in await results_of(at, job_id)] == [None, None]

    run(story())


@pytest.mark.parametrize(
    "given", [None, [], [{"childName": "stranger"}, 7, {"n": 1}]], ids=["none", "empty", "unknown"]
)
def test_a_parent_without_children_completes_at_once(harness: MakeHarness, run: Run, given: Any) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create({"children:parent:params": given})
            await at.step("parent")
            assert await results_of(at, job_id) == (await at.read(job_id) or {})[NAMES] == []
            assert await at.due("after") == 1

    run(story())


def test_params_that_are_no_list_fail_the_parent(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create({"children:parent:params": {"childName": "kid"}})
            await at.step("parent")
            assert (await at.read(job_id) or {})["failedErrorMsg"] == "children:parent:params is not a list of objects"

    run(story())


def test_a_parent_whose_worker_dies_creates_its_children_once(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        queues = Queue("parent", children=KIDS[0].children, max_resets=2), KIDS[1]
        async with harness(*queues, layout="priority") as at:
            await at.create(params({"childName": "kid"}))
            zombie = await at.begin("parent")
            at.time.move(100.0)
            assert await at.engine.sweep() == 1
            await at.step("parent")
            assert zombie is not None
            assert await zombie.settle() is Verdict.LOST
            assert await at.due("parent:kid") == 1

    run(story())


def test_two_last_children_at_once_wake_the_parent(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            await at.create(params(*[{"childName": "other"}] * 2))
            await at.step("parent")
            runs = [await at.begin("parent:other"), await at.begin("parent:other")]
            both = [one for one in runs if one is not None]
            await at.store.settle([(one.lease, one.settlement) for one in both])
            await asyncio.gather(*(one.wake_parent() for one in both))
            await at.step("parent")
            assert await at.due("after") == 1

    run(story())


def test_a_child_that_ends_while_its_parent_checks_wakes_it_again(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            await at.create(params({"childName": "other"}))
            await at.step("parent")
            at.time.move(2.0)
            looking = await at.begin("parent")
            assert looking is not None
            assert looking.outcome == Snooze(2.0)
            child = await at.begin("parent:other")
            assert child is not None
            assert await child.settle() is Verdict.SETTLED
            telling = asyncio.ensure_future(child.wake_parent())
            await asyncio.wait([telling], timeout=0.08)
            assert not telling.done()
            assert await looking.settle() is Verdict.SETTLED
            await telling
            assert await at.states("parent") == {"waiting": 1}
            await at.step("parent")
            assert await at.due("after") == 1

    run(story())


@pytest.mark.parametrize("how", ["died", "removed"])
def test_a_parent_checks_its_children_without_a_wake_up(harness: MakeHarness, run: Run, how: str) -> None:
    """The child fails after lost workers, or was removed by hand."""

    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(params({"childName": "other"}))
            await at.step("parent")
            (child,) = (await at.read(job_id) or {})[NAMES]
            pauses = []
            for wait in (2.0, 2.0, 100.0, 26.0):
                at.time.move(wait)
                last = await at.step("parent")
                assert isinstance(last.outcome, Snooze)
                pauses.append(last.settlement.delay)
            assert pauses == [2.0, 2.0, 26.0, 30.0]
            if how == "died":
                await at.begin("parent:other")
                at.time.move(31.0 + 30.0)
                assert await at.engine.sweep() == 1
            else:
                await at.store.admin.remove_key(child.replace("job:", "flow:", 1))
                at.time.move(31.0)
            await at.step("parent")
            (result,) = await results_of(at, job_id)
            assert result["failed"]
            assert result["done"]
            assert result["id"] == child.removeprefix("job:")
            words = {"died": "its worker died 1 time", "removed": "it was removed"}
            assert result["failedErrorMsg"].startswith(words[how])

    run(story())


def test_a_deleted_parent_deletes_its_children(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(params({"childName": "kid"}, {"childName": "other"}))
            await at.step("parent")
            running = await at.begin("parent:kid")
            assert running is not None
            assert await at.engine.delete(job_id)
            assert await running.settle() is Verdict.SETTLED
            await running.wake_parent()
            for queue in ("parent", "parent:kid", "parent:other"):
                assert await at.states(queue) == {}
            (child,) = [each.lease.job_id for each in [running]]
            assert await at.store.jobs.get(child) is not None
            assert await at.read(job_id) is None
            assert await at.read(running.claim.record.key.removeprefix("flow:")) is None

    run(story())


def test_children_of_a_parent_deleted_while_it_fanned_out_are_not_called(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(params({"childName": "kid"}))
            fanning = await at.begin("parent")
            assert fanning is not None
            assert await at.engine.delete(job_id)
            assert await fanning.settle() is Verdict.SETTLED
            called: list[object] = []
            await at.step("parent:kid", called.append)
            await at.step("parent")
            assert called == []
            assert await at.due("after") == 0

    run(story())


def test_results_of_children_that_are_too_large_together_are_left_apart_and_read_in_pages(
    harness: MakeHarness, run: Run
) -> None:
    async def story() -> None:
        async with await made(harness) as at:
            job_id = await at.create(params(*[{"childName": "other", "n": n} for n in range(3)]))
            await at.step("parent")
            for _ in range(3):
                await at.step("parent:other", lambda job: {"text": "x" * 600_000})
            await at.step("parent")
            assert await results_of(at, job_id) == []
            pages = [await at.engine.children(job_id, "parent", start, 2) for start in (0, 2, 4)]
            assert [[(child["n"], len(child["text"])) for child in page] for page in pages] == [
                [(0, 600_000), (1, 600_000)], [(2, 600_000)], [],
            ]  # fmt: skip

    run(story())


def test_a_parent_without_gather_has_empty_results(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("parent", gather=False, children=(Queue("kid"),))) as at:
            job_id = await at.create(params(*[{"childName": "kid"}] * 2))
            await at.step("parent")
            for _ in range(2):
                await at.step("parent:kid", lambda job: {"done_by": len(job.id)})
            await at.step("parent")
            assert await results_of(at, job_id) == []
            assert all(child["done_by"] for child in await at.engine.children(job_id, "parent", 0, 10))

    run(story())


def test_the_ends_of_many_children_are_few_questions_about_their_parent(run: Run) -> None:
    calls: list[str] = []

    class Slow:
        async def wake(self, key: str) -> ParentWakeup:
            calls.append(key)
            await asyncio.sleep(0.01)
            return ParentWakeup.OPEN

    async def story() -> None:
        children = Parents(FlowShape(name="f", queues=(Queue("q"),)), cast("FlowTables", Slow()), Ids())
        for _ in range(100):
            await children.child_ended(ParentLink("1", "q"))
        assert len(calls) == 1
        await asyncio.wait(list(children._waking.values()))
        assert len(calls) == 2, "and once more after the last"
        await children.close()

    run(story())


def test_a_parent_counts_once_for_its_limiter(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        limiter = Limiter(reservoir=1, interval=3600.0)
        async with harness(Queue("parent", limiter=limiter, children=(Queue("kid"),))) as at:
            job_id = await at.create(params({"childName": "kid"}))
            await at.step("parent")
            await at.step("parent:kid")
            await at.step("parent")
            assert len(await results_of(at, job_id)) == 1
            await at.create(params({"childName": "kid"}))
            assert isinstance((await at.step("parent")).outcome, Snooze)

    run(story())


def test_a_parent_that_waits_says_so_and_is_not_completed_by_hand(harness: MakeHarness, run: Run) -> None:
    """Its next queue would be left out, and the flow would end as if it were well."""

    async def story() -> None:
        async with await made(harness) as at:
            await at.create(params({"childName": "kid", "n": 1}))
            await at.step("parent")
            inspect, admin = at.store.inspect, at.store.admin
            (parent,) = (job for job in await inspect.list() if PARKED_FLAG in job.flags)
            explained = await inspect.explain(parent.id)
            assert explained is not None
            assert "waits_for_children" in [reason.code for reason in explained.reasons]
            assert list(await admin.complete_jobs([job.id for job in await inspect.list()])) == []
            await at.step("parent:kid", lambda job: {"r": 10})
            await at.step("parent")
            await at.step("after")

    run(story())
