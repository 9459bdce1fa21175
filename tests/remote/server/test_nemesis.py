"""A server that is killed, behind a line that spoils every seventh message: each job is settled once, none is lost."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import StoreUnreachable
from stowhand.events import Events, JobEnded, JobUnknown
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.remote import HttpOptions, HttpStore
from stowhand.stores.url import open_store
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.remote.server.serving import Serving
from tests.remote.server.tokens import make_token
from tests.support.http_proxy import Fault, HttpProxy

JOBS = 300
OFTEN = 0.15
FAULTS = (Fault.DROP, Fault.LOSE, Fault.CUT, Fault.LATE, Fault.TWICE, Fault.SLOW, Fault.BAD_GATEWAY)
KILLS = 1


@pytest.fixture
def token(tmp_path: Path) -> str:
    return make_token(tmp_path / "tokens.json", "worker")


@pytest.fixture
def serving(postgres_url: str, tmp_path: Path, token: str) -> Iterator[Serving]:
    with Serving(postgres_url, tmp_path, tmp_path / "tokens.json") as serving:
        yield serving


def test_a_server_killed_between_a_claim_and_its_reply_loses_nothing(
    serving: Serving, postgres_url: str, token: str, run: Run
) -> None:
    async def go() -> None:
        async with _beside(postgres_url) as beside:
            with HttpProxy(serving.url) as proxy:
                store = HttpStore(proxy.url, HttpOptions(token=token))
                await store.open()
                job = await beside.jobs.enqueue(NewJob(task="t"))
                proxy.next("/v1/claim", Fault.LOSE)
                proxy.before_reply = lambda path: serving.kill()
                claim_token = str(uuid.uuid4())
                with pytest.raises(StoreUnreachable):
                    await store.claim(ClaimRequest(worker="w", token=claim_token, limit=1, lease=30.0))
                assert await _state(beside, job.id) == (State.PROCESSING, 1)
                proxy.before_reply = lambda path: None
                await asyncio.to_thread(serving.start)
                heartbeats = store.heartbeats()
                # The server remembers nothing; what it needs to know is in the tokens.
                assert await heartbeats.abandon(claim_token)
                await heartbeats.close()
                assert await _state(beside, job.id) == (State.QUEUED, 0)
                await store.close()

    run(go())


def test_each_job_is_settled_once_despite_network_and_server_failures(
    serving: Serving, postgres_url: str, token: str, run: Run
) -> None:
    rng = random.Random(4)
    message: Counter[int] = Counter()
    ran: Counter[int] = Counter()
    unknown: list[JobUnknown] = []

    async def handle(ctx: Attempt[Job], job: Job) -> None:
        ran[job.id] += 1
        await asyncio.sleep(rng.random() * 0.01)

    async def go() -> None:
        async with _beside(postgres_url) as beside:
            ids = await beside.jobs.enqueue_many(
                NewJob(task="t", serial=f"q{n % 7}" if n % 4 == 0 else None) for n in range(JOBS)
            )
            with HttpProxy(serving.url) as proxy:
                proxy.go.set()
                proxy.plan = lambda path: rng.choice(FAULTS) if rng.random() < OFTEN else None
                stores = [HttpStore(proxy.url, HttpOptions(token=token, timeout=3.0)) for _ in range(2)]
                workers = [await _worker(store, handle, message, unknown) for store in stores]
                running = [asyncio.create_task(worker.run()) for worker in workers]
                for kill in range(KILLS):
                    await _until(beside, JOBS * (kill + 1) // (KILLS + 1))
                    await asyncio.to_thread(serving.restart)
                await _until(beside, JOBS)
                proxy.plan = lambda path: None
                for worker in workers:
                    worker.stop()
                await asyncio.gather(*running)
                for store in stores:
                    await store.close()
            counts = await beside.inspect.counts()
            assert {state: count for state, count in counts.items() if count} == {State.COMPLETED: JOBS}
            assert len(proxy.met) > 8, "there was no bad weather at all"
            assert set(ran) == set(ids)
            assert unknown == []
            assert message == dict.fromkeys(ids, 1)

    run(go(), 100)


class _beside:  # noqa: N801 - reads as a place
    """The store itself, opened with its own URL."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url, StoreOptions(history=3600.0))

    async def __aenter__(self) -> QueueStore:
        await self._store.open()
        return self._store

    async def __aexit__(self, *exc: object) -> None:
        await self._store.close()


async def _worker(store: HttpStore, handle: Any, told: Counter[int], unknown: list[JobUnknown]) -> Worker:
    while True:
        try:
            await store.open()
            break
        except StoreUnreachable:
            continue
    events = Events()
    events.on(JobEnded, lambda event: told.update([event.job_id]))
    events.on(JobUnknown, unknown.append)
    options = WorkerOptions(concurrency=10, lease=30.0, heartbeat_interval=1.0, poll_interval=0.5, look_ahead=20)
    return Worker(store, handle, options, events=events)


async def _until(store: QueueStore, completed: int) -> None:
    while (await store.inspect.counts())[State.COMPLETED] < completed:
        await store.wait(0.05)


async def _state(store: QueueStore, job_id: int) -> tuple[State, int]:
    job = await store.jobs.get(job_id)
    assert job is not None
    return job.state, job.attempts
