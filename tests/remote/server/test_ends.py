"""Waiting for results over HTTP: what it takes, what it is refused for, and how often the server is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, gather
from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, JobFailed, JobReplaced, ResultNotKept, StoreError, UnknownJob
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.remote import HttpOptions, HttpStore
from stowhand.remote.client import jobs
from stowhand.remote.server import claims
from stowhand.stores.kernel.results import ResultPoll
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.remote.client.canned import CannedServer, reply
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import Lending, claiming, token_of
from tests.support.memory_rows import rows_of

AT_MOST = 60.0
SEERS = ("claim", "enqueue", "read", "payload")


def remote(lending: Lending, token: str | None = None) -> App:
    return App(lending.url, token=token)


def test_an_app_gets_results_and_failures_with_their_class(lend: Lend, tokens: Path, run: Run) -> None:
    token = token_of(tokens, "app", *SEERS)
    app = remote(lend(), token)

    @app.task
    async def doubled(n: int) -> int:
        return 2 * n

    @app.task(unique="arguments", unique_period="1h")
    async def tripled(n: int) -> int:
        return 3 * n

    @app.task(max_attempts=2, backoff=lambda attempt: 0.0)
    async def breaks() -> int:
        raise LookupError("no such thing")

    async def scenario() -> None:
        async with asyncio.timeout(AT_MOST), app.run_in_background(concurrency=4):
            assert await doubled.enqueue_and_wait(21) == 42
            once = await tripled.enqueue(2)
            assert (await once.result(), await (again := await tripled.enqueue(2)).result()) == (6, 6)
            assert again == once
            assert await gather([await doubled.enqueue(n) for n in range(5)]) == [0, 2, 4, 6, 8]
            job = await breaks.enqueue()
            with pytest.raises(JobFailed, match="after 2 of 2 attempts: LookupError: no such thing") as caught:
                await job.result()
            assert (caught.value.error_class, caught.value.attempts) == ("LookupError", 2)
            assert job.state is State.FAILED
            assert await (await app.job(job.id)).wait() == job
            with pytest.raises(UnknownJob):
                await app.job(10_000)
            with pytest.raises(ConfigurationError, match="not over HTTP"):
                await job.cancel()
            old = await doubled.options(key="k", delay=3600).enqueue(1)
            waiter = asyncio.create_task(old.result())
            await doubled.options(key="k", delay=3600).enqueue(2)
            with pytest.raises(JobReplaced):
                await waiter
        await app.close()

    run(scenario())


def test_without_a_history_waiting_for_a_result_enqueues_no_job(lend: Lend, run: Run) -> None:
    store = MemoryStore(options=StoreOptions(history=None))
    lending = lend(store)
    app = remote(lending)

    @app.task
    async def t() -> int:
        return 1

    async def scenario() -> None:
        with pytest.raises(ConfigurationError, match="keeps no results"):
            await t.enqueue_and_wait()
        assert not rows_of(store)
        job = await t.enqueue()
        async with asyncio.timeout(AT_MOST), app.run_in_background():
            with pytest.raises(ResultNotKept):
                await job.result()
        await app.close()

    run(scenario())


@pytest.mark.parametrize(("scopes", "lacks"), [(("claim", "payload"), "read"), (("read", "enqueue"), "payload")])
def test_reading_results_without_the_scope_is_refused_by_name(
    lend: Lend, tokens: Path, run: Run, scopes: tuple[str, ...], lacks: str
) -> None:
    token = token_of(tokens, "w", *scopes)
    lending = lend()
    job_id = lending.add()
    assert f"the scope {lacks}" in lending.client(token).post("ends", job_ids=[job_id]).refused(403, "out of scope")

    async def wait() -> None:
        store = HttpStore(lending.url, HttpOptions(token=token))
        poll = ResultPoll(store.results, SystemClock())
        with pytest.raises(StoreError, match=f"this token lacks the scope {lacks}"):
            await poll.end(job_id, 0)
        await poll.close()
        await store.close()

    run(wait())


def test_a_job_outside_the_token_is_reported_as_unknown(lend: Lend, tokens: Path) -> None:
    ours = token_of(tokens, "ours", *SEERS, tasks=("a",))
    lending = lend()
    client = lending.client(ours)
    other, own = lending.add("b"), lending.add("a")
    lending.do(lending.store.admin.cancel(own))  # type: ignore[union-attr]
    result = client.post("ends", job_ids=[other, own]).body["ended"]
    assert [(one["job_id"], one["state"], one["is_known"]) for one in result] == [
        (other, None, False),
        (own, "canceled", True),
    ]


def test_a_value_that_is_no_job_is_malformed(lend: Lend) -> None:
    client = lend().client()
    for job_ids in ([0], [2**63], ["x"], [[7, 0]]):
        client.post("ends", job_ids=job_ids).refused(400, "malformed")
    client.post("ends", job_ids=[1] * 1001).refused(400, "malformed")


def test_results_are_requested_again_during_an_outage(lend: Lend, run: Run) -> None:
    store = MemoryStore()
    first = lend(store)
    job_id = first.add()
    port = int(first.url.rpartition(":")[2])

    async def wait() -> None:
        client = HttpStore(first.url)
        poll = ResultPoll(client.results, SystemClock())
        waiting = asyncio.create_task(poll.end(job_id, 0))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(first.stop)
        second = await asyncio.to_thread(lambda: lend(store, port=port))
        claims = await store.claim(ClaimRequest(worker="w", token=claiming()["token"], limit=1, lease=30.0))
        await store.settle([(claims[0].lease, COMPLETED)])
        async with asyncio.timeout(AT_MOST):
            assert (await waiting).state is State.COMPLETED
        await poll.close()
        await client.close()
        await asyncio.to_thread(second.stop)

    run(wait())


def test_results_are_requested_in_several_calls_if_they_are_many_or_large(
    lend: Lend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_ITEMS", 3)
    monkeypatch.setattr(claims, "MAX_REPLY_BYTES", 10)
    lending = lend()

    async def wait() -> None:
        store = HttpStore(lending.url)
        ids = await store.jobs.enqueue_many(NewJob(task="t", payload=f'"{"x" * 20}"') for _ in range(8))
        poll = ResultPoll(store.results, SystemClock())
        waiting = [asyncio.create_task(poll.end(job_id, 0)) for job_id in ids]
        await asyncio.sleep(0.05)
        lent: Any = lending.store
        for job_id in reversed(ids):
            call = lent.admin.permanently_fail_jobs([job_id], "x" * 20)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, lending._loop))
        async with asyncio.timeout(AT_MOST):
            assert {one.state for one in await asyncio.gather(*waiting)} == {State.FAILED}
        assert sorted(one.job_id for one in await store.results.ask(ids)) == ids
        await poll.close()
        await store.close()

    run(wait())


def test_results_are_requested_at_most_ten_times_a_second(run: Run) -> None:
    async def wait(server: CannedServer) -> None:
        store = HttpStore(server.url)
        poll = ResultPoll(store.results, SystemClock())
        waiting = [asyncio.create_task(poll.end(job_id, 0)) for job_id in range(1, 101)]
        await asyncio.sleep(1.0)
        assert 2 <= len(server.bodies) <= 11
        assert {len(body["job_ids"]) for body in server.bodies} == {100}
        await poll.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        await store.close()

    with CannedServer(*[reply({"ended": []})] * 20) as server:
        run(wait(server))
