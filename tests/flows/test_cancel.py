"""Jobs of flows are canceled at once if they wait; running ones are asked to stop, and do not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stowhand import NonRetryable
from stowhand.events import Events
from stowhand.flows import DelayError, Flow, FlowJob, FlowJobFailed, Queue, Stage
from stowhand.flows.step_handler import WorkerFunction
from stowhand.protocols.queue_store import ActionResult
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.flows.harness import until

MakeFlow = Callable[..., Flow]
PARAMS = [{"childName": "kid", "n": n} for n in (1, 2)]


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "redis, priority"])
def make(request: pytest.FixtureRequest, tmp_path: Any) -> MakeFlow:
    """Makes a flow on each store."""
    where, _, layout = request.param.partition(", ")
    places: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemoryStore(),
        "sqlite": lambda: f"sqlite:///{tmp_path}/flow.db",
        "postgres": lambda: request.getfixturevalue("postgres_url"),
        "redis": lambda: request.getfixturevalue("redis_url"),
    }
    place = places[where]()
    return lambda queues: Flow("demo", place, queues, layout=layout or "classic", events=Events())


class Step:
    """A worker function that blocks until its cancellation, and then ends as ``end`` does."""

    def __init__(self, end: Callable[[], Any] | None) -> None:
        self.begun, self.runs = asyncio.Event(), 0
        self._end = end

    async def __call__(self, job: FlowJob) -> Any:
        self.runs += 1
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._end is None:
                raise
            return self._end()


def raising(error: Exception) -> Callable[[], Any]:
    def end() -> Any:
        raise error

    return end


def start(flow: Flow, queue: str, function: WorkerFunction) -> None:
    flow.create_workers(queue, function, wait_timeout=0.2, lease=2)


async def stage(flow: Flow, job: str) -> tuple[Stage, str | None]:
    view = await flow.get_job(job)
    assert view is not None
    return view.state, view.queue


def reaches(flow: Flow, job: str, state: Stage) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return (await stage(flow, job))[0] is state

    return holds


async def cancel(flow: Flow, job: str) -> ActionResult:
    answer = await flow.cancel_job(job)
    assert answer.job_id == job
    return answer.result


async def is_empty(flow: Flow) -> bool:
    counts = await flow.monitor.counts()
    return not [each for each in counts if each.waiting or each.processing or each.delayed or each.parked]


@pytest.mark.parametrize("delay", [None, 3600])
def test_a_waiting_job_ends_at_once_and_can_be_retried(run: Run, make: MakeFlow, delay: float | None) -> None:
    async def story() -> None:
        async def step(job: FlowJob) -> dict[str, int]:
            return {"seen": job["n"]}

        flow = make([Queue("first", next_queue="last"), Queue("last")])
        for name in ("first", "last"):
            start(flow, name, step)
        async with flow:
            job = await flow.create_job({"n": 1}, delay=delay, key="k")
            assert [await cancel(flow, job), await cancel(flow, job)] == [ActionResult.DONE, ActionResult.UNCHANGED]
            assert await cancel(flow, job[:-4] + "0000") is ActionResult.MISSING
            assert await stage(flow, job) == (Stage.CANCELED, "first")
            assert await is_empty(flow)
            with pytest.raises(FlowJobFailed, match=f"job {job} canceled in first: canceled"):
                await flow.result(job, timeout=20)
            following = await flow.create_job({"n": 2}, key="k")
            assert following != job
            await flow.start_all()
            assert (await flow.result(following, timeout=20))["seen"] == 2
            assert await stage(flow, job) == (Stage.CANCELED, "first")
            assert await cancel(flow, following) is ActionResult.REFUSED
            assert (await flow.retry_jobs([job]))[0].result is ActionResult.DONE
            assert (await flow.result(job, timeout=20))["seen"] == 1

    run(story())


ENDS: dict[str, tuple[Callable[[], Any] | None, Stage]] = {
    "stops": (None, Stage.CANCELED),
    "moves on": (lambda: {"n": 2}, Stage.CANCELED),
    "is retried": (raising(ValueError("again")), Stage.CANCELED),
    "is postponed": (raising(DelayError("later", 60)), Stage.CANCELED),
    "fails": (raising(NonRetryable("broken")), Stage.FAILED),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_running_job_does_not_move_on_after_a_cancellation(run: Run, make: MakeFlow, end: str) -> None:
    async def story() -> None:
        how, state = ENDS[end]
        first, last = Step(how), Step(None)
        flow = make([Queue("first", next_queue="last", max_retries=3, delayable=True), Queue("last")])
        start(flow, "first", first)
        start(flow, "last", last)
        async with flow:
            await flow.start_all()
            job = await flow.create_job({"n": 1})
            await first.begun.wait()
            assert [await cancel(flow, job), await cancel(flow, job)] == [ActionResult.ASKED, ActionResult.ASKED]
            with pytest.raises(FlowJobFailed):
                await flow.result(job, timeout=20)
            assert await stage(flow, job) == (state, "first")
            assert await is_empty(flow)
            assert (first.runs, last.runs) == (1, 0)

    run(story())


def test_a_job_that_completes_its_last_queue_is_recorded_as_completed(run: Run, make: MakeFlow) -> None:
    async def story() -> None:
        async def first(job: FlowJob) -> None: ...

        last = Step(lambda: {"end": True})
        flow = make([Queue("first", next_queue="last"), Queue("last")])
        start(flow, "first", first)
        start(flow, "last", last)
        async with flow:
            await flow.start_all()
            job = await flow.create_job({})
            await last.begun.wait()
            assert await cancel(flow, job) is ActionResult.ASKED
            assert (await flow.result(job, timeout=20))["end"] is True

    run(story())


def test_a_retried_job_is_not_canceled_again(run: Run, make: MakeFlow) -> None:
    async def story() -> None:
        first = Step(None)

        async def last(job: FlowJob) -> dict[str, bool]:
            return {"end": True}

        flow = make([Queue("first", next_queue="last"), Queue("last")])
        stopping = flow.create_workers("first", first, wait_timeout=0.2, lease=2)
        start(flow, "last", last)
        async with flow:
            await flow.start_all()
            job = await flow.create_job({})
            await first.begun.wait()
            await cancel(flow, job)
            await until(reaches(flow, job, Stage.CANCELED))
            await stopping.stop()
            flow.create_workers("first", last, wait_timeout=0.2).start()
            assert (await flow.retry_jobs([job]))[0].result is ActionResult.DONE
            assert (await flow.result(job, timeout=20))["end"] is True

    run(story())


def test_a_cancellation_of_a_job_that_moves_on_stops_it_or_is_refused(run: Run, make: MakeFlow) -> None:
    async def story() -> None:
        async def step(job: FlowJob) -> None: ...

        names = [f"q{n}" for n in range(6)]
        flow = make([Queue(name, next_queue=then) for name, then in zip(names, [*names[1:], None], strict=True)])
        for name in names:
            flow.create_workers(name, step, count=2, wait_timeout=0.2)
        async with flow:
            jobs = await flow.create_jobs([{"n": n} for n in range(30)])
            await flow.start_all()
            answers = dict(zip(jobs, await asyncio.gather(*(cancel(flow, job) for job in jobs)), strict=True))

            async def have_ended() -> bool:
                return all([(await stage(flow, job))[0].has_ended for job in jobs])

            await until(have_ended)
            for job, answer in answers.items():
                state, queue = await stage(flow, job)
                match answer:
                    case ActionResult.DONE:
                        assert state is Stage.CANCELED
                    case ActionResult.ASKED:
                        assert state is Stage.CANCELED or (state, queue) == (Stage.COMPLETED, names[-1])
                    case _:
                        assert (answer, state, queue) == (ActionResult.REFUSED, Stage.COMPLETED, names[-1])
            assert await is_empty(flow)

    run(story())


@pytest.mark.parametrize("must_succeed", [False, True])
def test_to_its_parent_a_canceled_child_has_failed(run: Run, make: MakeFlow, must_succeed: bool) -> None:
    async def story() -> None:
        gathered: list[Any] = []
        stuck = Step(None)

        async def kid(job: FlowJob) -> Any:
            return await stuck(job) if job["n"] == 1 and stuck.runs == 0 else {"square": job["n"] ** 2}

        async def last(job: FlowJob) -> None:
            gathered.extend(job["children:parent:results"])

        parent = Queue("parent", next_queue="last", children=[Queue("kid")], children_must_succeed=must_succeed)
        flow = make([parent, Queue("last")])
        flow.create_parent_workers("parent", wait_timeout=0.2)
        flow.create_child_workers("parent", "kid", kid, wait_timeout=0.2, lease=2)
        start(flow, "last", last)
        async with flow:
            job = await flow.create_job({"children:parent:params": PARAMS})
            flow.workers[0].start()
            await until(reaches(flow, job, Stage.PARKED))
            children = [child["id"] for child in await flow.get_children(job, "parent")]
            assert await cancel(flow, children[1]) is ActionResult.DONE
            await flow.start_all()
            await stuck.begun.wait()
            assert await cancel(flow, children[0]) is ActionResult.ASKED
            if must_succeed:
                with pytest.raises(FlowJobFailed, match="2 of 2 children failed"):
                    await flow.result(job, timeout=20)
                assert (await flow.retry_jobs([job]))[0].result is ActionResult.DONE
            await flow.result(job, timeout=20)
            assert [child.get("canceled") for child in gathered] == ([None] * 2 if must_succeed else [True, True])

    run(story())


def test_a_canceled_waiting_parent_ends_at_once_and_its_children_continue(run: Run, make: MakeFlow) -> None:
    async def story() -> None:
        async def step(job: FlowJob) -> None: ...

        flow = make([Queue("parent", next_queue="last", children=[Queue("kid")]), Queue("last")])
        parents = flow.create_parent_workers("parent", wait_timeout=0.2)
        kids = flow.create_child_workers("parent", "kid", step, wait_timeout=0.2)
        start(flow, "last", step)
        async with flow:
            job = await flow.create_job({"children:parent:params": PARAMS})
            parents.start()
            await until(reaches(flow, job, Stage.PARKED))
            assert await cancel(flow, job) is ActionResult.DONE
            kids.start()

            async def have_ended() -> bool:
                return [child.get("done") for child in await flow.get_children(job, "parent")] == [True, True]

            await until(have_ended)
            assert await stage(flow, job) == (Stage.CANCELED, "parent")
            assert await is_empty(flow)
            assert (await flow.retry_jobs([job]))[0].result is ActionResult.DONE
            await flow.start_all()
            results = (await flow.result(job, timeout=20))["children:parent:results"]
            assert [child["done"] for child in results] == [True, True]

    run(story())
