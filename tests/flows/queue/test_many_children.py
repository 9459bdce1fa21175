"""Parents with very many children: neither they nor what they are given are carried by the parent's steps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stowhand.flows.queue import parents
from stowhand.flows.queue.step import ChildSet, key_of
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement, Snooze
from stowhand.protocols.flow_shape import Queue
from stowhand.protocols.flow_tables import ParentWakeup
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.flows.queue.harness import Harness, MakeHarness, recording

MANY = 8_500
PARAMS, NAMES = "children:parent:params", "children:parent:jobs"
COMPLETED = Settlement(state=State.COMPLETED, ended=AttemptOutcome.OK)
KIDS = (Queue("kid"), Queue("other"))
LONG = [{"childName": "kid", "text": "x" * 70_000}]


async def end(at: Harness, queue: str, limit: int) -> int:
    """Complete some, without calling anybody."""
    claims = await at.claim(queue, limit)
    await at.store.settle([(claim.lease, COMPLETED) for claim in claims])
    return len(claims)


async def payload_of(at: Harness, job_id: str) -> str:
    (job,) = await at.engine._tables.latest([key_of("demo", job_id)])
    assert job is not None
    return job.payload_text


def test_a_parent_may_have_more_children_than_a_payload_could_list(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("parent", children=KIDS)) as at:
            many = 200 if isinstance(at.store, MemoryStore) else MANY
            params = [{"childName": "other" if n == 7 else "kid", "n": n} for n in range(many)]
            job_id = await at.create({PARAMS: params})
            await at.step("parent")
            assert await at.due("parent:kid") == many - 1
            assert len(await payload_of(at, job_id)) < 10_000
            job = await at.read(job_id)
            assert job is not None
            assert job[PARAMS] == params
            assert len(set(job[NAMES])) == many
            pages = [await at.engine.children(job_id, "parent", start, 3) for start in (6, many - 2, many)]
            assert [[child["n"] for child in page] for page in pages] == [[6, 7, 8], [many - 2, many - 1], []]
            assert pages[0][1]["id"].startswith("parent:other:")

    run(story())


def test_a_parent_waits_for_children_of_both_kinds(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("parent", gather=False, children=KIDS)) as at:
            job_id = await at.create({PARAMS: [{"childName": name} for name in ("kid", "other", "kid", "kid")]})
            await at.step("parent")
            wake, key = at.engine._tables.wake, key_of("demo", job_id)
            assert await end(at, "parent:kid", 9) == 3
            assert await wake(key) is ParentWakeup.OPEN
            at.time.move(2.0)
            assert isinstance((await at.step("parent")).outcome, Snooze), "it looks by itself"
            assert await end(at, "parent:other", 9) == 1
            assert await wake(key) is ParentWakeup.WOKEN
            await at.step("parent")
            assert (await at.read(job_id) or {})["completed-queue"] == "parent"

    run(story())


@pytest.mark.parametrize("how", ["created", "result"])
def test_a_long_list_of_parameters_is_stored_separately_and_read_by_all(
    harness: MakeHarness, run: Run, how: str
) -> None:
    async def story() -> None:
        queues = Queue("first", next_queue="parent"), Queue("parent", next_queue="after", children=KIDS)
        async with harness(*queues, Queue("after", (PARAMS, "m"))) as at:
            job_id = await at.create({"m": 1} | ({PARAMS: LONG} if how == "created" else {}))
            await at.step("first", lambda job: {PARAMS: LONG} if how == "result" else {})
            assert len(await payload_of(at, job_id)) < 1000
            assert (await at.read(job_id) or {})[PARAMS] == LONG
            await at.step("parent")
            await at.step("parent:kid", lambda job: {"length": len(job["text"])})
            await at.step("parent")
            values: list[dict[str, Any]] = []
            await at.step("after", recording(values, {}))
            assert values == [{"id": job_id, PARAMS: LONG, "m": 1}]
            (child,) = await at.engine.children(job_id, "parent", 0, 9)
            assert child["length"] == 70_000

    run(story())


def test_a_separate_list_is_deleted_with_its_job(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("parent", children=KIDS)) as at:
            job_id = await at.create({PARAMS: LONG})
            (list_id,) = msgspec.json.decode(await payload_of(at, job_id))["apart"].values()
            tables = at.engine._tables
            assert await tables.read_list(list_id)
            assert await at.engine.delete(job_id)
            assert await tables.read_list(list_id) is None
            await tables.store_lists(job_id, [("late", "[]")])
            assert await tables.read_list("late") is None, "a zombie's, of a job that is deleted"

    run(story())


def test_results_are_gathered_page_by_page_in_their_order(
    harness: MakeHarness, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parents, "PAGE_SIZE", 2)

    async def story() -> None:
        async with harness(Queue("parent", children=KIDS)) as at:
            job_id = await at.create({PARAMS: [{"childName": "kid", "n": n} for n in range(5)]})
            await at.step("parent")
            assert await end(at, "parent:kid", 5) == 5
            at.time.move(2.0)
            await at.step("parent")
            result = (await at.read(job_id) or {})["children:parent:results"]
            assert [child["n"] for child in result] == [0, 1, 2, 3, 4]

    run(story())


def test_the_ids_of_children_are_read_in_pages_across_their_kinds() -> None:
    child_set = ChildSet.of("s", ["a", "a", "b", "a"])
    assert child_set.kinds == ("a", "b")
    assert child_set.ids() == ["a:s000000", "a:s000001", "b:s000002", "a:s000003"]
    assert child_set.ids(1, 2) == ["a:s000001", "b:s000002"]
    assert child_set.ids(4, 2) == []
    assert child_set.all == ("a:s", "b:s")
