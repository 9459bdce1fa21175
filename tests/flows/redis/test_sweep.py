"""What dead workers have left, ours and the original's, is found by its second look and given back, or fails."""

from __future__ import annotations

import uuid

from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.protocols.store import Verdict
from tests.flows.redis.step_desk import ERRORED, Desk, ended

EXCEEDED = "first lock time exceeded"


def moved_by_the_original(desk: Desk, queue: str = "first") -> str:
    """Moved, and then its worker died before it set the lock."""
    job_id = desk.add(queue)
    moved = desk.client.blmove(desk.keys.waiting(queue), desk.keys.processing(queue), 1, "LEFT", "RIGHT")
    assert moved == job_id
    return job_id


def test_the_first_look_touches_nothing_and_the_second_gives_it_back(desk: Desk) -> None:
    while True:
        desk.client.flushdb()
        job_id, other, begun = moved_by_the_original(desk), desk.add(), desk.now_ms()
        assert desk.sweep(looks=1) == []
        found = desk.run(desk.store().sweep())  # at once: that is no second look
        if desk.now_ms() - begun < 1000:
            break
    assert found == []
    assert desk.where(job_id) == ["first processing"]
    assert desk.sweep(looks=1) == [ResetJob(job_id, "first", State.QUEUED)]
    assert desk.ids() == [job_id, other]
    assert desk.values(job_id) == {"resets:first": 1}
    assert desk.ids(kind="unlocked") == []


def test_a_lock_between_the_looks_keeps_it(desk: Desk) -> None:
    job_id = moved_by_the_original(desk)
    desk.sweep(looks=1)
    desk.client.set(desk.keys.lock("first", job_id), "a-worker-of-the-original", ex=100)
    assert desk.sweep(looks=1) == []
    desk.client.delete(desk.keys.lock("first", job_id))
    assert desk.sweep(looks=1) == [], "the look before the lock counts no more"
    assert len(desk.sweep(looks=1)) == 1


def test_what_ends_between_the_looks_is_not_failed(desk: Desk) -> None:
    lease = desk.start()
    desk.client.delete(desk.keys.lock("first", lease.job_id))
    desk.sweep(looks=1)
    desk.client.lrem(desk.keys.processing("first"), 1, lease.job_id)
    before = desk.values(lease.job_id)
    assert desk.sweep() == []
    assert desk.values(lease.job_id) == before


def test_an_id_whose_hash_has_expired_is_dropped_and_no_hash_is_made(desk: Desk) -> None:
    job_id = moved_by_the_original(desk)
    desk.client.delete(desk.keys.job(job_id))
    assert desk.sweep() == []
    assert desk.image() == {}


def test_a_queue_without_retries_fails_it_at_once(desk: Desk) -> None:
    job_id = moved_by_the_original(desk, "once")
    assert desk.sweep("once") == [ResetJob(job_id, "once", State.FAILED)]
    assert desk.values(job_id) == {
        "done": True, "failed": True, "failedQueue": "once", "failedErrorMsg": "once lock time exceeded"
    }  # fmt: skip
    assert desk.where(job_id) == []


def test_a_killer_runs_apart_and_fails_in_the_end(desk: Desk) -> None:
    job_id = desk.add()
    states = [desk.die(desk.take(suspects=death > 2))[0].state for death in range(1, 7)]
    assert states == [State.QUEUED] * 5 + [State.FAILED]
    assert desk.values(job_id)["failedErrorMsg"] == EXCEEDED
    assert desk.where(job_id) == []


def test_two_deaths_make_a_suspect_and_a_settled_attempt_clears_it(desk: Desk) -> None:
    job_id = desk.add()
    desk.die(desk.take())
    desk.die(desk.take())
    assert desk.where(job_id) == ["first suspects"]
    assert list(desk.claim()) == []
    assert desk.settle(desk.take(suspects=True), ERRORED) is Verdict.SETTLED
    assert desk.where(job_id) == ["first waiting"]


def test_they_come_back_in_the_order_in_which_they_were_taken(desk: Desk) -> None:
    ids = [desk.add() for _ in range(4)]
    for claim in desk.claim():
        desk.client.delete(desk.keys.lock("first", claim.lease.job_id))
    assert [reset.job_id for reset in desk.sweep()] == ids
    assert desk.ids() == ids


def test_a_long_list_is_swept_page_by_page(plain_desk: Desk) -> None:
    ids = plain_desk.add_many(2100)
    plain_desk.claim(limit=2100)
    locks = [plain_desk.keys.lock("first", job_id) for job_id in ids]
    plain_desk.client.delete(*locks[:1500], *locks[1501:])
    found = [reset.job_id for reset in plain_desk.sweep()]
    assert sorted(found) == sorted(ids[:1500] + ids[1501:])
    assert plain_desk.ids(kind="processing") == [ids[1500]]


def test_a_workers_sweep_takes_one_look_a_second_whoever_asks(plain_desk: Desk) -> None:
    moved_by_the_original(plain_desk)
    others, third = plain_desk.another("first").heart(), plain_desk.another("first").heart()
    before = plain_desk.now_ms()
    assert list(plain_desk.heart().reset_stalled(0)) == []
    left = plain_desk.client.pttl(plain_desk.keys.swept("first"))
    assert 1000 - (plain_desk.now_ms() - before) - 1 <= left <= 1000
    plain_desk.client.set(plain_desk.keys.swept("first"), "1", px=60_000)  # the second is not to pass meanwhile
    plain_desk.client.zincrby(plain_desk.keys.unlocked("first"), -1001, plain_desk.ids(kind="unlocked")[0])
    assert list(others.reset_stalled(0)) == []
    plain_desk.client.delete(plain_desk.keys.swept("first"))
    assert list(others.reset_stalled(0)) == [], "the more ask, the rarer each does"
    assert len(third.reset_stalled(0)) == 1
    others.close()
    third.close()


def test_a_sweep_brings_what_is_ready_to_the_front(desk: Desk) -> None:
    waiting, ready, later = desk.add(), desk.add(push=False), desk.add(push=False)
    desk.client.zadd(desk.keys.delayed("first"), {ready: desk.now_ms() - 1, later: desk.now_ms() + 60_000})
    assert desk.sweep(looks=1) == []
    assert desk.ids() == [ready, waiting]
    assert desk.ids(kind="delayed") == [later]


def test_a_worker_seen_dying_loses_what_it_holds_and_nobody_else_does(desk: Desk) -> None:
    ids = [desk.add() for _ in range(4)]
    desk.claim(limit=2, worker="host:1:dead")
    desk.claim(limit=1, worker="host:1:dead2")
    assert list(desk.heart().reset_worker("host:1:dead")) == [
        ResetJob(job_id, "first", State.QUEUED, "host:1:dead") for job_id in ids[:2]
    ]
    assert desk.ids() == [ids[0], ids[1], ids[3]]
    assert desk.lock("first", ids[0]) is None
    assert list(desk.heart().reset_worker("dead2")) == []


def test_after_a_reset_the_old_holder_writes_nothing(desk: Desk) -> None:
    lease = desk.start()
    assert [reset.state for reset in desk.heart().reset_lease(lease)] == [State.QUEUED]
    before = desk.image()
    assert desk.settle(lease, ended("second", x=1)) is Verdict.LOST
    assert desk.image() == before


def test_a_dead_workers_job_is_taken_back_when_its_lease_has_ended_however_long_the_lock_time(desk: Desk) -> None:
    lease = desk.start()
    lock, alive = desk.keys.lock("first", lease.job_id), desk.keys.lease(lease.token)
    assert desk.sweep() == []
    if desk.variant == "classic":
        assert desk.client.pttl(lock) > 100_000, "as the original's: it looks at nothing else"
        assert 0 < desk.client.pttl(alive) <= 30_000
        desk.client.delete(alive)
    else:
        assert 0 < desk.client.pttl(lock) <= 30_000
        desk.client.delete(lock)
    assert [reset.state for reset in desk.sweep()] == [State.QUEUED]
    assert desk.client.exists(lock) == 0
    assert desk.settle(lease, ended("second")) is Verdict.LOST


def test_a_token_that_was_abandoned_claims_nothing_more(desk: Desk) -> None:
    job_id, token = desk.add(), str(uuid.uuid4())
    desk.heart().abandon(token)
    assert list(desk.claim(token=token)) == []
    assert desk.take().job_id == job_id


def test_any_process_of_ours_sweeps_the_queues_that_only_the_original_serves(plain_desk: Desk) -> None:
    job_id, ready = moved_by_the_original(plain_desk, "second"), plain_desk.add("second", push=False)
    plain_desk.client.zadd(plain_desk.keys.delayed("second"), {ready: plain_desk.now_ms() - 2000})
    found: list[ResetJob] = []
    for _ in range(2):
        heart = plain_desk.another("first").heart()
        found = list(heart.reset_stalled(0))
        heart.close()
        plain_desk.client.delete(plain_desk.keys.swept("first"), plain_desk.keys.swept("second"))
        plain_desk.client.zincrby(plain_desk.keys.unlocked("second"), -1001, job_id)
    assert found == [ResetJob(job_id, "second", State.QUEUED)]
    assert plain_desk.ids("second") == [job_id, ready]


def test_of_a_queues_workers_one_in_four_makes_way_for_a_suspect_that_is_overdue(desk: Desk) -> None:
    for _ in range(3):
        job_id = desk.add()
        desk.client.hset(desk.hash("first", job_id), "resets:first", 1)
        desk.die(desk.take())
    assert list(desk.claim(suspects=True, overdue=60.0)) == [], "not yet"
    assert len(desk.claim(limit=1, suspects=True, overdue=0.0, worker="first")) == 1
    assert list(desk.claim(limit=1, suspects=True, overdue=0.0, worker="second")) == []
    for busy in range(6):
        desk.add()
        assert desk.claim(limit=1, worker=f"busy {busy}")
    assert len(desk.claim(limit=1, suspects=True, overdue=0.0, worker="second")) == 1
    assert list(desk.claim(limit=1, suspects=True, overdue=0.0, worker="third")) == [], "of nine two"
