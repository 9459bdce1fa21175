"""What bounds a flow: limiters, names, and the stores that can keep one."""

from __future__ import annotations

import pytest

from stowhand.errors import ConfigurationError
from stowhand.flows.queue import QueueEngine
from stowhand.jobs.lifecycle import Snooze
from stowhand.jobs.limits import MAX_TASK_CHARACTERS
from stowhand.protocols.flow_shape import NAME_LIMIT, FlowShape, Limiter, Queue
from stowhand.stores.url import open_store
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.flows.queue.harness import MakeHarness

THREE = (
    Queue("first", next_queue="second", attributes_to_get=("userId", "n", "gone")),
    Queue("second", next_queue="third"),
    Queue("third"),
)


def test_a_limiter_starts_its_reservoir_in_a_window_and_delays_the_others(harness: MakeHarness, run: Run) -> None:
    """Reservoir 3 per 3 s and group, 60 jobs in 4 groups."""

    async def story() -> None:
        queues = (Queue("first", limiter=Limiter(reservoir=3, interval=3.0, group_by="guild")),)
        async with harness(*queues) as at:
            jobs = [new for n in range(60) for new in [{"guild": n % 4}]]
            for attributes in jobs:
                await at.create(attributes)
            ran: list[float] = []
            start = at.time.now().timestamp()
            for _ in range(60):
                await at.step("first", lambda job: ran.append(job["guild"]))
            assert sorted(ran) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
            assert await at.states("first") == {"delayed": 48}
            waits = sorted((place.ready_at or 0.0) - start for place in await at.engine.positions("first", 100))
            assert [round(wait) for wait in waits] == [3] * 12 + [6] * 12 + [9] * 12 + [12] * 12
            for window in range(1, 5):
                at.time.move(3.0)
                for _ in range(12):
                    await at.step("first", lambda job: ran.append(job["guild"]))
                assert len(ran) == 12 * (window + 1)
                assert await at.begin("first") is None
            assert await at.states("first") == {}

    run(story())


def test_after_a_pause_of_the_workers_each_window_is_filled_and_no_more(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("first", limiter=Limiter(reservoir=3, interval=2.0))) as at:
            ran: list[str] = []
            for _ in range(18):
                await at.create()
            for _ in range(18):
                await at.step("first", lambda job: ran.append(job.id))
            assert len(ran) == 3
            at.time.move(100.0)  # nobody worked: all of them are overdue
            late = await at.create()
            for window in range(2, 7):
                while await at.states("first") != {} and "waiting" in await at.states("first"):
                    await at.step("first", lambda job: ran.append(job.id))
                assert len(ran) == 3 * window
                at.time.move(2.0)
            assert late not in ran, "who is new does not pass while others wait"

    run(story())


def test_a_deleted_delayed_job_is_forgotten_by_its_limiter(harness: MakeHarness, run: Run) -> None:
    async def story() -> None:
        async with harness(Queue("first", limiter=Limiter(reservoir=1, interval=2.0))) as at:
            gone = [await at.create() for _ in range(4)]
            for _ in range(4):
                await at.step("first")
            for job_id in gone:
                assert await at.engine.delete(job_id)
            at.time.move(100.0)
            for _ in range(2):
                await at.create()
            await at.step("first")
            late = await at.step("first")
            assert isinstance(late.outcome, Snooze)
            assert late.settlement.delay <= 2.0

    run(story())


def test_the_longest_names_there_may_be_make_a_task_s_name() -> None:
    longest = "n" * NAME_LIMIT
    shape = FlowShape(name=longest, queues=(Queue(longest, children=(Queue(longest),)),))
    tasks = [QueueEngine(MemoryStore(), shape).task(queue) for queue in shape.all_queues()]
    assert max(map(len, tasks)) <= MAX_TASK_CHARACTERS


def test_a_lent_store_is_refused() -> None:
    shape = FlowShape(name="demo", queues=THREE)
    with pytest.raises(ConfigurationError, match="not over HTTP"):
        QueueEngine(open_store("https://example.org"), shape)


@pytest.mark.parametrize("parents", [False, True], ids=["plain", "parents"])
def test_without_a_history_flows_are_warned_of_and_parents_refused(
    harness: MakeHarness, run: Run, parents: bool
) -> None:
    async def story() -> None:
        children = (Queue("kid"),) if parents else ()
        at = harness(Queue("first", children=children), history=None)
        try:
            if parents:
                with pytest.raises(ConfigurationError, match="has parents, but"):
                    await at.engine.open()
                return
            (warning,) = await at.engine.open()
            assert "a finished job is deleted at once" in warning
            job_id = await at.create({"n": 1})
            assert (await at.read(job_id) or {})["n"] == 1
            await at.step("first")
            assert await at.read(job_id) is None
        finally:
            await at.store.close()

    run(story())
