"""Every pair of transitions of one job, each on a connection of its own at the same time: exactly one wins."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from stowhand.flows.redis.store import FlowStore
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import ClaimRequest, Verdict
from tests.flows.redis.step_harness import ERRORED, FAILED, SNOOZED, Harness, ended, new_token, park

ROUNDS = 4
Act = Callable[[FlowStore, Lease], Awaitable[bool]]


def settling(settlement: Settlement) -> Act:
    async def act(store: FlowStore, lease: Lease) -> bool:
        (verdict,) = await store.settle([(lease, settlement)])
        return verdict is Verdict.SETTLED

    return act


async def release(store: FlowStore, lease: Lease) -> bool:
    heartbeats = store.heartbeats()
    await heartbeats.release([lease])
    await heartbeats.close()
    return False  # it does not say


async def abandon(store: FlowStore, lease: Lease) -> bool:
    heartbeats = store.heartbeats()
    await heartbeats.abandon(lease.token)
    await heartbeats.close()
    return False


async def reset(store: FlowStore, lease: Lease) -> bool:
    heartbeats = store.heartbeats()
    result = await heartbeats.reset_lease(lease)
    await heartbeats.close()
    return len(result) == 1


ACTS: dict[str, Act] = {
    "complete": settling(ended("second")),
    "error": settling(ERRORED),
    "fail": settling(FAILED),
    "snooze": settling(SNOOZED),
    "release": release,
    "abandon": abandon,
    "reset": reset,
}
SILENT = {"release", "abandon"}


@pytest.mark.parametrize("pair", list(itertools.combinations_with_replacement(ACTS, 2)), ids="-".join)
def test_one_of_two_concurrent_settlements_wins(plain_harness: Harness, pair: tuple[str, str]) -> None:
    harness = plain_harness
    stores = [harness.new_store("first") for _ in pair]
    for turn in range(ROUNDS):
        lease = harness.start()
        order = list(zip(pair, stores, strict=True))[:: -1 if turn % 2 else 1]

        async def scene(order: list[tuple[str, FlowStore]] = order, lease: Lease = lease) -> list[bool]:
            return await asyncio.gather(*(ACTS[name](store, lease) for name, store in order))

        won = harness.run(scene())
        assert len(harness.where(lease.job_id)) == (0 if harness.values(lease.job_id).get("failed") else 1)
        assert harness.lock("first", lease.job_id) is None
        if (pair[0] != pair[1] and not SILENT & set(pair)) or pair[0] == pair[1] == "reset":
            assert sum(won) == 1
        harness.client.flushdb()


def test_two_claims_never_share_a_job(plain_harness: Harness) -> None:
    harness = plain_harness
    ids = harness.add_many(200)
    stores = [harness.new_store("first") for _ in range(4)]

    async def scene() -> list[str]:
        async def claims_of(store: FlowStore) -> list[str]:
            taken: list[str] = []
            while result := await store.claim(ClaimRequest(worker="w", token=new_token(), limit=7, lease=30.0)):
                taken += [claim.lease.job_id for claim in result]
            return taken

        return [job_id for part in await asyncio.gather(*map(claims_of, stores)) for job_id in part]

    assert sorted(harness.run(scene())) == sorted(ids)


def test_a_parent_continues_exactly_once_however_its_children_end(plain_harness: Harness) -> None:
    harness = plain_harness
    stores = [harness.new_store("parent:kid") for _ in range(4)]
    sweeper = harness.new_store("parent")
    for _ in range(5):
        parent = harness.start("parent")
        park(harness, parent, ["kid"] * 4)
        leases = [claim.lease for claim in harness.claim("parent:kid")]
        harness.client.zadd(harness.keys.parked("parent"), {parent.job_id: 1})

        async def scene(leases: list[Lease] = leases) -> None:
            ends = [store.settle([(lease, ended())]) for store, lease in zip(stores, leases, strict=True)]
            await asyncio.gather(*ends, sweeper.sweep(), sweeper.sweep())

        harness.run(scene())
        assert harness.where(parent.job_id) == ["parent waiting"]
        harness.client.flushdb()
