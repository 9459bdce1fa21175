"""Real workers on a flow, all of them on one store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from stowhand.clock import stopwatch
from stowhand.errors import StoreUnreachable
from stowhand.flows.flow import Flow
from stowhand.flows.job import FlowJob
from stowhand.flows.queue import QueueEngine, parents
from stowhand.flows.queue.store import FlowQueueStore, SharedListener
from stowhand.jobs.job import NewJob
from stowhand.protocols import options
from stowhand.protocols.flow_shape import FlowShape, Queue
from stowhand.protocols.store import Terms
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.support.memory_rows import look

NAMES = ("first", "second", "third", "fourth", "fifth")
FIVE = [Queue(name, next_queue=following) for name, following in zip(NAMES, (*NAMES[1:], None), strict=True)]


@asynccontextmanager
async def at_work(place: str, *queues: Queue, **functions: Any) -> AsyncIterator[Flow]:
    flow = Flow("demo", MemoryStore() if place == "memory" else place, queues=queues)
    for queue in flow.shape.all_queues():
        if queue.is_parent:
            flow.create_parent_workers(queue.name)
        else:
            flow.create_workers(queue.name, functions.get(queue.declared.name, lambda job: None), count=2)
    async with flow:
        await flow.start_all()
        yield flow


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    while not await reached():  # noqa: ASYNC110 - asked of the store
        await asyncio.sleep(0.02)


async def ended(flow: Flow, ids: list[str], queue: str) -> bool:
    return all((job or {}).get("completed-queue") == queue for job in await flow.get_jobs(ids))


def test_every_job_passes_every_queue_once(place: str, run: Run) -> None:
    passed: Counter[tuple[str, str]] = Counter()

    def step(job: FlowJob) -> dict[str, Any]:
        passed[job.id, job.queue] += 1
        return {job.queue: job["n"]}

    async def story() -> None:
        async with at_work(place, *FIVE, **dict.fromkeys(NAMES, step)) as flow:
            ids = await flow.create_jobs([{"n": n} for n in range(40)])
            await until(lambda: ended(flow, ids, "fifth"))
            for n, job in enumerate(await flow.get_jobs(ids)):
                assert job is not None
                assert {name: job[name] for name in NAMES} == dict.fromkeys(NAMES, n)
            assert set(passed.values()) == {1}
            assert len(passed) == 200

    run(story())


def test_every_idle_worker_of_the_flow_is_woken(place: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them listens; a job's way through five queues takes less than one poll."""
    monkeypatch.setattr(options, "LISTENING_POLL_SECONDS", 600.0)

    async def story() -> None:
        async with at_work(place, *FIVE) as flow:
            await until_idle(flow)
            job_id = await flow.create_job()
            await until(lambda: ended(flow, [job_id], "fifth"))

    run(story())


async def until_idle(flow: Flow) -> None:
    """Until every worker waits."""
    engine = flow.engine
    assert isinstance(engine, QueueEngine)

    async def waiting() -> bool:
        return len(engine._listener._sleepers) == len(flow.workers)

    await until(waiting)


def test_the_end_of_the_last_child_wakes_its_parent(place: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parents, "FIRST_CHECK_SECONDS", 600.0)
    monkeypatch.setattr(parents, "MAX_CHECK_SECONDS", 600.0)
    queues = Queue("first", next_queue="second"), Queue("second", children=(Queue("kid"),))

    def first(job: FlowJob) -> dict[str, Any]:
        return {"children:second:params": [{"childName": "kid", "n": n} for n in range(12)]}

    def kid(job: FlowJob) -> dict[str, Any]:
        return {"r": job["n"] * 2}

    async def story() -> None:
        async with at_work(place, *queues, first=first, kid=kid) as flow:
            ids = await flow.create_jobs([{} for _ in range(5)])
            await until(lambda: ended(flow, ids, "second"))
            for job in await flow.get_jobs(ids):
                assert job is not None
                assert [each["r"] for each in job["children:second:results"]] == [2 * n for n in range(12)]

    run(story())


def test_a_stopped_flow_continues_after_a_restart(place: str, run: Run) -> None:
    async def story() -> None:
        async with at_work(place, *FIVE) as flow:
            await flow.stop_all()
            job_id = await flow.create_job()
            await flow.start_all()
            await until(lambda: ended(flow, [job_id], "fifth"))

    run(story())


def test_five_queues_share_their_connections(flow_database: str, run: Run) -> None:
    """One to claim, one to settle, one to listen; a heart each; and the pool for the rest."""

    async def story() -> None:
        async with at_work(flow_database, *FIVE) as flow:
            job_id = await flow.create_job()
            await until(lambda: ended(flow, [job_id], "fifth"))
            await until_idle(flow)
            async with await psycopg.AsyncConnection.connect(flow_database, autocommit=True) as connection:
                # Hearts connect on threads of their own, and the server lets go of what tests before this have closed.
                patience = stopwatch() + 20
                while not as_few(found := await connections(connection)) and stopwatch() < patience:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert as_few(found), found

    def as_few(found: Counter[str]) -> bool:
        once = found["claim"] == found["settle"] == found["listen"] == 1
        return once and found["heart"] == len(FIVE) and found.total() <= 3 + len(FIVE) + 6

    run(story())


async def connections(look: psycopg.AsyncConnection[Any]) -> Counter[str]:
    """How many there are of each kind."""
    names = await look.execute(
        "select split_part(application_name, ':', 2) from pg_stat_activity"
        " where datname = current_database() and application_name like 'stowhand:%'"
    )
    return Counter(name for (name,) in await names.fetchall())


def test_an_error_of_the_shared_listener_reaches_all_waiting_workers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        store = MemoryStore()

        async def deaf(timeout: float) -> bool:
            await asyncio.sleep(0)
            raise StoreUnreachable("no answer")

        listener = SharedListener(store)
        with monkeypatch.context() as outage:
            outage.setattr(store, "wait", deaf)
            message = await asyncio.gather(*(listener.wait(0, 60.0) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in message] == [StoreUnreachable] * 3
        await listener.wait(0, 0.01)
        assert listener.wakes == 0
        await listener.close()

    run(story())


def test_a_wake_up_during_work_is_noticed_afterwards(run: Run) -> None:
    async def story() -> None:
        store = MemoryStore()
        listener = SharedListener(store)
        idle, busy = (FlowQueueStore(store, listener, task, Terms(lease=60.0)) for task in "ab")
        for one in (idle, busy):
            await one.open()
        waiting = asyncio.ensure_future(idle.wait(5.0))
        await asyncio.sleep(0)
        await store.jobs.enqueue(NewJob(task="t"))
        assert await waiting
        assert await busy.wait(0.0)
        assert not await busy.wait(0.01)
        await listener.close()

    run(story())


def test_the_last_waiting_worker_ends_the_wait_at_the_store(run: Run) -> None:
    """And no other does: neither by its timeout nor by being cancelled."""
    calls: list[str] = []

    class Watched(MemoryStore):
        async def wait(self, timeout: float) -> bool:
            calls.append("begun")
            try:
                return await super().wait(timeout)
            except asyncio.CancelledError:
                calls.append("cancelled")
                raise

    async def left() -> bool:
        return calls == ["begun", "cancelled"]

    async def story() -> None:
        listener = SharedListener(Watched())
        canceled, patient = (asyncio.ensure_future(listener.wait(0, 60.0)) for _ in range(2))
        await listener.wait(0, 0.01)
        canceled.cancel()
        await asyncio.wait([canceled])
        await listener.wait(0, 0.01)
        assert calls == ["begun"]
        assert not patient.done()
        patient.cancel()
        await until(left)
        await listener.wait(0, 0.01)
        assert calls[2:] == ["begun"]
        await listener.close()

    run(story())


def test_concurrent_checks_of_existence_share_the_next_query(run: Run) -> None:
    calls: list[int] = []

    class Counting(type(MemoryStore().flows)):  # type: ignore[misc]
        async def exists(self, ids: Any) -> set[str]:
            calls.append(len(ids))
            await asyncio.sleep(0)
            return set(await super().exists(ids))

    async def story() -> None:
        store = MemoryStore()
        store.flows = Counting(store._connections, keeps_history=True)
        look(store, "INSERT INTO stowhand_flow_jobs (id, flow, created_at, looked_at) VALUES ('a', 'demo', 0, 0)")
        engine = QueueEngine(store, FlowShape(name="demo", queues=tuple(FIVE)))
        answers = await asyncio.gather(*(engine._exists(name) for name in ("a", "b", "a", "c")))
        assert answers == [True, False, True, False]
        assert calls == [1, 3]
        assert await engine._exists("a")

    run(story())


def test_a_flow_requires_a_valid_place(run: Run) -> None:
    async def story() -> None:
        engine = QueueEngine("postgresql://localhost:1/none", FlowShape(name="demo", queues=tuple(FIVE)))
        with pytest.raises(StoreUnreachable):
            await engine.open()
        await engine.close()

    run(story())
