"""``make_worker_utils`` and ``quick_add_job``: enqueueing and administration without a worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing, StowhandError
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import ClaimRequest
from stowhand.runner import WorkerUtils, make_worker_utils, quick_add_job, run, run_once


async def utils_at(url: str) -> WorkerUtils:
    utils = await make_worker_utils(connection_string=url)
    await utils.migrate()
    return utils


async def test_a_job_has_the_readmes_details(url: str) -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    async with await utils_at(url) as utils:
        job = await utils.add_job(
            "task_2", {"foo": "bar"}, queue_name="q", run_at=moment, priority=-3, max_attempts=7, job_key="k",
            job_key_mode="preserve_run_at", flags=["a", "b"],
        )  # fmt: skip
        plain = await utils.add_job("task_2")
    assert (job.task, job.payload, job.serial, job.run_at) == ("task_2", {"foo": "bar"}, "q", moment)
    assert (job.priority, job.max_attempts, job.key, set(job.flags)) == (-3, 7, "k", {"a", "b"})
    assert (plain.payload, plain.serial, plain.priority, plain.max_attempts) == ({}, None, 0, 25)


async def test_none_means_the_default_and_zero_means_zero(url: str) -> None:
    async with await utils_at(url) as utils:
        spec: Any = {"queue_name": None, "run_at": None, "job_key": None, "max_attempts": None, "flags": None}
        job = await utils.add_job("x", None, priority=0, **spec)
    assert (job.payload, job.serial, job.max_attempts, job.key, job.priority) == ({}, None, 25, None, 0)


async def test_either_name_of_an_option_works_but_not_both(sqlite_url: str) -> None:
    async with await utils_at(sqlite_url) as utils:
        assert (await utils.add_job("x", serial="a")).serial == (await utils.add_job("x", queue_name="a")).serial == "a"
        assert (await utils.add_job("x", queue="a")).queue == (await utils.add_job("x", work_queue="a")).queue == "a"
        with pytest.raises(InvalidJob, match="key and job_key: one option under two names"):
            await utils.add_job("x", key="a", job_key="b")
        wrong: Any = {"jobKey": "b"}
        with pytest.raises(InvalidJob, match="no option 'jobKey'; did you mean 'job_key'"):
            await utils.add_job("x", **wrong)


async def test_a_key_debounces(url: str) -> None:
    async with await utils_at(url) as utils:
        first = await utils.add_job("x", {"n": 1}, job_key="k")
        second = await utils.add_job("x", {"n": 2}, job_key="k")
        third = await utils.add_job("x", {"n": 3}, job_key="k", job_key_mode="unsafe_dedupe")
        assert first.id == second.id == third.id
        assert third.payload == {"n": 2}


async def test_many_jobs_are_returned_in_order(url: str) -> None:
    async with await utils_at(url) as utils:
        jobs = await utils.add_jobs(
            [
                {"identifier": "b", "job_key": "z"},
                {"identifier": "a", "payload": [1], "priority": 0},
                NewJob(task="c", key="a"),
                {"identifier": "b", "job_key": "m", "queue_name": "q", "work_queue": "bulk"},
            ]
        )
        assert [(job.task, job.key) for job in jobs] == [("b", "z"), ("a", None), ("c", "a"), ("b", "m")]
        assert (jobs[1].payload, jobs[3].serial, jobs[3].queue) == ([1], "q", "bulk")


async def test_many_jobs_are_all_or_none(url: str) -> None:
    async with await utils_at(url) as utils:
        with pytest.raises(InvalidJob, match="job 2 of the batch: identifier: not given"):
            await utils.add_jobs([{"identifier": "a"}, {"payload": 1}])
        with pytest.raises(InvalidJob, match="duplicate key"):
            await utils.add_jobs([{"identifier": "a", "job_key": "k"}, {"identifier": "b", "job_key": "k"}])
        assert (await utils._store.inspect.counts())[State.QUEUED] == 0


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ("abc", "specs: got a str; use a list of dicts or of NewJobs"),
        (None, "specs: got a NoneType;"),
        ({"identifier": "x"}, "specs: got a dict;"),
        ([{"identifier": "x"}, 5], "job 2 of the batch: got an int; use a dict with identifier and payload"),
        ([["identifier", "x"]], "job 1 of the batch: got a list;"),
    ],
)
async def test_an_invalid_list_of_jobs_is_refused(sqlite_url: str, specs: Any, said: str) -> None:
    async with await utils_at(sqlite_url) as utils:
        with pytest.raises(InvalidJob, match=said):
            await utils.add_jobs(specs)
        assert (await utils._store.inspect.counts())[State.QUEUED] == 0


async def test_an_invalid_key_is_refused_and_removes_nothing(sqlite_url: str) -> None:
    nonsense: list[Any] = [5, "", "a\x00", "\ud800", "x" * 513]
    async with await utils_at(sqlite_url) as utils:
        for key in nonsense:
            with pytest.raises(InvalidJob, match=r"^job_key: "):
                await utils.remove_job(key)


@pytest.mark.parametrize("options", [None, "postgresql:///shop", 5])
async def test_options_of_a_quick_job_come_first(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"quick_add_job: got an? .* first; pass options"):
        await quick_add_job(options, "x")


async def test_many_keyed_jobs_can_keep_their_times(url: str) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    async with await utils_at(url) as utils:
        await utils.add_job("a", run_at=moment, job_key="k")
        (kept,) = await utils.add_jobs([{"identifier": "a", "job_key": "k"}], job_key_preserve_run_at=True)
        assert kept.run_at == moment
        (kept,) = await utils.add_jobs([{"identifier": "a", "job_key": "k"}], True)
        assert kept.run_at == moment
        (moved,) = await utils.add_jobs([{"identifier": "a", "job_key": "k"}])
        assert moved.run_at != moment


async def test_administration(url: str) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    async with await utils_at(url) as utils:
        done, failed, moved, removed = [await utils.add_job(name, job_key=name) for name in "abcd"]
        (one,) = await utils.complete_jobs([done.id])
        assert (one.id, one.state) == (done.id, State.COMPLETED)
        (one,) = await utils.permanently_fail_jobs([failed.id], "by hand")
        assert (one.state, one.last_error, one.attempts) == (State.FAILED, "by hand", 25)
        (one,) = await utils.reschedule_jobs([moved.id], run_at=later, priority=5, attempts=3, max_attempts=9)
        assert (one.run_at, one.priority, one.attempts, one.max_attempts) == (later, 5, 3, 9)
        (one,) = await utils.reschedule_jobs([moved.id], priority=0, attempts=0)
        assert (one.run_at, one.priority, one.attempts, one.max_attempts) == (later, 0, 0, 9), "zero stays zero"
        (one,) = await utils.reschedule_jobs([moved.id], work_queue="bulk")
        assert (one.queue, one.run_at) == ("bulk", later)
        assert (await utils.remove_job("d")).job_id == removed.id
        assert (await utils.remove_job("nobody's")).result is ActionResult.MISSING


async def test_the_jobs_of_dead_workers_are_reset(url: str) -> None:
    async with await utils_at(url) as utils:
        job = await utils.add_job("x")
        request = ClaimRequest(worker="gone", token="00000000-0000-4000-8000-000000000001", limit=1, lease=60)
        assert len(await utils._store.claim(request)) == 1
        assert await utils.force_unlock_workers(["somebody else"]) == []
        (back,) = await utils.force_unlock_workers(["gone"])
        assert (back.id, back.state, back.attempts) == (job.id, State.QUEUED, 0)


async def test_enqueueing_never_installs_the_schema(empty_url: str) -> None:
    async with await make_worker_utils(connection_string=empty_url) as utils:
        with pytest.raises(SchemaMissing, match="stowhand migrate"):
            await utils.add_job("x")
        with pytest.raises(SchemaMissing, match="stowhand migrate"):
            await quick_add_job({"connection_string": empty_url}, "x")
        await utils.migrate()
        assert (await utils.add_job("x")).id == 1


async def test_many_tasks_share_one(url: str) -> None:
    async with await utils_at(url) as utils:
        jobs = await asyncio.gather(*(utils.add_job("x", {"n": n}) for n in range(50)))
    assert len({job.id for job in jobs}) == 50


async def test_released_utils_refuse_calls(sqlite_url: str) -> None:
    utils = await utils_at(sqlite_url)
    await utils.release()
    await utils.release()
    with pytest.raises(StowhandError, match="released"):
        await utils.add_job("x")


async def test_every_add_job_has_the_same_call(url: str) -> None:
    jobs: list[Job] = []
    spec: Any = {"queue_name": "q", "work_queue": "bulk", "max_attempts": 3}

    async def task(payload: Any, helpers: Any) -> None:
        jobs.append(await helpers.add_job("other", {"a": 1}, **spec))

    async with await utils_at(url) as utils:
        jobs.append(await utils.add_job("other", {"a": 1}, **spec))
        await utils.add_job("task")
    jobs.append(await quick_add_job({"connection_string": url}, "other", {"a": 1}, **spec))
    await run_once(connection_string=url, task_list={"task": task})
    async with await run(connection_string=url, task_list={"task": task}, no_handle_signals=True) as runner:
        jobs.append(await runner.add_job("other", {"a": 1}, **spec))
    assert [(job.task, job.payload, job.serial, job.max_attempts) for job in jobs] == [("other", {"a": 1}, "q", 3)] * 4
    assert [job.queue for job in jobs] == ["bulk"] * 4
