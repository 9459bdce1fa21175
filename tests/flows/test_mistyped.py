"""Ids, names and values that are none are refused in words, on every store alike; nothing else is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue
from stowhand.jobs.lifecycle import Fail, Retry
from stowhand.protocols.queue_store import ActionResult
from tests.conftest import Run

LONE = "\ud800"
BYTES = "\udcff"
"""Bytes that are not valid text, as from another program in Redis or from a command line."""
Use = Callable[[Flow], Any]

REFUSED: dict[str, tuple[Use, str]] = {
    "an id to look at": (lambda flow: flow.get_jobs([LONE]), "a job's id: .* lone surrogate"),
    "an id to delete": (lambda flow: flow.delete_job(LONE), "a job's id: .* lone surrogate"),
    "an id to retry": (lambda flow: flow.retry_jobs([LONE]), "a job's id: .* lone surrogate"),
    "a number as an id": (lambda flow: flow.retry_jobs([7]), "job id: got 7; use a text"),  # type: ignore[list-item]
    "a value to look up": (lambda flow: flow.get_jobs_by_key("user", LONE), "user: .* lone surrogate"),
    "an attribute's name": (lambda flow: flow.create_job({LONE: 1}), "name of attribute .* lone surrogate"),
    "NUL in a name": (lambda flow: flow.create_job({"a\0": 1}), "name of attribute .* NUL"),
    "a date": (lambda flow: flow.create_job({"a": [date(2030, 1, 1)]}), r"'a'\[0\]: a date would arrive as text"),
    "a correlation id": (lambda flow: flow.create_job(correlation_id=LONE), "correlation_id: .* lone surrogate"),
    "NUL in a correlation id": (lambda flow: flow.create_job(correlation_id="\0"), "correlation_id: .* NUL"),
}


@pytest.fixture(params=["sqlite", "redis"])
def flow(request: pytest.FixtureRequest, tmp_path: Path) -> Flow:
    url = f"sqlite:///{tmp_path / 'flow.db'}"
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
    return Flow("demo", url, [Queue("first")], ["user"], events=Events())


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_stores_cannot_hold_are_refused(run: Run, flow: Flow, case: str) -> None:
    use, words = REFUSED[case]

    async def story() -> None:
        async with flow:
            with pytest.raises(InvalidJob, match=words):
                await use(flow)
            assert [count.waiting for count in await flow.monitor.counts()] == [0]

    run(story())


@pytest.mark.parametrize("odd", [BYTES, f"first:kid:{BYTES}", "\0", ":", "a:b:c:d"])
def test_an_id_that_stores_refuse_belongs_to_no_job(run: Run, flow: Flow, odd: str) -> None:
    async def story() -> None:
        async with flow:
            assert await flow.get_jobs([odd]) == [None]
            assert await flow.delete_job(odd) is False
            assert [answer.result for answer in await flow.retry_jobs([odd])] == [ActionResult.MISSING]
            assert await flow.get_jobs_by_key("user", odd) == []

    run(story())


def test_a_single_id_is_accepted_as_text(run: Run, flow: Flow) -> None:
    async def story() -> None:
        async with flow:
            job_id = await flow.create_job()
            assert [answer.job_id for answer in await flow.retry_jobs(job_id)] == [job_id]
            assert [job and job["id"] for job in await flow.get_jobs(job_id)] == [job_id]

    run(story())


@pytest.mark.parametrize("raises", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize("end", [Retry("no", payload="{}"), Fail("no", payload="{}")], ids=["retry", "fail"])
def test_an_outcome_with_a_payload_fails_a_job_of_a_flow(run: Run, flow: Flow, end: Retry | Fail, raises: bool) -> None:
    def step(job: FlowJob) -> Retry | Fail:
        if raises:
            raise end
        return end

    flow.create_workers("first", step)

    async def story() -> None:
        async with flow:
            job_id = await flow.create_job({"user": 1})
            await flow.start_all()
            job: dict[str, Any] = {}
            while "failed" not in job:
                await asyncio.sleep(0.02)
                (job,) = await flow.get_jobs_by_key("user", 1)
            assert (job["id"], job["user"]) == (job_id, 1)
            assert "no payload" in job["failedErrorMsg"]

    run(story())
