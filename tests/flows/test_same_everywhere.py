"""One declaration, and the same results wherever its jobs are kept."""

from __future__ import annotations

import asyncio
from typing import Any

from stowhand.events import Events
from stowhand.flows import DelayError, Flow, FlowJob, Limiter, Queue
from stowhand.flows.redis import RedisEngine
from tests.conftest import Run

QUEUES = [
    Queue("first", ["user", "roles", "missing"], next_queue="parent", max_retries=1),
    Queue(
        "parent",
        next_queue="late",
        children=[Queue("kid", ["n"]), Queue("other", limiter=Limiter(reservoir=1, interval=0.05))],
    ),
    Queue("late", delayable=True, max_retries=2),
    Queue("last", ["children:parent:results", "sum"]),
]
CREATED = {"user": 1, "roles": [4, "five"], "gone": None, "mark": "ü \"'\\", "correlation": "c"}
SEEN = {"user": 1, "roles": [4, "five"], "missing": None}
PARAMS = [
    {"childName": "kid", "n": 3},
    {"childName": "other", "n": 4},
    {"childName": "stranger"},
    {"childName": "kid", "n": 0},
]
CHILDREN: list[dict[str, Any]] = [
    {"n": 3, "correlationId": "corr-0", "square": 9, "completed-queue": "parent:kid", "done": True},
    {"n": 4, "correlationId": "corr-0", "completed-queue": "parent:other", "done": True},
    {
        "n": 0,
        "correlationId": "corr-0",
        "done": True,
        "failed": True,
        "failedQueue": "parent:kid",
        "failedErrorMsg": "nought is bad",
    },
]
PASSED = {
    "user": 1,
    "roles": [4, "five"],
    "mark": "ü \"'\\",
    "correlation": "c",
    "correlationId": "corr-0",
    "children:parent:params": PARAMS,
    "children:parent:jobs": CHILDREN,
    "children:parent:results": CHILDREN,
    "sum": 9,
    "late": {"deep": [1.5, True]},
    "completed-queue": "last",
}
FAILED = {
    "user": 2,
    "roles": 5,
    "correlationId": "corr-1",
    "retries:first": 1,
    "done": True,
    "failed": True,
    "failedQueue": "first",
    "failedErrorMsg": "two is bad",
}
FACTS = ("id", "parent")
"""What differs from job to job. Only in Redis does a child name its parent."""
ONLY_IN_REDIS = {"retries:first": 1}
"""On other stores a job has its number of retries in its current queue."""


def plain(value: Any) -> Any:
    """Without what differs."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in FACTS}
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_a_flow_has_the_same_results_on_every_store(run: Run, place: str) -> None:
    seen: list[Any] = []
    late: set[str] = set()

    def first(job: FlowJob) -> dict[str, Any]:
        if job["user"] == 2:
            raise ValueError("two is bad")
        if not job.retries:
            raise ValueError("not at once")
        seen.append({name: value for name, value in job.items() if name != "id"})
        return {"children:parent:params": PARAMS, "gone": None}

    def kid(job: FlowJob) -> dict[str, Any]:
        if not job["n"]:
            raise ValueError("nought is bad")
        return {"square": job["n"] ** 2}

    def step(job: FlowJob) -> dict[str, Any]:
        if job.id not in late:
            late.add(job.id)
            raise DelayError("later", 0.05)
        return {"sum": job["children:parent:results"][0]["square"], "late": {"deep": [1.5, True]}, "nextQueue": "last"}

    flow = Flow("same", place, QUEUES, ["user", "roles"], events=Events())
    flow.create_workers("first", first, count=2)
    flow.create_parent_workers("parent")
    flow.create_child_workers("parent", "kid", kid)
    flow.create_child_workers("parent", "other", lambda job: False)
    flow.create_workers("late", step)
    flow.create_workers("last", lambda job: None)

    async def story() -> None:
        async with flow:
            passed = await flow.create_job(CREATED, correlation_id="corr-0")
            failed = await flow.create_job({"user": 2, "roles": 5}, correlation_id="corr-1")
            await flow.start_all()
            while not await over(flow, [passed, failed]):  # noqa: ASYNC110 - asked of the store
                await asyncio.sleep(0.02)
            result = await flow.get_jobs_by_key("roles", "five", resolve_children=True)
            assert [job["id"] for job in result] == [passed]
            assert plain(result) == [PASSED | (ONLY_IN_REDIS if isinstance(flow.engine, RedisEngine) else {})]
            assert plain(await flow.get_jobs_by_key("user", 2)) == [FAILED]
            assert await flow.get_jobs_by_key("user", 3) == []
            assert seen == [SEEN]
            assert await flow.delete_job(passed)
            assert await flow.get_jobs_by_key("user", 1) == []

    run(story())


def test_a_parent_that_returns_to_its_queue_fans_out_again(run: Run, place: str) -> None:
    gathered: list[list[int]] = []

    def check(job: FlowJob) -> dict[str, Any]:
        gathered.append([child["n"] for child in job["children:parent:results"]])
        following = {"children:parent:params": [{"childName": "kid", "n": 2}, {"childName": "kid", "n": 3}]}
        return following | {"next_queue": "parent"} if len(gathered) == 1 else {"done": True}

    queues = [Queue("parent", next_queue="last", children=[Queue("kid")]), Queue("last")]
    flow = Flow("again", place, queues, events=Events())
    flow.create_parent_workers("parent")
    flow.create_child_workers("parent", "kid", lambda job: None)
    flow.create_workers("last", check)

    async def story() -> None:
        async with flow:
            job_id = await flow.create_job({"children:parent:params": [{"childName": "kid", "n": 1}]})
            await flow.start_all()
            while "done" not in ((await flow.get_jobs([job_id]))[0] or {}):  # noqa: ASYNC110 - asked of the store
                await asyncio.sleep(0.02)
        assert gathered == [[1], [2, 3]]

    run(story())


async def over(flow: Flow, ids: list[str]) -> bool:
    jobs = await flow.get_jobs(ids)
    return all(job is not None and (job.get("completed-queue") == "last" or "failed" in job) for job in jobs)
