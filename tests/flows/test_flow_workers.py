"""Workers of a flow: their states, their slots, and how long an execution may take."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from stowhand.clock import stopwatch
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue, Status
from stowhand.flows.redis import store
from stowhand.flows.step_handler import WorkerFunction
from tests.conftest import Run
from tests.flows.harness import WAIT, through, until
from tests.support.valkey import LiveRedis


def test_a_worker_is_ready_running_stopping_stopped_and_running_again(
    run: Run, redis_server: LiveRedis, redis_url: str
) -> None:
    holding, held = asyncio.Event(), asyncio.Event()

    async def step(job: FlowJob) -> None:
        held.set()
        await holding.wait()

    async def story() -> None:
        flow = Flow("demo", redis_url, queues=[Queue("only")], events=Events())
        worker = flow.create_workers("only", step, lock_time=10, wait_timeout=30)
        statuses = [worker.status]
        await worker.stop()  # it never ran
        statuses.append(worker.status)
        await flow.start_all()
        worker.start()
        statuses.append(worker.status)
        began = stopwatch()
        ids = [await flow.create_job()]
        await held.wait()
        with redis_server.client() as client:
            left = int(client.pttl(f"lock:only:{ids[0]}"))  # longer than the execution may take
            assert 11_999 - (stopwatch() - began) * 1000 <= left <= 12_000
        stopping = [asyncio.create_task(worker.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        statuses.append(worker.status)
        later = await flow.create_job()
        holding.set()  # within the grace: it ends, and nothing new begins
        await asyncio.gather(*stopping)
        statuses.append(worker.status)
        await worker.stop()
        (job,) = await flow.get_jobs(ids)
        assert job is not None
        assert job["completed-queue"] == "only"
        assert [each.waiting for each in await flow.monitor.counts()] == [1]
        worker.start()
        await through(flow, [*ids, later], last="only")
        began = stopwatch()
        await flow.stop_all()  # idle: it does not wait for its wait timeout
        assert stopwatch() - began < 10
        await flow.stop_all()
        statuses.append(worker.status)
        ready, running, stopping_, stopped = Status
        assert statuses == [ready, ready, running, stopping_, stopped, stopped]

    run(story())


def test_progress_is_refused_in_redis_with_what_to_do_instead(run: Run, redis_url: str) -> None:
    lines: list[str] = []

    async def step(job: FlowJob) -> None:
        with pytest.raises(ConfigurationError) as refused:
            job.ctx.progress(0.4)
        lines.append(str(refused.value))

    async def story() -> None:
        flow = Flow("demo", redis_url, queues=[Queue("only")], events=Events())
        flow.create_workers("only", step)
        await flow.start_all()
        await through(flow, [await flow.create_job()], last="only")
        await flow.stop_all()
        assert len(lines) == 1
        assert "a flow in Redis do not); remove the call, and write a line with ctx.log(…)" in lines[0]

    run(story())


def test_a_job_that_exceeds_the_grace_is_returned_without_an_attempt(
    run: Run, redis_server: LiveRedis, redis_url: str
) -> None:
    held = asyncio.Event()

    async def step(job: FlowJob) -> None:
        held.set()
        await asyncio.Event().wait()

    async def story() -> None:
        flow = Flow("demo", redis_url, queues=[Queue("only")], events=Events())
        flow.create_workers("only", step, grace=0.1, wait_timeout=30)
        await flow.start_all()
        job = await flow.create_job()
        await held.wait()
        began = stopwatch()
        await flow.stop_all()
        assert stopwatch() - began < 10
        with redis_server.client() as client:
            assert client.lrange("queue:only:waiting", 0, -1) == [job]
            assert client.keys("lock:*") == []
            assert client.hkeys(f"job:demo:{job}") == ["flow:state", "correlationId"]

    run(story())


@pytest.mark.parametrize(("lock_time", "given", "lease"), [(180, 30, 30), (180, 10, 10), (12, 30, 12), (0.3, 9, 2)])
def test_a_silent_workers_jobs_are_reset_after_its_lease_and_within_the_lock_time(
    lock_time: float, given: float, lease: float
) -> None:
    flow = Flow("demo", "redis://nowhere", queues=[Queue("only")], events=Events())
    worker = flow.create_workers("only", lambda job: None, lock_time=lock_time, lease=given)
    assert worker._lease == lease


def test_a_slot_executes_one_job_after_another(run: Run, redis_url: str) -> None:
    at_once: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def step(job: FlowJob) -> None:
        at_once[job.queue] += 1
        most[job.queue] = max(most[job.queue], at_once[job.queue])
        await asyncio.sleep(0.005)
        at_once[job.queue] -= 1

    async def story() -> None:
        flow = Flow("demo", redis_url, queues=[Queue("one", next_queue="three"), Queue("three")], events=Events())
        flow.create_workers("one", step, wait_timeout=WAIT)
        flow.create_workers("three", step, count=3, wait_timeout=WAIT)
        async with flow:
            ids = await flow.create_jobs({} for _ in range(30))
            while any(each.waiting for each in await flow.monitor.counts() if each.queue == "one"):
                await flow.start_all()  # starting twice is harmless: there are no more slots than before
                await asyncio.sleep(0.02)
            await through(flow, ids, last="three")
        assert most["one"] == 1
        assert 1 <= most["three"] <= 3

    run(story())


def late_functions() -> dict[str, WorkerFunction]:
    """Each takes longer than it may, and gives a result in the end."""

    async def obeying(job: FlowJob) -> Any:
        await asyncio.Event().wait()

    async def unruly(job: FlowJob) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"late": True}

    def threaded(job: FlowJob) -> Any:
        while not job.ctx.canceled:
            threading.Event().wait(0.01)
        return {"late": True}

    return {"obeying": obeying, "unruly": unruly, "threaded": threaded}


@pytest.mark.parametrize("function", ["obeying", "unruly", "threaded"])
def test_an_execution_that_takes_longer_than_the_lock_time_has_failed_and_its_result_is_ignored(
    run: Run, redis_url: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCK_MARGIN_SECONDS", 30.0)  # a machine that is held up does not lose the lock

    async def story() -> None:
        flow = Flow("demo", redis_url, queues=[Queue("slow", next_queue="never"), Queue("never")], events=Events())
        flow.create_workers("slow", late_functions()[function], lock_time=0.3, wait_timeout=WAIT)
        async with flow:
            job_id = await flow.create_job({"n": 1})
            await flow.start_all()

            async def failed() -> bool:
                (job,) = await flow.get_jobs([job_id])
                return job is not None and "failed" in job

            await until(failed)
            (job,) = await flow.get_jobs([job_id])
            assert job is not None
            assert (job["done"], job["failed"], job["failedQueue"]) == (True, True, "slow")
            assert job["failedErrorMsg"] == "Execution timeout of 0.3 seconds exceeded"
        (job,) = await flow.get_jobs([job_id])
        assert job is not None
        assert "late" not in job
        assert "completed-queue" not in job
        await flow.close()

    run(story())
