"""What dead workers have left, ours and the original's, is found by its second look and given back, or fails."""

from __future__ import annotations

import uuid

from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.protocols.store import Verdict
from tests.flows.redis.step_harness import ERRORED, Harness, ended

EXCEEDED = "first lock time exceeded"


def moved_by_the_original(harness: Harness, queue: str = "first") -> str:
    """Moved, and then its worker died before it set the lock."""
    job_id = harness.add(queue)
    moved = harness.client.blmove(harness.keys.waiting(queue), harness.keys.processing(queue), 1, "LEFT", "RIGHT")
    assert moved == job_id
    return job_id


def test_the_first_sweep_changes_nothing_and_the_second_resets_the_job(harness: Harness) -> None:
    while True:
        harness.client.flushdb()
        job_id, other, begun = moved_by_the_original(harness), harness.add(), harness.now_ms()
        assert harness.sweep(sweeps=1) == []
        result = harness.run(harness.store().sweep())  # at once: that is not a second look
        if harness.now_ms() - begun < 1000:
            break
    assert result == []
    assert harness.where(job_id) == ["first processing"]
    assert harness.sweep(sweeps=1) == [ResetJob(job_id, "first", State.QUEUED)]
    assert harness.ids() == [job_id, other]
    assert harness.values(job_id) == {"resets:first": 1}
    assert harness.ids(kind="unlocked") == []


def test_a_lock_between_two_sweeps_keeps_the_job(harness: Harness) -> None:
    job_id = moved_by_the_original(harness)
    harness.sweep(sweeps=1)
    harness.client.set(harness.keys.lock("first", job_id), "a-worker-of-the-original", ex=100)
    assert harness.sweep(sweeps=1) == []
    harness.client.delete(harness.keys.lock("first", job_id))
    assert harness.sweep(sweeps=1) == [], "the look before the lock counts no more"
    assert len(harness.sweep(sweeps=1)) == 1


def test_a_job_that_ends_between_two_sweeps_is_not_reset(harness: Harness) -> None:
    lease = harness.start()
    harness.client.delete(harness.keys.lock("first", lease.job_id))
    harness.sweep(sweeps=1)
    harness.client.lrem(harness.keys.processing("first"), 1, lease.job_id)
    before = harness.values(lease.job_id)
    assert harness.sweep() == []
    assert harness.values(lease.job_id) == before


def test_an_id_whose_hash_has_expired_is_dropped_and_no_hash_is_made(harness: Harness) -> None:
    job_id = moved_by_the_original(harness)
    harness.client.delete(harness.keys.job(job_id))
    assert harness.sweep() == []
    assert harness.snapshot() == {}


def test_a_queue_without_retries_fails_it_at_once(harness: Harness) -> None:
    job_id = moved_by_the_original(harness, "once")
    assert harness.sweep("once") == [ResetJob(job_id, "once", State.FAILED)]
    assert harness.values(job_id) == {
        "done": True, "failed": True, "failedQueue": "once", "failedErrorMsg": "once lock time exceeded"
    }  # fmt: skip
    assert harness.where(job_id) == []


def test_a_job_that_kills_workers_runs_apart_and_fails(harness: Harness) -> None:
    job_id = harness.add()
    states = [harness.die(harness.take(suspects=death > 2))[0].state for death in range(1, 7)]
    assert states == [State.QUEUED] * 5 + [State.FAILED]
    assert harness.values(job_id)["failedErrorMsg"] == EXCEEDED
    assert harness.where(job_id) == []


def test_two_deaths_make_a_suspect_and_a_settled_attempt_clears_it(harness: Harness) -> None:
    job_id = harness.add()
    harness.die(harness.take())
    harness.die(harness.take())
    assert harness.where(job_id) == ["first suspects"]
    assert list(harness.claim()) == []
    assert harness.settle(harness.take(suspects=True), ERRORED) is Verdict.SETTLED
    assert harness.where(job_id) == ["first waiting"]


def test_reset_jobs_return_in_the_order_of_their_claims(harness: Harness) -> None:
    ids = [harness.add() for _ in range(4)]
    for claim in harness.claim():
        harness.client.delete(harness.keys.lock("first", claim.lease.job_id))
    assert [reset.job_id for reset in harness.sweep()] == ids
    assert harness.ids() == ids


def test_a_long_list_is_swept_page_by_page(plain_harness: Harness) -> None:
    ids = plain_harness.add_many(2100)
    plain_harness.claim(limit=2100)
    locks = [plain_harness.keys.lock("first", job_id) for job_id in ids]
    plain_harness.client.delete(*locks[:1500], *locks[1501:])
    rows = [reset.job_id for reset in plain_harness.sweep()]
    assert sorted(rows) == sorted(ids[:1500] + ids[1501:])
    assert plain_harness.ids(kind="processing") == [ids[1500]]


def test_all_workers_of_a_queue_share_one_sweep_a_second(plain_harness: Harness) -> None:
    moved_by_the_original(plain_harness)
    others, third = (plain_harness.heartbeats_of(plain_harness.new_store("first")) for _ in range(2))
    before = plain_harness.now_ms()
    assert list(plain_harness.heartbeats().reset_stalled(0)) == []
    left = plain_harness.client.pttl(plain_harness.keys.swept("first"))
    assert 1000 - (plain_harness.now_ms() - before) - 1 <= left <= 1000
    plain_harness.client.set(plain_harness.keys.swept("first"), "1", px=60_000)  # the second is not to pass meanwhile
    plain_harness.client.zincrby(plain_harness.keys.unlocked("first"), -1001, plain_harness.ids(kind="unlocked")[0])
    assert list(others.reset_stalled(0)) == []
    plain_harness.client.delete(plain_harness.keys.swept("first"))
    assert list(others.reset_stalled(0)) == [], "the more ask, the rarer each does"
    assert len(third.reset_stalled(0)) == 1


def test_a_sweep_moves_ready_jobs_to_the_front(harness: Harness) -> None:
    waiting, ready, later = harness.add(), harness.add(push=False), harness.add(push=False)
    harness.client.zadd(harness.keys.delayed("first"), {ready: harness.now_ms() - 1, later: harness.now_ms() + 60_000})
    assert harness.sweep(sweeps=1) == []
    assert harness.ids() == [ready, waiting]
    assert harness.ids(kind="delayed") == [later]


def test_the_jobs_of_a_dead_worker_are_reset_and_no_others(harness: Harness) -> None:
    ids = [harness.add() for _ in range(4)]
    harness.claim(limit=2, worker="host:1:dead")
    harness.claim(limit=1, worker="host:1:dead2")
    assert list(harness.heartbeats().reset_worker("host:1:dead")) == [
        ResetJob(job_id, "first", State.QUEUED, "host:1:dead") for job_id in ids[:2]
    ]
    assert harness.ids() == [ids[0], ids[1], ids[3]]
    assert harness.lock("first", ids[0]) is None
    assert list(harness.heartbeats().reset_worker("dead2")) == []


def test_after_a_reset_the_old_holder_writes_nothing(harness: Harness) -> None:
    lease = harness.start()
    assert [reset.state for reset in harness.heartbeats().reset_lease(lease)] == [State.QUEUED]
    before = harness.snapshot()
    assert harness.settle(lease, ended("second", x=1)) is Verdict.LOST
    assert harness.snapshot() == before


def test_a_dead_workers_job_is_reset_when_its_lease_expires_whatever_the_lock_time(harness: Harness) -> None:
    lease = harness.start()
    lock, alive = harness.keys.lock("first", lease.job_id), harness.keys.lease(lease.token)
    assert harness.sweep() == []
    if harness.variant == "classic":
        assert harness.client.pttl(lock) > 100_000, "as the original's: it looks at nothing else"
        assert 0 < harness.client.pttl(alive) <= 30_000
        harness.client.delete(alive)
    else:
        assert 0 < harness.client.pttl(lock) <= 30_000
        harness.client.delete(lock)
    assert [reset.state for reset in harness.sweep()] == [State.QUEUED]
    assert harness.client.exists(lock) == 0
    assert harness.settle(lease, ended("second")) is Verdict.LOST


def test_a_token_that_was_abandoned_claims_nothing_more(harness: Harness) -> None:
    job_id, token = harness.add(), str(uuid.uuid4())
    harness.heartbeats().abandon(token)
    assert list(harness.claim(token=token)) == []
    assert harness.take().job_id == job_id


def test_our_processes_sweep_queues_that_only_the_original_serves(plain_harness: Harness) -> None:
    job_id, ready = moved_by_the_original(plain_harness, "second"), plain_harness.add("second", push=False)
    plain_harness.client.zadd(plain_harness.keys.delayed("second"), {ready: plain_harness.now_ms() - 2000})
    rows: list[ResetJob] = []
    for _ in range(2):
        rows = list(plain_harness.heartbeats_of(plain_harness.new_store("first")).reset_stalled(0))
        plain_harness.client.delete(plain_harness.keys.swept("first"), plain_harness.keys.swept("second"))
        plain_harness.client.zincrby(plain_harness.keys.unlocked("second"), -1001, job_id)
    assert rows == [ResetJob(job_id, "second", State.QUEUED)]
    assert plain_harness.ids("second") == [job_id, ready]
