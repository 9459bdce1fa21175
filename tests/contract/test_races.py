"""Races: many hands on the same jobs at the same time, each with a store of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import Claim, ClaimRequest, Heartbeats, Pulse, Verdict
from tests.contract.needs import excepted, needs
from tests.contract.store_harness import ERRORED, LEASE, StoreHarness, new_token


async def work(store: QueueStore, name: str, limit: int, seen: list[int]) -> None:
    """A worker without a loop: claim and settle until nothing waits."""
    while await store.next_due(None) is not None:
        request = ClaimRequest(worker=name, token=new_token(), limit=limit, lease=LEASE)
        claims = await store.claim(request)
        seen.extend(claim.lease.job_id for claim in claims)
        await settle_all(store, claims)


async def settle_all(store: QueueStore, claims: Sequence[Claim[Job]]) -> None:
    """A claim of others may hold a row, or its serial key's, for the moment in which it finds that it is not to be
    had."""
    left = [claim.lease for claim in claims]
    while left:
        verdicts = await store.settle([(lease, COMPLETED) for lease in left])
        assert set(verdicts) <= {Verdict.SETTLED, Verdict.BUSY}
        left = [lease for lease, verdict in zip(left, verdicts, strict=True) if verdict is Verdict.BUSY]


async def test_eight_workers_run_each_of_five_hundred_jobs_exactly_once(harness: StoreHarness) -> None:
    ids = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(500))
    seen: list[int] = []
    stores = [await harness.another() for _ in range(8)]
    await asyncio.gather(*(work(store, f"w{n}", 1 + n * 3, seen) for n, store in enumerate(stores)))
    assert sorted(seen) == sorted(ids)
    assert (await harness.store.inspect.counts())[State.COMPLETED] == 500


async def test_two_claimers_never_share_a_job(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(4)]
    for _ in range(15):
        await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(10))
        requests = [ClaimRequest(worker="w", token=new_token(), limit=3, lease=LEASE) for _ in stores]
        claimed = await asyncio.gather(*(store.claim(each) for store, each in zip(stores, requests, strict=True)))
        ids = [claim.lease.job_id for claims in claimed for claim in claims]
        assert len(ids) == len(set(ids)), Counter(ids).most_common(1)
        assert ids, "somebody must get something"


async def test_two_claimers_never_share_a_suspect(harness: StoreHarness) -> None:
    for number in range(20):
        await harness.make_suspect(task=f"t{number}")
    stores = [await harness.another() for _ in range(4)]
    taken: list[int] = []
    while len(taken) < 20:
        requests = [ClaimRequest(worker="w", token=new_token(), limit=1, lease=LEASE, suspects=True) for _ in stores]
        claimed = await asyncio.gather(*(store.claim(each) for store, each in zip(stores, requests, strict=True)))
        ids = [claim.lease.job_id for claims in claimed for claim in claims]
        assert ids, "somebody must get something"
        taken += ids
        assert len(taken) == len(set(taken)), Counter(taken).most_common(1)


@needs("serials")
async def test_jobs_of_one_queue_never_run_side_by_side(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t", serial=f"q{n % 3}") for n in range(60))
    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {"q0": [], "q1": [], "q2": []}

    async def serve(store: QueueStore, name: str) -> None:
        while await store.next_due(None) is not None:
            claims = await store.claim(ClaimRequest(worker=name, token=new_token(), limit=2, lease=LEASE))
            for claim in claims:
                assert claim.serial is not None
                running[claim.serial] += 1
                assert running[claim.serial] == 1, f"two jobs of {claim.serial} at once"
                order[claim.serial].append(claim.lease.job_id)
            await asyncio.sleep(0)
            for claim in claims:
                running[claim.serial or ""] -= 1
            await settle_all(store, claims)

    stores = [await harness.another() for _ in range(4)]
    await asyncio.gather(*(serve(store, f"w{n}") for n, store in enumerate(stores)))
    assert all(len(ids) == 20 and ids == sorted(ids) for ids in order.values())


async def test_one_lease_is_settled_once_however_many_try(harness: StoreHarness) -> None:
    stores = [await harness.another() for _ in range(3)]
    for _ in range(10):
        lease = await harness.start()
        answers = await asyncio.gather(*(store.settle([(lease, COMPLETED)]) for store in stores))
        verdicts = Counter(verdict for (verdict,) in answers)
        assert verdicts[Verdict.SETTLED] == 1
        assert set(verdicts) <= {Verdict.SETTLED, Verdict.ALREADY_SETTLED, Verdict.BUSY}


async def test_a_settlement_and_a_reset_exclude_each_other(harness: StoreHarness) -> None:
    threads = [harness.heartbeat_thread(await harness.another()) for _ in range(2)]
    for _ in range(10):
        lease = await harness.start()
        await harness.pass_time(31)
        sweeps = asyncio.gather(*(one.call(lambda heartbeats: heartbeats.reset_stalled(0.0)) for one in threads))
        verdict, pages = await asyncio.gather(harness.settle(lease), sweeps)
        taken = [reset.job_id for page in pages for reset in page]
        state = (await harness.job(lease.job_id)).state
        assert (verdict, taken, state) in (
            (Verdict.SETTLED, [], State.COMPLETED),
            (Verdict.LOST, [lease.job_id], State.QUEUED),
            (Verdict.BUSY, [lease.job_id], State.QUEUED),
        )
        await harness.store.admin.remove(lease.job_id)


@needs("cancel")
async def test_a_beat_and_a_reset_agree_on_who_holds_the_job(harness: StoreHarness) -> None:
    ours, theirs = [harness.heartbeat_thread(store) for store in (harness.store, await harness.another())]
    for _ in range(10):
        lease = await harness.start()
        await harness.pass_time(31)
        beating = ours.call(partial(beat, [lease]))
        sweeping = theirs.call(lambda heartbeats: heartbeats.reset_stalled(0.0))
        pulse, resets = await asyncio.gather(beating, sweeping)
        if (lease.job_id, lease.token) in pulse.lost | pulse.busy:
            assert [reset.job_id for reset in resets] == [lease.job_id]
        else:
            assert list(resets) == []
        await harness.store.admin.cancel(lease.job_id)
        await harness.settle(lease, ERRORED)
        await harness.store.admin.remove(lease.job_id)


@needs("cancel")
@excepted(table="a late cancel is obeyed when the record's turn comes")
async def test_a_cancellation_is_never_lost_to_a_settlement(harness: StoreHarness) -> None:
    other = await harness.another()
    for _ in range(10):
        lease = await harness.start()
        verdict, _ = await asyncio.gather(harness.settle(lease, ERRORED), other.admin.cancel(lease.job_id))
        if verdict is Verdict.BUSY:  # by the cancellation, which was first
            assert await harness.settle(lease, ERRORED) is Verdict.SETTLED
        assert (await harness.job(lease.job_id)).state is State.CANCELED


async def test_two_resetters_take_each_job_once(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(200))
    for _ in range(2):
        await harness.claim(100)
    await harness.pass_time(31)
    threads = [harness.heartbeat_thread(await harness.another()) for _ in range(3)]

    async def sweep(heartbeats: Heartbeats) -> list[int]:
        rows: list[int] = []
        while page := await heartbeats.reset_stalled(0.0):
            rows.extend(reset.job_id for reset in page)
        return rows

    rows = await asyncio.gather(*(thread.call(sweep) for thread in threads))
    ids = [job_id for page in rows for job_id in page]
    assert len(ids) == len(set(ids)) == 200
    assert {job.resets for job in await harness.everything()} == {1}


@needs("tokens")
async def test_an_abandoned_claim_never_holds_a_job_however_they_race(harness: StoreHarness) -> None:
    other, thread = await harness.another(), harness.heartbeat_thread(harness.store)
    for _ in range(10):
        job = await harness.add()
        token = new_token()
        request = ClaimRequest(worker="w", token=token, limit=1, lease=LEASE)
        await asyncio.gather(other.claim(request), thread.call(partial(abandon, token)))
        after = await harness.job(job.id)
        assert (after.state, after.attempts) == (State.QUEUED, 0)
        await harness.store.admin.remove(job.id)


async def beat(leases: Sequence[Lease], heartbeats: Heartbeats) -> Pulse:
    return await heartbeats.beat(leases, LEASE)


async def abandon(token: str, heartbeats: Heartbeats) -> bool:
    return await heartbeats.abandon(token)
