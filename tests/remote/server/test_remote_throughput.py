"""A lender counts what it settles: once, with the times that it knows, and writes it at its stop at the latest."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from stowhand.events import Events, JobsReset
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Claim, ClaimRequest, RecordedSettlement, Reply, Verdict
from stowhand.protocols.throughput import total
from stowhand.remote import HttpOptions, HttpStore
from stowhand.remote.server.lender import ServerOptions, running
from stowhand.remote.server.remote_throughput import RemoteThroughput
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.heartbeat_thread import HeartbeatThread
from stowhand.worker.worker import Worker
from tests.conftest import Run

FAILED = Settlement(State.FAILED, AttemptOutcome.FAILED)


class Lender:
    """The counting part alone, on a memory store."""

    def __init__(self, *, is_kept: bool = True) -> None:
        self.clock, self.events = FakeClock(), Events()
        self.store = MemoryStore(self.clock)
        self.thread = HeartbeatThread("heartbeats of a test", self.store.heartbeats)
        self.throughput = RemoteThroughput(self.thread, self.clock, self.events, is_kept=is_kept)

    async def claim(self, count: int = 1) -> list[Claim[Any]]:
        for _ in range(count):
            await self.store.jobs.enqueue(NewJob(task="t"))
        claims = list(await self.store.claim(ClaimRequest(worker="w", token="x", limit=count, lease=30.0)))
        self.throughput.add_claims(claims)
        return claims

    async def written(self) -> dict[str | None, Any]:
        """By task, after the lender's end."""
        await self.throughput.close()
        await self.thread.close()
        now = self.clock.now()
        return {
            one.task: one.tally
            for one in await self.store.inspect.throughput(now - timedelta(hours=1), now + timedelta(hours=1))
        }


def test_a_repeated_settlement_is_counted_once(run: Run) -> None:
    async def lend() -> None:
        lender = Lender()
        claims = await lender.claim(4)
        settlements = (COMPLETED, FAILED, COMPLETED, COMPLETED)
        leases = [claim.lease for claim in claims]
        await lender.clock.advance(2)
        turned = Settlement(State.CANCELED, AttemptOutcome.CANCELED)
        replies: tuple[Reply, ...] = (Verdict.SETTLED, Verdict.ALREADY_SETTLED, Verdict.LOST, turned)
        rows = [RecordedSettlement.of(sent, reply) for sent, reply in zip(settlements, replies, strict=True)]
        lender.throughput.count_settlements(leases, rows)
        lender.throughput.count_settlements(
            leases[:2], [RecordedSettlement(Verdict.ALREADY_SETTLED, one) for one in settlements[:2]]
        )
        tally = (await lender.written())["t"]
        assert (tally.ok, tally.failed, tally.canceled, tally.ended) == (1, 1, 1, 3)
        assert 1.4 < tally.run(0.5) < 2.9
        assert sum(tally.waits.values()) == 3

    run(lend())


def test_leases_of_an_earlier_server_are_counted_without_task(run: Run) -> None:
    async def lend() -> None:
        lender = Lender()
        await lender.claim()
        lender.throughput.count_settlements([Lease(9, "y", 1)], [RecordedSettlement(Verdict.SETTLED, COMPLETED)])
        tally = (await lender.written())[None]
        assert (tally.ok, tally.runs, tally.waits) == (1, {}, {})

    run(lend())


def test_resets_are_counted(run: Run) -> None:
    async def lend() -> None:
        lender = Lender()
        await lender.claim()
        lender.events.emit(JobsReset((ResetJob(1, "t", State.QUEUED),), "lending"))
        assert (await lender.written())["t"].resets == 1

    run(lend())


def test_a_table_is_not_counted(run: Run) -> None:
    async def lend() -> None:
        lender = Lender(is_kept=False)
        (claim,) = await lender.claim()
        lender.throughput.count_settlements([claim.lease], [RecordedSettlement(Verdict.SETTLED, COMPLETED)])
        assert await lender.written() == {}

    run(lend())


def test_a_stopping_server_writes_the_counts_of_its_workers(run: Run, tokens: Path) -> None:
    store = MemoryStore()

    async def act(attempt: object, job: object) -> None: ...

    async def lend() -> None:
        now = await store.timetable.now()
        async with running(store, ServerOptions(port=0, tokens=tokens), Events()) as server:
            for _ in range(5):
                await store.jobs.enqueue(NewJob(task="t"))
            async with HttpStore(server.url, HttpOptions()) as remote:
                await Worker(remote, act, WorkerOptions(once=True), events=Events()).run()
        result = total(await store.inspect.throughput(now, now + timedelta(hours=1)))
        assert (result.ok, sum(result.runs.values()), sum(result.waits.values())) == (5, 5, 5)

    run(asyncio.wait_for(lend(), 60))
