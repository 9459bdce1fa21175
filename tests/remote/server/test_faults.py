"""Bad days between a worker and the server that lends: replies lost, cut, doubled and late, tokens stolen and expired.

Whatever happens: nothing is lost, and nothing is accepted twice.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stowhand.errors import OutcomeUnknown, StoreError, StoreUnreachable
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import Claim, ClaimRequest, Verdict
from stowhand.remote import HttpOptions, HttpStore
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.remote.server.tokens import make_token, revoke
from tests.support.http_proxy import Fault, HttpProxy
from tests.support.shared_server import SharedServer


@pytest.fixture(scope="module")
def shared_server() -> Iterator[SharedServer]:
    with SharedServer() as shared_server:
        yield shared_server


class Scene:
    """A store in memory, its server, a proxy before that, and a client."""

    def __init__(self, shared_server: SharedServer, tokens: Path | None = None) -> None:
        self.lent = MemoryStore()
        self.url = shared_server.lend(self.lent, tokens)
        self.proxy = HttpProxy(self.url)
        self._stores: list[HttpStore] = []

    async def client(self, token: str | None = None, **options: Any) -> HttpStore:
        store = HttpStore(self.proxy.url, HttpOptions(token=token, **options))
        self._stores.append(store)
        await store.open()
        return store

    async def claim(self, store: HttpStore, token: str | None = None, limit: int = 1) -> list[Claim[Any]]:
        request = ClaimRequest(worker="w", token=token or str(uuid.uuid4()), limit=limit, lease=30.0)
        return list(await store.claim(request))

    async def state(self, job_id: int) -> tuple[State, int]:
        job = await self.lent.jobs.get(job_id)
        assert job is not None
        return job.state, job.attempts

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@asynccontextmanager
async def scene(shared_server: SharedServer, tokens: Path | None = None) -> AsyncIterator[Scene]:
    instance = await asyncio.to_thread(Scene, shared_server, tokens)
    with instance.proxy:
        try:
            yield instance
        finally:
            await instance.close()
            await asyncio.to_thread(shared_server.withdraw, instance.url)


@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.CUT, Fault.BAD_GATEWAY, Fault.DROP])
def test_a_claim_without_a_reply_is_abandoned_and_its_jobs_return_without_an_attempt(
    shared_server: SharedServer, run: Run, fault: Fault
) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            job = await on.lent.jobs.enqueue(NewJob(task="t"))
            on.proxy.next("/v1/claim", fault)
            token = str(uuid.uuid4())
            with pytest.raises(StoreUnreachable):
                await on.claim(store, token)
            heartbeats = store.heartbeats()
            assert await heartbeats.abandon(token)
            await heartbeats.close()
            assert await on.state(job.id) == (State.QUEUED, 0)
            assert await on.claim(store, token) == []
            assert len(await on.claim(store)) == 1

    run(go())


def test_a_claim_that_arrives_after_its_token_was_abandoned_claims_nothing(
    shared_server: SharedServer, run: Run
) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            job = await on.lent.jobs.enqueue(NewJob(task="t"))
            on.proxy.next("/v1/claim", Fault.LATE)
            token = str(uuid.uuid4())
            with pytest.raises(StoreUnreachable):
                await on.claim(store, token)
            heartbeats = store.heartbeats()
            assert await heartbeats.abandon(token)
            await heartbeats.close()
            on.proxy.go.set()
            assert await asyncio.to_thread(on.proxy.done_late.wait, 25)
            assert await on.state(job.id) == (State.QUEUED, 0)

    run(go())


def test_a_claim_that_arrives_twice_is_refused_and_abandoned_so_its_jobs_return_to_the_queue(
    shared_server: SharedServer, run: Run
) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            ids = [(await on.lent.jobs.enqueue(NewJob(task="t"))).id for _ in range(4)]
            on.proxy.next("/v1/claim", Fault.TWICE)
            token = str(uuid.uuid4())
            with pytest.raises(StoreUnreachable, match="already used"):
                await on.claim(store, token, limit=2)
            assert (await on.lent.inspect.counts())[State.PROCESSING] == 2
            heartbeats = store.heartbeats()
            assert await heartbeats.abandon(token)
            await heartbeats.close()
            assert [await on.state(job_id) for job_id in ids] == [(State.QUEUED, 0)] * 4
            claims = await on.claim(store, limit=4)
            assert await store.settle([(one.lease, COMPLETED) for one in claims]) == [Verdict.SETTLED] * 4

    run(go())


@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.CUT, Fault.BAD_GATEWAY])
def test_a_repeat_reports_the_settlement_whose_reply_was_lost(
    shared_server: SharedServer, run: Run, fault: Fault
) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            job = await on.lent.jobs.enqueue(NewJob(task="t"))
            (claim,) = await on.claim(store)
            on.proxy.next("/v1/settle", fault)
            with pytest.raises(StoreUnreachable):
                await store.settle([(claim.lease, COMPLETED)])
            assert await store.settle([(claim.lease, COMPLETED)], repeat=True) == [Verdict.ALREADY_SETTLED]
            assert await on.state(job.id) == (State.COMPLETED, 1)

    run(go())


def test_a_settlement_that_arrives_twice_is_recorded_once(shared_server: SharedServer, run: Run) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            await on.lent.jobs.enqueue(NewJob(task="t"))
            (claim,) = await on.claim(store)
            on.proxy.next("/v1/settle", Fault.TWICE)
            assert await store.settle([(claim.lease, COMPLETED)]) == [Verdict.ALREADY_SETTLED]

    run(go())


@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.CUT, Fault.BAD_GATEWAY])
def test_an_enqueue_without_a_reply_is_outcome_unknown_and_its_repeat_with_a_key_makes_one_job(
    shared_server: SharedServer, run: Run, fault: Fault
) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            on.proxy.next("/v1/enqueue", fault)
            with pytest.raises(OutcomeUnknown, match="same key"):
                await store.jobs.enqueue(NewJob(task="t", key="k"))
            await store.jobs.enqueue(NewJob(task="t", key="k"))
            assert (await on.lent.inspect.counts())[State.QUEUED] == 1

    run(go())


def test_a_lost_reply_to_a_heartbeat_has_no_effect(shared_server: SharedServer, run: Run) -> None:
    async def go() -> None:
        async with scene(shared_server) as on:
            store = await on.client()
            await on.lent.jobs.enqueue(NewJob(task="t"))
            (claim,) = await on.claim(store)
            heartbeats = store.heartbeats()
            on.proxy.next("/v1/heartbeat", Fault.LOSE, Fault.TWICE)
            with pytest.raises(StoreUnreachable):
                await heartbeats.beat([claim.lease], 30.0)
            assert not (await heartbeats.beat([claim.lease], 30.0)).lost
            on.proxy.next("/v1/release", Fault.LOSE)
            with pytest.raises(StoreUnreachable):
                await heartbeats.release([claim.lease])
            assert list(await heartbeats.release([claim.lease])) == []
            await heartbeats.close()
            assert await on.state(claim.lease.job_id) == (State.QUEUED, 0)

    run(go())


def test_a_lease_under_another_worker_token_changes_nothing(
    shared_server: SharedServer, run: Run, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    mine, theirs = make_token(tokens, "mine"), make_token(tokens, "theirs")

    async def go() -> None:
        async with scene(shared_server, tokens) as on:
            owner, thief = await on.client(mine), await on.client(theirs)
            await on.lent.jobs.enqueue(NewJob(task="t"))
            claim_token = str(uuid.uuid4())
            (claim,) = await on.claim(owner, claim_token)
            for proofs in ({}, dict(owner._proofs._held)):  # the lease alone; the lease and what proves it
                thief._proofs._held = proofs
                assert await thief.settle([(claim.lease, COMPLETED)]) == [Verdict.LOST]
                heartbeats = thief.heartbeats()
                pair = (claim.lease.job_id, claim.lease.token)
                thief._proofs._held = proofs
                assert (await heartbeats.beat([claim.lease], 30.0)).lost == {pair}
                await heartbeats.release([claim.lease])
                await heartbeats.abandon(claim_token)
                await heartbeats.close()
                assert await on.state(claim.lease.job_id) == (State.PROCESSING, 1)
            assert await on.claim(thief, claim_token) == []
            assert await owner.settle([(claim.lease, COMPLETED)]) == [Verdict.SETTLED]

    run(go())


def test_a_token_that_is_revoked_during_work_is_reported_with_a_fix_and_never_shown(
    shared_server: SharedServer, run: Run, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    token = make_token(tokens, "short")

    async def go() -> None:
        async with scene(shared_server, tokens) as on:
            store = await on.client(token)
            await on.lent.jobs.enqueue(NewJob(task="t"))
            (claim,) = await on.claim(store)
            revoke(tokens, "short")
            for _ in range(2):
                with pytest.raises(StoreError, match="stowhand tokens make") as refused:
                    await store.settle([(claim.lease, COMPLETED)])
                assert token not in str(refused.value)
            assert await on.state(claim.lease.job_id) == (State.PROCESSING, 1)

    run(go())
