"""A parent whose children must succeed fails with a child; its retry creates only the failed ones again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, FlowJobFailed, Queue, Stage
from stowhand.protocols.queue_store import ActionResult
from tests.conftest import Run
from tests.flows.harness import until

NUMBERS = [1, 2, 3, 4]
PARAMS = [{"childName": "kid", "n": n} for n in NUMBERS]


class Story:
    """A parent of four children; those in ``bad`` fail."""

    def __init__(self, place: str, *, layout: str = "classic", gather: bool = True) -> None:
        self.bad = {2, 3}
        self.runs: Counter[int] = Counter()
        self.passed: list[Any] = []
        parent = Queue("parent", next_queue="last", gather=gather, children_must_succeed=True, children=[Queue("kid")])
        self.flow = Flow("demo", place, [parent, Queue("last")], layout=layout, events=Events())
        self.flow.create_parent_workers("parent", wait_timeout=0.2)
        self.flow.create_child_workers("parent", "kid", self.kid, count=2, wait_timeout=0.2)
        self.flow.create_workers("last", self.last, wait_timeout=0.2)

    async def kid(self, job: FlowJob) -> dict[str, int]:
        self.runs[job["n"]] += 1
        if job["n"] in self.bad:
            raise ValueError(f"{job['n']} is bad")
        return {"square": job["n"] ** 2}

    async def last(self, job: FlowJob) -> None:
        self.passed.append(job["children:parent:results"])

    async def failure(self, job_id: str) -> str:
        with pytest.raises(FlowJobFailed) as caught:
            await self.flow.result(job_id, timeout=20)
        assert caught.value.job is not None
        assert (caught.value.job.state, caught.value.job.queue) == (Stage.FAILED, "parent")
        return str(caught.value.job.failure)

    async def retry(self, job_id: str) -> tuple[ActionResult, str]:
        (answer,) = await self.flow.retry_jobs([job_id])
        return answer.result, answer.reason


@pytest.mark.parametrize("layout", ["classic", "priority"])
@pytest.mark.parametrize("gather", [True, False])
def test_a_retried_parent_creates_only_its_failed_children_again(
    run: Run, place: str, layout: str, gather: bool
) -> None:
    async def check() -> None:
        story = Story(place, layout=layout, gather=gather)
        async with story.flow as flow:
            await flow.start_all()
            job = await flow.create_job({"children:parent:params": PARAMS})
            assert "2 of 4 children failed; the first is parent:kid:" in await story.failure(job)
            assert (await story.failure(job)).endswith(": 2 is bad")
            assert story.runs == Counter(dict.fromkeys(NUMBERS, 1))
            children = await flow.engine.failed("parent:kid", after=None, limit=9)
            assert await story.retry(children[0]) == (ActionResult.REFUSED, "its parent has failed; retry the parent")

            story.bad = {3}
            assert (await story.retry(job))[0] is ActionResult.DONE
            assert "1 of 4 children failed" in await story.failure(job)
            assert story.runs == Counter({1: 1, 2: 2, 3: 2, 4: 1})
            assert len(await flow.engine.failed("parent:kid", after=None, limit=9)) == 1

            story.bad = set()
            done = [await story.retry(job), await story.retry(job)]
            assert [each for each, _ in done] == [ActionResult.DONE, ActionResult.REFUSED]
            await flow.result(job, timeout=20)
            assert story.runs == Counter({1: 1, 2: 2, 3: 3, 4: 1})
            assert await flow.engine.failed(None, after=None, limit=9) == []
            squares = [child["square"] for child in await flow.get_children(job, "parent")]
            assert squares == [1, 4, 9, 16]
            (together,) = story.passed
            assert [child["square"] for child in together] == (squares if gather else [])

    run(check())


def test_a_deleted_child_has_not_succeeded_and_is_created_again(run: Run, redis_url: str) -> None:
    async def check() -> None:
        story = Story(redis_url)
        story.bad = set()
        async with story.flow as flow:
            job = await flow.create_job({"children:parent:params": PARAMS})

            async def is_parked() -> bool:
                view = await flow.get_job(job)
                return view is not None and view.state is Stage.PARKED

            parents, kids, last = flow.workers
            parents.start()
            await until(is_parked)
            (known,) = await flow.get_jobs([job])
            assert known is not None
            client = flow.engine._server.client  # type: ignore[attr-defined]
            await client.delete(known["children:parent:jobs"][0])
            await client.zadd("queue:parent:parked", {job: 1})  # the sweep counts its children at its next look
            kids.start()
            assert (await story.failure(job)).endswith("its hash expired")
            assert (await story.retry(job))[0] is ActionResult.DONE
            last.start()
            await flow.result(job, timeout=20)
            assert story.runs == Counter(dict.fromkeys(NUMBERS, 1))

    run(check())


def test_only_a_parent_has_children_that_must_succeed() -> None:
    with pytest.raises(ConfigurationError, match="children_must_succeed: the queue has no children"):
        Queue("plain", children_must_succeed=True)
    with pytest.raises(ConfigurationError, match="children_must_succeed: got 1; use True or False"):
        Queue("parent", children=[Queue("kid")], children_must_succeed=1)  # type: ignore[arg-type]
