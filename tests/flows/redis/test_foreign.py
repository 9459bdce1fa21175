"""Keys and values of other programs, and missing permissions: they affect only their own job."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from stowhand.errors import StoreError, StoreUnreachable
from stowhand.flows.redis.store import MAX_CLAIM, FlowStore
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import Retry, Settlement, Snooze
from stowhand.protocols.store import ClaimRequest, Verdict
from tests.flows.redis.step_harness import (
    ERRORED,
    LEASE,
    SNOOZED,
    WINDOW,
    Harness,
    ended,
    new_token,
    park,
    settlement_of,
)
from tests.support.redis_proxy import RedisProxy

DAY = 86_400_000


def limited(harness: Harness, *keys: str, readable: str) -> FlowStore:
    """A store of ``first`` whose login may do everything, and that with these keys; others it may read.

    Before Redis 7 there is no such right: it may not even read them.
    """
    if int(harness.client.info()["redis_version"].split(".")[0]) >= 7:
        keys = (*keys, f"%R~{readable}")
    harness.client.acl_setuser("limited", enabled=True, reset=True, passwords=["+secret"], commands=["+@all"])
    harness.client.execute_command("ACL", "SETUSER", "limited", *keys)
    parts = urlsplit(harness.url)
    url = parts._replace(netloc=f"limited:secret@{parts.netloc.rpartition('@')[2]}").geturl()
    return harness.new_store("first", url=url)


@pytest.fixture
def guarded(plain_harness: Harness) -> Iterator[Harness]:
    """A harness on whose server a login is limited."""
    yield plain_harness
    plain_harness.client.acl_deluser("limited")


@pytest.mark.parametrize("text", ["x", "-3", "9" * 5000, "inf", ""], ids=["text", "negative", "long", "inf", "empty"])
def test_retries_that_are_no_number_count_as_none(plain_harness: Harness, text: str) -> None:
    others = [plain_harness.start(), plain_harness.start()]
    lease = plain_harness.start()
    plain_harness.client.hset(plain_harness.hash("first", lease.job_id), "retries:first", text)
    ends = [(others[0], ended("second")), (lease, ERRORED), (others[1], ended("second"))]
    assert set(plain_harness.run(plain_harness.store().settle(ends))) == {Verdict.SETTLED}
    assert plain_harness.ids("second") == [other.job_id for other in others]
    assert plain_harness.where(lease.job_id) == ["first waiting"]
    assert plain_harness.values(lease.job_id)["retries:first"] == 1


@pytest.mark.parametrize("harness", ["classic", "priority"], indirect=True)
@pytest.mark.parametrize("text", ["9" * 5000, "x"], ids=["long", "text"])
def test_counts_that_are_none_do_not_stop_a_claim(harness: Harness, text: str) -> None:
    job_id, other = harness.add(), harness.add()
    harness.client.hset(
        harness.hash("first", job_id), mapping={"retries:first": text, "resets:first": text, "priority": text}
    )
    claim, after = harness.claim()
    assert (claim.lease.job_id, claim.attempts, claim.resets, claim.record.priority) == (job_id, 1, 0, 1)
    assert after.lease.job_id == other


@pytest.mark.parametrize("harness", ["priority"], indirect=True)
@pytest.mark.parametrize("text", ["1.5", "-7", "inf", "nan", '"high"'])
def test_an_undeclared_priority_is_adjusted_to_the_next_queue(harness: Harness, text: str) -> None:
    lease = harness.start()
    harness.client.hset(harness.hash("first", lease.job_id), "priority", text)
    assert harness.settle(lease, ended("second")) is Verdict.SETTLED
    assert harness.where(lease.job_id) == ["second waiting"]


def test_without_priorities_that_attribute_is_the_users_own(plain_harness: Harness) -> None:
    lease = plain_harness.start()
    plain_harness.client.hset(plain_harness.hash("first", lease.job_id), "priority", "7")
    assert plain_harness.settle(lease, ended("second")) is Verdict.SETTLED
    assert plain_harness.client.hget(plain_harness.hash("first", lease.job_id), "priority") == "7"


def test_a_next_queue_with_a_key_of_another_type_fails_only_its_jobs(plain_harness: Harness) -> None:
    leases = [plain_harness.start() for _ in range(3)]
    plain_harness.client.set(plain_harness.keys.waiting("second"), "somebody else's")
    ends = [ended("second"), ended("once"), ended("second")]
    first, second, third = plain_harness.run(plain_harness.store().settle(list(zip(leases, ends, strict=True))))
    assert second is Verdict.SETTLED
    assert [getattr(one, "state", one) for one in (first, third)] == [State.FAILED] * 2
    plain_harness.client.delete(plain_harness.keys.waiting("second"))
    assert [plain_harness.where(lease.job_id) for lease in leases] == [[], ["once waiting"], []]
    for lease in (leases[0], leases[2]):
        values = plain_harness.values(lease.job_id)
        assert (values["failed"], values["failedQueue"]) == (True, "first")
        assert "WRONGTYPE" in values["failedErrorMsg"]
        assert plain_harness.lock("first", lease.job_id) is None


def test_a_childs_queue_with_a_key_of_another_type_fails_its_parent(plain_harness: Harness) -> None:
    lease = plain_harness.start("parent")
    plain_harness.client.set(plain_harness.keys.waiting("parent:kid"), "somebody else's")
    park(plain_harness, lease, recorded=State.FAILED)
    plain_harness.client.delete(plain_harness.keys.waiting("parent:kid"))
    assert plain_harness.where(lease.job_id) == []
    assert "WRONGTYPE" in plain_harness.values(lease.job_id, "parent")["failedErrorMsg"]


@pytest.mark.parametrize("text", ["x", "1.5", "0", "-4"])
def test_the_sweep_repairs_an_invalid_count_of_children(plain_harness: Harness, text: str) -> None:
    lease = plain_harness.start("parent")
    (queue, _), *_ = park(plain_harness, lease, ["kid"])
    plain_harness.client.hset(plain_harness.hash("parent", lease.job_id), "children:parent:open", text)
    assert plain_harness.settle(plain_harness.take(queue), ended(), queue) is Verdict.SETTLED
    assert plain_harness.where(lease.job_id) == ["parent parked"]
    plain_harness.client.zadd(plain_harness.keys.parked("parent"), {lease.job_id: 1})
    plain_harness.sweep("parent", sweeps=1)
    assert plain_harness.where(lease.job_id) == ["parent waiting"]


def test_a_limiters_counter_of_a_wrong_type_blocks_only_its_group(plain_harness: Harness) -> None:
    held, *_ = [plain_harness.add("limited", group="bad"), plain_harness.add("limited", group="bad")]
    free = plain_harness.add("limited", group="good")
    plain_harness.client.rpush(
        f"{plain_harness.keys.calls('limited')}bad:{plain_harness.now_ms() // (WINDOW * 1000)}", "x"
    )
    before = plain_harness.ids("limited")
    (claim,) = plain_harness.claim("limited", 1)
    assert claim.lease.job_id == free
    with pytest.raises(StoreError, match="WRONGTYPE"):
        plain_harness.claim("limited", 5)
    assert plain_harness.ids("limited") == before[:2]
    assert plain_harness.lock("limited", held) is None


@pytest.mark.parametrize("harness", ["priority"], indirect=True)
def test_an_invalid_list_of_one_priority_does_not_block_the_others(harness: Harness) -> None:
    harness.client.set(harness.keys.delayed("first", 1), "somebody else's")
    harness.client.set(harness.keys.waiting("first", 2), "somebody else's")
    low = harness.add(priority=3)
    (claim,) = harness.claim()
    assert claim.lease.job_id == low
    with pytest.raises(StoreError, match="WRONGTYPE"):
        harness.claim()


def test_delayed_jobs_that_cannot_be_promoted_do_not_hold_up_those_that_wait(harness: Harness) -> None:
    harness.client.set(harness.keys.delayed("first", 1), "somebody else's")
    waiting = harness.add()
    (claim,) = harness.claim()
    assert claim.lease.job_id == waiting
    with pytest.raises(StoreError, match="WRONGTYPE"):
        harness.claim()


def test_a_claim_that_cannot_write_its_locks_claims_nothing(guarded: Harness) -> None:
    """A login that may not touch them: the ids stay where they were, in their order."""
    ids = guarded.add_many(5)
    store = limited(guarded, "~queue:*", "~job:*", "~dead:*", readable="lock:*")
    with pytest.raises(StoreError, match="ACL SETUSER"):
        guarded.run(store.claim(ClaimRequest(worker="w", token=new_token(), limit=3, lease=LEASE)))
    assert (guarded.ids(), guarded.ids(kind="processing")) == (ids, [])


def test_a_settlement_that_cannot_write_the_hash_leaves_the_job_where_it_was(guarded: Harness) -> None:
    lease = guarded.start()
    store = limited(guarded, "~queue:*", "~lock:*", "~settled:*", readable="job:*")
    assert guarded.run(store.settle([(lease, ended("second", x=1))])) == [Verdict.LOST]
    assert guarded.where(lease.job_id) == ["first processing"]
    assert (guarded.lock("first", lease.job_id) or "").endswith(lease.token)
    assert guarded.settle(lease, ended("second", x=1)) is Verdict.SETTLED


def test_jobs_that_a_login_may_not_read_stay_where_they_are(guarded: Harness) -> None:
    held, swept = guarded.start(), guarded.add(push=False)
    guarded.client.rpush(guarded.keys.processing("first"), swept)  # its worker died
    ids = guarded.add_many(3)
    store = limited(guarded, "~queue:*", "~lock:*", "~settled:*", "~dead:*", "~lease:*", readable="nothing")
    with pytest.raises(StoreError, match="permission"):
        guarded.run(store.claim(ClaimRequest(worker="w", token=new_token(), limit=9, lease=LEASE)))
    assert guarded.run(store.settle([(held, ended("second"))])) == [Verdict.LOST]
    heartbeats = guarded.heartbeats_of(store)
    heartbeats.release([held])
    heartbeats.abandon(held.token)
    for _ in range(3):
        guarded.client.zincrby(guarded.keys.unlocked("first"), -1001, swept)  # a second has passed
        assert guarded.run(store.sweep()) == []
    assert (guarded.ids(), sorted(guarded.ids(kind="processing"))) == (ids, sorted([held.job_id, swept]))
    assert guarded.settle(held, ended("second")) is Verdict.SETTLED


def test_a_parked_id_with_a_key_of_another_type_is_dropped(plain_harness: Harness) -> None:
    plain_harness.client.set(plain_harness.hash("parent", "u1"), "somebody else's")
    plain_harness.client.zadd(plain_harness.keys.parked("parent"), {"u1": 1})
    plain_harness.client.rpush(plain_harness.keys.processing("parent"), plain_harness.add("parent", push=False))
    assert len(plain_harness.sweep("parent")) == 1
    assert plain_harness.ids("parent", "parked") == []


@pytest.mark.parametrize(
    "end", [settlement_of(Retry("no", 3.0 * 86_400)), settlement_of(Snooze(3.0 * 86_400))], ids=["retry", "snooze"]
)
def test_a_job_delayed_beyond_its_life_lives_until_it_is_ready(plain_harness: Harness, end: Settlement) -> None:
    lease = plain_harness.start()
    plain_harness.client.pexpire(plain_harness.hash("first", lease.job_id), DAY)
    assert plain_harness.settle(lease, end) is Verdict.SETTLED
    assert plain_harness.client.pttl(plain_harness.hash("first", lease.job_id)) > 3 * DAY
    other = plain_harness.start()
    plain_harness.client.pexpire(plain_harness.hash("first", other.job_id), DAY)
    assert plain_harness.settle(other, SNOOZED) is Verdict.SETTLED
    assert plain_harness.client.pttl(plain_harness.hash("first", other.job_id)) <= DAY


def test_a_negative_counter_delays_into_the_next_window(plain_harness: Harness) -> None:
    plain_harness.client.set(f"{plain_harness.keys.enqueued('limited')}g", -50)
    for _ in range(4):
        plain_harness.add("limited", group="g")
    assert len(plain_harness.claim("limited", 10)) == 3
    (ready,) = (
        score for _, score in plain_harness.client.zrange(plain_harness.keys.delayed("limited"), 0, -1, withscores=True)
    )
    assert ready > plain_harness.now_ms()


def test_a_job_that_cannot_return_to_the_queue_stays_in_processing(plain_harness: Harness) -> None:
    leases = [plain_harness.start() for _ in range(3)]
    plain_harness.client.set(plain_harness.keys.waiting("first"), "somebody else's")
    plain_harness.client.zadd(plain_harness.keys.delayed("first"), {plain_harness.add(push=False): 1})
    plain_harness.heartbeats().release(leases[:1])
    plain_harness.heartbeats().abandon(leases[1].token)
    plain_harness.client.delete(plain_harness.keys.lock("first", leases[2].job_id))
    for _ in range(3):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            plain_harness.sweep()
    plain_harness.client.delete(plain_harness.keys.waiting("first"))
    assert len(plain_harness.sweep(sweeps=3)) == 3
    assert {lease.job_id for lease in leases} < set(plain_harness.ids())
    assert [plain_harness.values(lease.job_id)["resets:first"] for lease in leases] == [1, 1, 1]
    assert len(plain_harness.ids()) == 4


def test_a_parent_whose_list_refuses_pushes_stays_parked(plain_harness: Harness) -> None:
    lease = plain_harness.start("parent")
    (queue, _), *_ = park(plain_harness, lease, ["kid"])
    plain_harness.client.set(plain_harness.keys.waiting("parent"), "somebody else's")
    assert plain_harness.settle(plain_harness.take(queue), ended(), queue) is Verdict.SETTLED
    plain_harness.client.zadd(plain_harness.keys.parked("parent"), {lease.job_id: 1})
    with pytest.raises(StoreError, match="WRONGTYPE"):
        plain_harness.sweep("parent", sweeps=1)
    plain_harness.client.delete(plain_harness.keys.waiting("parent"))
    plain_harness.sweep("parent", sweeps=1)
    assert plain_harness.where(lease.job_id) == ["parent waiting"]


@pytest.mark.parametrize("harness", ["priority"], indirect=True)
def test_an_error_of_one_list_does_not_stop_a_sweep(harness: Harness) -> None:
    harness.client.set(harness.keys.delayed("first", 1), "somebody else's")
    harness.client.set(harness.keys.processing("first", 2), "somebody else's")
    job_id = harness.add(push=False, priority=3)
    harness.client.rpush(harness.keys.processing("first", 3), job_id)
    with pytest.raises(StoreError, match="WRONGTYPE"):
        harness.sweep(sweeps=1)
    assert [reset.job_id for reset in harness.sweep(sweeps=1)] == [job_id]


def test_a_claim_that_cannot_move_ids_claims_nothing(plain_harness: Harness) -> None:
    ids = plain_harness.add_many(3)
    plain_harness.client.set(plain_harness.keys.processing("first"), "somebody else's")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        plain_harness.claim()
    assert plain_harness.ids() == ids
    assert plain_harness.client.keys("lock:*") == []


@pytest.mark.parametrize("good", [1, MAX_CLAIM], ids=["some", "a_page"])
def test_unclaimable_jobs_do_not_block_others(plain_harness: Harness, good: int) -> None:
    """However many stand before it, and on the page after."""
    ids = plain_harness.add_many(good, "limited", group={"of": "its own"})
    plain_harness.client.rpush(f"{plain_harness.keys.enqueued('limited')}bad", "x")
    plain_harness.client.rpush(
        f"{plain_harness.keys.calls('limited')}bad:{plain_harness.now_ms() // (WINDOW * 1000)}", "x"
    )
    plain_harness.add_many(2000, "limited", group="bad")
    for job_id in ids:
        plain_harness.client.hset(plain_harness.hash("limited", job_id), "group", f'"{job_id}"')
    assert len(plain_harness.claim("limited", good + 5)) == good
    assert len(plain_harness.ids("limited")) == 2000


def test_a_lost_reply_to_a_later_page_is_no_reason_to_keep_the_first(plain_harness: Harness) -> None:
    plain_harness.add_many(MAX_CLAIM + 77)

    async def check() -> None:
        async with RedisProxy(plain_harness.url) as proxy:
            store = plain_harness.new_store("first", url=proxy.url)
            proxy.cut("reply", b"\r\n77\r\n")
            with pytest.raises(StoreUnreachable):
                await store.claim(ClaimRequest(worker="w", token="lost", limit=MAX_CLAIM + 77, lease=LEASE))

    plain_harness.run(check())
    assert len(plain_harness.ids(kind="processing")) == MAX_CLAIM + 77
    assert plain_harness.heartbeats().abandon("lost")
    assert len(plain_harness.ids()) == MAX_CLAIM + 77
