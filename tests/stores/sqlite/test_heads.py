"""The heads of serial keys: whatever happened, a claim takes what a look at every row would take."""

from __future__ import annotations

import random
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Claim, ClaimRequest, StoreOptions
from stowhand.stores.sqlite.queue import SqliteStore, claim
from tests.conftest import Run
from tests.model.engine.store import ModelStore
from tests.stores.sqlite.programs import request

ERRORED = Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=7.0, error="x")


@pytest.mark.parametrize("seed", range(6))
def test_claims_by_heads_equal_claims_by_a_scan_of_every_row(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(claim, "MAX_RECHECKS_PER_TRANSACTION", 2)  # so that a claim needs several transactions
    chance = random.Random(seed)
    now = datetime(2030, 1, 1, tzinfo=UTC)

    async def scenario() -> None:
        nonlocal now
        options = StoreOptions(pinned=lambda: now)
        stores = (SqliteStore(path, options), ModelStore(options))
        running: list[Claim[Job]] = []
        for _ in range(150):
            now += timedelta(seconds=chance.choice((0, 1, 5)))
            match chance.randrange(6):
                case 0 | 1:
                    job = any_job(chance)
                    first, second = [await store.jobs.enqueue(job) for store in stores]
                    assert first == second
                case 2 | 3:
                    requests = any_request(chance)
                    first_claims, second_claims = [await store.claim(requests) for store in stores]
                    assert [one.lease for one in first_claims] == [one.lease for one in second_claims]
                    running += first_claims
                case 4 if running:
                    lease = running.pop(chance.randrange(len(running))).lease
                    how = chance.choice((COMPLETED, ERRORED))
                    assert [await store.settle([(lease, how)]) for store in stores]
                case 5:
                    name = chance.choice(("q1", "q2", "q3"))
                    if chance.randrange(2):
                        changes = [await store.operate.pause_serial(name) for store in stores]
                    else:
                        changes = [await store.operate.resume_serial(name) for store in stores]
                    assert changes[0] == changes[1]
            rows, same_rows = [await store.inspect.serials() for store in stores]
            assert rows == same_rows
            first_due, second_due = [await store.next_due(("a", "b")) for store in stores]
            assert first_due == second_due
        assert running or sum((await stores[0].inspect.counts()).values())
        await stores[0].close()

    run(scenario())


def any_job(chance: random.Random) -> NewJob:
    return NewJob(
        task=chance.choice("abc"),
        serial=chance.choice((None, "q1", "q2", "q3")),
        priority=chance.choice((-1, 0, 1)),
        delay=chance.choice((None, None, 3.0, 20.0)),
        key=chance.choice((None, None, "k1", "k2")),
        flags=chance.choice(((), (), ("f",))),
    )


def any_request(chance: random.Random) -> ClaimRequest:
    tasks = chance.choice((None, ("a",), ("a", "b")))
    return request(chance.choice((1, 3, 10)), tasks=tasks, forbidden_flags=chance.choice(((), ("f",))))


def test_a_head_that_is_not_due_gives_way_to_a_later_one(path: Path, run: Run) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)

    async def scenario() -> None:
        nonlocal now
        store = SqliteStore(path, StoreOptions(pinned=lambda: now))
        urgent = await store.jobs.enqueue(NewJob(task="t", serial="q", priority=-1, delay=60.0))
        other = await store.jobs.enqueue(NewJob(task="t", serial="q", priority=5))
        third = await store.jobs.enqueue(NewJob(task="t", serial="q", priority=5))
        (first,) = await store.claim(request(9))
        assert first.lease.job_id == other.id
        assert await store.claim(request(9)) == []
        await store.settle([(first.lease, COMPLETED)])
        now += timedelta(seconds=60)
        (second,) = await store.claim(request(9))
        assert second.lease.job_id == urgent.id
        await store.settle([(second.lease, COMPLETED)])
        assert [one.lease.job_id for one in await store.claim(request(9))] == [third.id]
        await store.close()

    run(scenario())


def test_two_running_jobs_of_one_queue_cannot_be_written(path: Path, run: Run) -> None:
    async def scenario() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue_many([NewJob(task="t", serial="q") for _ in range(2)])
        assert len(await store.claim(request(9))) == 1
        await store.close()

    run(scenario())
    raw = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: .*key_slot"):
        raw.execute(
            "UPDATE stowhand_jobs SET state = 'processing', token = 'x', lease_boot = 'b', lease_until = 1 WHERE id = 2"
        )
    raw.close()
