"""A real worker on a real PostgreSQL, behind a proxy that loses replies and holds requests back."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
import pytest

from stowhand.errors import StoreUnreachable
from stowhand.events import Event, Events, HeartbeatFinished, JobEnded, JobLost, JobStarted, JobUnknown, StoreCallFailed
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.handler import handler
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import ClaimRequest, Pulse, StoreOptions
from stowhand.stores.database.link import Connection, Dialer
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.support.proxy import Proxy

E = TypeVar("E", bound=Event)
OPTIONS = StoreOptions(history=3600.0)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as standing:
        yield standing


class Bench:
    """A worker behind a proxy, a direct connection to the same database, and the events of the worker."""

    def __init__(self, direct: PostgresStore, worker: Worker, told: list[Event]) -> None:
        self.direct, self.worker, self.told = direct, worker, told
        self.runs: list[int] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.working: asyncio.Task[None]

    def heard(self, kind: type[E]) -> list[E]:
        return [event for event in self.told if isinstance(event, kind)]

    async def until(self, reached: Callable[[], bool], seconds: float = 25.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, f"never happened; the worker said {self.told}"
            await asyncio.sleep(0.01)

    async def job(self, job_id: int) -> Job:
        job = await self.direct.jobs.get(job_id)
        assert job is not None
        return job


@asynccontextmanager
async def working(direct_url: str, through_url: str, **options: Any) -> AsyncIterator[Bench]:
    direct = PostgresStore(direct_url, OPTIONS)
    await direct.schema.install()
    await direct.open()
    through = PostgresStore(through_url, OPTIONS)
    await through.open()
    notices: list[Event] = []
    events = Events()
    for kind in (HeartbeatFinished, JobEnded, JobLost, JobStarted, JobUnknown, StoreCallFailed):
        events.on(kind, notices.append)

    @handler
    async def act(attempt: Attempt[Job], job: Job) -> None:
        bench.runs.append(attempt.lease.job_id)
        await bench.may_end.wait()

    worker = Worker(through, act, WorkerOptions(poll_interval=0.5, **options), events=events)
    bench = Bench(direct, worker, notices)
    bench.working = asyncio.create_task(worker.run())
    try:
        yield bench
    finally:
        worker.stop(now=True)
        await bench.working
        await through.close()
        await direct.close()


def test_a_job_whose_claim_had_no_reply_is_abandoned_and_runs_once(run: Run, proxy: Proxy, postgres_url: str) -> None:
    async def scenario() -> None:
        async with working(postgres_url, proxy.url, lease=60.0) as bench:
            proxy.lose_next_reply("claim")
            job = await bench.direct.jobs.enqueue(NewJob(task="t"))
            await bench.until(lambda: bool(bench.heard(StoreCallFailed)))
            assert proxy.lost.is_set()
            await bench.until(lambda: bool(bench.heard(JobEnded)))  # by its token, long before its lease has ended
            result = await bench.job(job.id)
            assert (result.state, result.attempts, result.resets) == (State.COMPLETED, 1, 0)
            assert bench.runs == [job.id]

    run(scenario(), 60)


def test_a_claim_that_arrives_after_its_token_was_abandoned_claims_nothing(
    run: Run, proxy: Proxy, postgres_url: str
) -> None:
    """The claim races the death of its own worker: it is delivered after the worker has died."""

    async def scenario() -> None:
        async with working(postgres_url, proxy.url) as bench:
            go = proxy.hold_next_request("claim")
            await bench.until(proxy.held.is_set)
            dead = "select count(*) from stowhand.dead_tokens"
            async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
                deadline = time.monotonic() + 25
                while (await (await connection.execute(dead)).fetchone()) != (1,):
                    assert time.monotonic() < deadline, "the token was never given up"
                    await asyncio.sleep(0.02)
            bench.worker.stop(now=True)
            await bench.working
            job = await bench.direct.jobs.enqueue(NewJob(task="t"))
            go.set()
            assert await asyncio.to_thread(proxy.let_through.wait, 25)
            result = await bench.job(job.id)
            assert (result.state, result.attempts) == (State.QUEUED, 0)

    run(scenario(), 60)


def test_a_settlement_whose_reply_was_lost_is_repeated_and_counts_once(
    run: Run, proxy: Proxy, postgres_url: str
) -> None:
    async def scenario() -> None:
        async with working(postgres_url, proxy.url) as bench:
            proxy.lose_next_reply("settle")
            job = await bench.direct.jobs.enqueue(NewJob(task="t"))
            await bench.until(lambda: bool(bench.heard(JobEnded)))
            assert proxy.lost.is_set()
            assert bench.runs == [job.id]
            assert [event.operation for event in bench.heard(StoreCallFailed)] == ["settle"]
            assert not bench.heard(JobLost)
            assert not bench.heard(JobUnknown)
            assert (await bench.job(job.id)).state is State.COMPLETED

    run(scenario(), 60)


def test_jobs_claimed_by_a_settlement_without_a_reply_are_abandoned_and_the_queue_continues_in_order(
    run: Run, proxy: Proxy, postgres_url: str
) -> None:
    async def scenario() -> None:
        async with working(postgres_url, proxy.url, lease=60.0) as bench:
            bench.may_end.clear()
            jobs = [(await bench.direct.jobs.enqueue(NewJob(task="t", serial="q"))).id for _ in range(3)]
            await bench.until(lambda: bench.runs == jobs[:1])
            proxy.lose_next_reply("settle", to=b"settle_and_claim")
            bench.may_end.set()
            await bench.until(lambda: len(bench.heard(JobEnded)) == 3)  # long before a lease has ended
            assert proxy.lost.is_set()
            assert bench.runs == jobs, "each ran once"
            assert [event.operation for event in bench.heard(StoreCallFailed)] == ["settle"]
            for job_id in jobs:
                result = await bench.job(job_id)
                assert (result.state, result.attempts, result.resets) == (State.COMPLETED, 1, 0)

    run(scenario(), 60)


def test_a_late_settlement_with_a_claim_claims_nothing(run: Run, proxy: Proxy, postgres_url: str) -> None:
    async def scenario() -> None:
        async with working(postgres_url, proxy.url, lease=60.0) as bench:
            bench.may_end.clear()
            jobs = [(await bench.direct.jobs.enqueue(NewJob(task="t", serial="q"))).id for _ in range(3)]
            await bench.until(lambda: bench.runs == jobs[:1])
            go = proxy.hold_next_request("settle", to=b"settle_and_claim")
            bench.may_end.set()
            await bench.until(proxy.held.is_set)
            bench.may_end.clear()
            await bench.until(lambda: bench.runs == jobs[:2])  # settled by the repeat, and claimed
            go.set()
            assert await asyncio.to_thread(proxy.let_through.wait, 25)
            second, third = [await bench.job(job_id) for job_id in jobs[1:]]
            assert (second.state, second.attempts) == (State.PROCESSING, 1)
            assert (third.state, third.attempts) == (State.QUEUED, 0)
            bench.may_end.set()
            await bench.until(lambda: [event.job_id for event in bench.heard(JobEnded)] == jobs)
            assert bench.runs == jobs
            assert not bench.heard(JobLost)

    run(scenario(), 60)


def test_a_heartbeat_before_the_first_claim_ends_within_its_lease(
    run: Run, proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its connection is being made the worker claims; then the connection dies without a word."""

    async def scenario() -> None:
        through = PostgresStore(proxy.url, OPTIONS)
        await through.schema.install()
        await through.open()
        dial = Dialer.dial

        async def slowly(dialer: Dialer, role: str) -> Connection:
            connection = await dial(dialer, role)
            if ":heart" in role:
                await through.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=4.0))
                proxy.silence_next_request("heart")
            return connection

        monkeypatch.setattr(Dialer, "dial", slowly)
        heartbeats, began = through.heartbeats(), time.monotonic()
        with pytest.raises(StoreUnreachable, match="no answer in time"):
            await heartbeats.check()
        assert time.monotonic() - began < 10, "and not the thirty seconds of any call"
        await heartbeats.close()
        await through.close()

    run(scenario(), 60)


def test_a_heartbeat_connection_that_dies_silently_loses_no_lease(run: Run, proxy: Proxy, postgres_url: str) -> None:
    async def scenario() -> None:
        async with working(postgres_url, proxy.url, lease=12.0, heartbeat_interval=1.0) as bench:
            bench.may_end.clear()
            job = await bench.direct.jobs.enqueue(NewJob(task="t"))
            await bench.until(lambda: bool(bench.runs))
            proxy.silence_next_request("heart")
            await bench.until(proxy.lost.is_set)
            beats = len(bench.heard(HeartbeatFinished))
            await bench.until(lambda: len(bench.heard(HeartbeatFinished)) > beats)  # on another connection
            bench.may_end.set()
            await bench.until(lambda: bool(bench.heard(JobEnded) or bench.heard(JobLost)))
            assert not bench.heard(JobLost)
            assert bench.runs == [job.id]
            assert (await bench.job(job.id)).state is State.COMPLETED

    run(scenario(), 60)


def test_maintenance_on_a_dead_connection_does_not_delay_heartbeats(run: Run, proxy: Proxy, postgres_url: str) -> None:
    async def scenario() -> None:
        store = PostgresStore(proxy.url, OPTIONS)
        await store.schema.install()
        await store.open()
        heartbeats = store.heartbeats()
        try:
            job = await store.jobs.enqueue(NewJob(task="t"))
            (claim,) = await store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=4.0))
            await heartbeats.beat([claim.lease], 4.0)
            proxy.silence_next_request("heart")
            async with asyncio.timeout(20.0):  # less than any call may take
                with pytest.raises(StoreUnreachable, match="no answer in time"):
                    await heartbeats.maintain()
            assert await heartbeats.beat([claim.lease], 4.0) == Pulse()
            assert claim.lease.job_id == job.id
        finally:
            await heartbeats.close()
            await store.close()

    run(scenario(), 60)


def test_an_application_that_holds_one_running_jobs_row_stalls_and_expires_no_other(
    run: Run, proxy: Proxy, postgres_url: str
) -> None:
    async def scenario() -> bool:
        """False: the machine stood still for longer than a locked row is held, which is from beat to beat."""
        async with working(postgres_url, proxy.url, lease=6.0) as bench:
            bench.may_end.clear()
            held, other = [(await bench.direct.jobs.enqueue(NewJob(task="t"))).id for _ in range(2)]
            await bench.until(lambda: len(bench.runs) == 2)
            async with await psycopg.AsyncConnection.connect(postgres_url) as application:
                await application.execute("select 1 from stowhand.live where id = %s for update", (held,))
                still = await _longest_pause(6.1)  # longer than the lease
                bench.may_end.set()
                await bench.until(lambda: [event.job_id for event in bench.heard(JobEnded)] == [other])
                still = max(still, await _longest_pause(0.2))
                if bench.heard(JobLost) and still > 1.0:
                    await application.execute("delete from stowhand.live")
                    await application.commit()
                    return False
                assert not bench.heard(JobLost)
                assert (await bench.job(held)).state is State.PROCESSING
            await bench.until(lambda: len(bench.heard(JobEnded)) == 2)
            assert (await bench.job(held)).state is State.COMPLETED
            assert sorted(bench.runs) == sorted([held, other]), "each ran once"
            return True

    assert any(run(scenario(), 60) for _ in range(5))


async def _longest_pause(seconds: float) -> float:
    """Sleeps so long, and gives the seconds for which nothing ran."""
    end, longest = time.monotonic() + seconds, 0.0
    while (before := time.monotonic()) < end:
        await asyncio.sleep(0.05)
        longest = max(longest, time.monotonic() - before)
    return longest
