"""Jobs beyond the worker: created, found, deleted, counted and forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import InvalidJob, SchemaMissing
from stowhand.flows.job import FlowJob
from stowhand.flows.new_job import Ids, new_job
from stowhand.flows.queue import QueueEngine
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.flow_shape import FlowShape, Queue
from stowhand.protocols.flow_tables import NewFlow
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import Verdict
from tests.conftest import Run
from tests.flows.queue.harness import Harness, MakeHarness

TWO = (Queue("first", next_queue="second"), Queue("second"))


def refuse(job: FlowJob) -> None:
    raise ValueError("no")


async def all_jobs(at: Harness) -> int:
    """Live and past steps, however they stand."""
    return sum((await at.store.inspect.counts()).values())


def test_ids_sort_by_when_they_were_made() -> None:
    ids = Ids()
    jobs = [ids.new() for _ in range(10_000)]
    assert jobs == sorted(jobs)
    assert len(set(jobs)) == len(jobs)
    assert {one[14] for one in jobs} == {"7"}
    assert {one[19] for one in jobs} <= set("89ab")


def test_jobs_are_found_by_each_value_of_their_lookups(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*TWO, lookup_attributes=("userId", "roleIds")) as at:
            ids = [await at.create({"userId": n % 2, "roleIds": [4, "five", 4, None], "other": 7}) for n in range(4)]
            assert await at.engine.ids("userId", "1") == [ids[1], ids[3]]
            assert await at.engine.ids("roleIds", "4") == await at.engine.ids("roleIds", "five") == ids
            for attribute, value in (("userId", "3"), ("other", "7"), ("roleIds", "[4]")):
                assert await at.engine.ids(attribute, value) == []

    run(story())


@pytest.mark.parametrize(
    "value", ["x" * 5000, "nul\x00", "line\nbreak", "ü" * 150], ids=["long", "nul", "line", "wide"]
)
def test_any_text_can_be_looked_up(harness: MakeHarness, run: Run, value: str) -> None:
    async def story() -> None:
        async with harness(*TWO, lookup_attributes=("name",)) as at:
            if "\x00" in value:
                assert await at.engine.ids("name", value) == []
                return
            job_id = await at.create({"name": value})
            assert await at.engine.ids("name", value) == [job_id]
            assert await at.engine.ids("name", value[:-1]) == []

    run(story())


def test_a_repeated_creation_changes_nothing(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*TWO) as at:
            step = NewJob(task="demo/first", key="flow:demo:a", payload='{"id":"a","flow":"demo"}')
            for _ in range(2):
                await at.engine._tables.create("demo", [NewFlow(id="a", step=step, lookups=(("k", "v"), ("k", "v")))])
            await at.step("first")
            await at.engine._tables.create("demo", [NewFlow(id="a", step=step)])
            assert (await at.due("first"), await at.due("second")) == (0, 1)
            assert await at.engine.ids("k", "v") == ["a"]

    run(story())


def test_many_are_created_all_or_none(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*TWO, lookup_attributes=("n",)) as at:
            shape = at.engine.shape
            ids = await at.engine.create_many([new_job(shape, {"n": n}) for n in range(1200)])
            assert list(ids) == sorted(set(ids))
            assert await at.due("first") == 1200
            assert await at.engine.ids("n", "1199") == [ids[-1]]
            too_large = new_job(shape, {"n": 1, "text": "x" * 600_000, "more": "x" * 600_000})
            with pytest.raises(InvalidJob):
                await at.engine.create_many([new_job(shape, {"n": 5000}), too_large])
            assert await at.due("first") == 1200
            assert await at.engine.ids("n", "5000") == []
            assert await at.engine.create_many([]) == []

    run(story())


def test_a_deleted_job_is_in_no_key(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*TWO, lookup_attributes=("n",)) as at:
            job_id, other = await at.create({"n": 1}), await at.create({"n": 1})
            await at.step("first")
            assert await at.engine.delete(job_id)
            assert not await at.engine.delete(job_id)
            assert not await at.engine.delete("none")
            assert await at.read(job_id) is None
            assert await at.begin("second") is None
            assert await at.engine.ids("n", "1") == [other]
            assert await all_jobs(at) == 1

    run(story())


def test_a_job_deleted_while_it_runs_calls_no_further_function(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("first", next_queue="second", max_retries=3), TWO[1]) as at:
            ended, failing = await at.create(), await at.create()
            runs = [await at.begin("first"), await at.begin("first", lambda job: 1 / 0)]
            assert await at.engine.delete(ended)
            assert await at.engine.delete(failing)
            for one in runs:
                assert one is not None
                recorded = await one.settle()
                assert recorded is Verdict.SETTLED or getattr(recorded, "state", None) is State.CANCELED
            assert await at.read(ended) is None
            called: list[object] = []
            assert not (await at.step("second", called.append)).settlement.then
            assert await at.begin("first", called.append) is None
            assert await at.begin("second", called.append) is None
            assert called == []
            assert await at.read(ended) is None
            assert await at.read(failing) is None

    run(story())


def test_counts_and_positions_follow_the_order_in_which_jobs_are_served(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("first", priorities=2), Queue("second"), layout="priority") as at:
            running = await at.create()
            await at.begin("first")
            low, high = await at.create(priority=2), await at.create()
            later, late = await at.create(delay=20.0), await at.create(delay=10.0, priority=2)
            shown = [(each.job_id, each.state, each.position) for each in await at.engine.positions("first", 9)]
            assert shown == [
                (running, "processing", 1),
                (high, "waiting", 1),
                (low, "waiting", 2),
                (late, "delayed", 1),
                (later, "delayed", 2),
            ]
            assert len(await at.engine.positions("first", 1)) == 3
            assert await at.engine.positions("second", 9) == []
            counted = {(one.queue, one.priority): one for one in await at.engine.counts()}
            assert counted.keys() == {("first", 1), ("first", 2), ("second", 1)}
            one, two = counted["first", 1], counted["first", 2]
            assert (one.waiting, one.processing, one.delayed, one.failed) == (1, 1, 1, 0)
            assert (two.waiting, two.processing, two.delayed, two.parked) == (1, 0, 1, 0)

    run(story())


def test_jobs_are_forgotten_when_no_step_is_left_of_them(harness: MakeHarness, run: Run) -> None:
    def bad(job: Any) -> None:
        raise ValueError("bad")

    async def story() -> None:
        async with harness(Queue("first"), lookup_attributes=("n",)) as at:
            ended, failed, waiting = [await at.create({"n": 1}) for _ in range(3)]
            await at.step("first")
            await at.step("first", bad)
            heartbeats = at.store.heartbeats()
            at.time.move(86_000.0)
            await heartbeats.maintain()
            assert await at.engine.ids("n", "1") == [ended, failed, waiting]
            at.time.move(2 * 86_400.0)
            for _ in range(2):  # the first prunes the history of days, the second sees that nothing is left
                await heartbeats.maintain()
                at.time.move(86_400.0 + 1.0)
            await heartbeats.close()
            assert await at.engine.ids("n", "1") == [failed, waiting]
            assert await at.read(ended) is None
            assert (await at.read(failed) or {})["failed"]
            assert await at.engine.retry([failed])
            assert len([await at.step("first") for _ in range(2)]) == 2

    run(story())


def test_a_flow_sees_no_jobs_of_another(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(*TWO, lookup_attributes=("n",)) as at:
            job_id = await at.create({"n": 1})
            other = QueueEngine(at.store, FlowShape(name="other", queues=TWO, lookup_attributes=("n",)))
            assert await other.read([job_id], resolve_children=False) == [None]
            assert await other.ids("n", "1") == []
            assert not await other.delete(job_id)
            assert sum(each.waiting for each in await other.counts()) == 0
            assert await at.due("first") == 1

    run(story())


def test_opening_installs_a_missing_schema(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        at = harness(*TWO)
        await at.store.schema.install()
        await at.store.schema.uninstall()
        with pytest.raises(SchemaMissing):
            await at.store.open()
        async with at:
            await at.create()
            assert await at.due("first") == 1

    run(story())


def test_a_failed_job_of_a_removed_queue_stays_failed(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("first", next_queue="gone"), Queue("gone")) as at:
            job_id = await at.create()
            await at.step("first")
            await at.step("gone", refuse)
            at.engine.shape = FlowShape(name="demo", queues=(Queue("first"),))
            (answer,) = await at.engine.retry([job_id])
            assert (answer.result, answer.reason) == (
                ActionResult.REFUSED,
                "it failed in 'gone', which is not a queue of this flow",
            )
            assert (await at.read(job_id) or {})["failedQueue"] == "gone"

    run(story())


def test_failed_children_are_listed_with_the_others(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("parent", children=(Queue("kid"),)), Queue("first")) as at:
            await at.create({"children:parent:params": [{"childName": "kid"}]})
            other = await at.create({"children:parent:params": 5})
            await at.step("parent")
            await at.step("parent")
            await at.step("parent:kid", refuse)
            (child,) = await at.engine.failed("parent:kid", after=None, limit=9)
            assert set(await at.engine.failed(None, after=None, limit=9)) == {child, other}
            first, last = await at.engine.failed(None, after=None, limit=9)
            assert await at.engine.failed(None, after=first, limit=9) == [last]

    run(story())
