"""Claims of a flow's jobs: what they take, in which order, and what they leave behind in Redis."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import Where
from tests.flows.redis.step_harness import ERRORED, LATER, Harness, ended, new_token


def test_a_claim_returns_the_requested_attributes_and_locks_the_job(harness: Harness) -> None:
    job_id = harness.add(userId=1, text="not wanted")
    token, before = new_token(), harness.now_ms()
    (claim,) = harness.claim(token=token, worker="host:1:w")
    assert (claim.lease.job_id, claim.lease.token, claim.task) == (job_id, token, "first")
    assert before * 1000 <= claim.lease.epoch < (harness.now_ms() + 1) * 1000
    assert (claim.attempts, claim.max_attempts, claim.resets) == (1, 3, 0)
    record = claim.record
    assert (record.id, record.flow, record.priority) == (job_id, "demo", 1)
    assert (record.values, record.correlation_id) == ({"userId": "1", "n": None}, '"c-1"')
    assert harness.where(job_id) == ["first processing"]
    classic = harness.variant == "classic"
    assert harness.lock("first", job_id) == f"host:1:w{'+' * classic}:{token}"
    left = harness.client.pttl(harness.keys.lease(token) if classic else harness.keys.lock("first", job_id))
    assert 30_000 - (harness.now_ms() - before) - 1 <= left <= 30_000


def test_all_attributes_are_what_the_hash_holds(harness: Harness) -> None:
    harness.add("second", a=[1], b="x")
    (claim,) = harness.claim("second")
    assert claim.record.values == {
        "flowName": '"demo"', "priority": "1", "correlationId": '"c-1"', "a": "[1]", "b": '"x"'
    }  # fmt: skip


def test_jobs_are_taken_from_the_head(harness: Harness) -> None:
    ids = [harness.add(n=number) for number in range(5)]
    assert [claim.lease.job_id for claim in harness.claim(limit=3)] == ids[:3]
    assert (harness.ids(), harness.ids(kind="processing")) == (ids[3:], ids[:3])


@pytest.mark.parametrize("harness", ["priority", "tagged"], indirect=True)
def test_smaller_priorities_are_served_first(harness: Harness) -> None:
    later, least, first = harness.add(priority=2), harness.add(priority=3), harness.add(priority=1)
    claims = harness.claim()
    assert [claim.lease.job_id for claim in claims] == [first, later, least]
    assert [claim.record.priority for claim in claims] == [1, 2, 3]
    assert harness.ids(kind="processing", priority=2) == [later]
    assert [str(harness.settle(claim.lease, ERRORED)) for claim in claims] == ["settled"] * 3
    assert harness.ids(priority=2) == [later]


def test_an_id_without_a_hash_is_dropped_and_the_next_is_claimed(harness: Harness) -> None:
    ghost, empty = harness.add(), harness.add()
    harness.client.delete(harness.hash("first", ghost))
    harness.client.delete(harness.hash("first", empty))
    harness.client.set(harness.hash("first", empty), "no hash")
    job_id = harness.add()
    assert harness.take().job_id == job_id
    assert (harness.where(ghost), harness.where(empty)) == ([], [])
    assert harness.lock("first", ghost) is None


def test_a_job_without_requested_attributes_is_claimed(plain_harness: Harness) -> None:
    job_id = plain_harness.keys.new_id()
    plain_harness.client.hset(plain_harness.keys.job(job_id), "else", "1")
    plain_harness.client.rpush(plain_harness.keys.waiting("first"), job_id)
    assert plain_harness.take().job_id == job_id


def test_thousands_of_ids_without_a_hash_do_not_hide_a_job(plain_harness: Harness) -> None:
    plain_harness.client.rpush(plain_harness.keys.waiting("first"), *(f"ghost{number}" for number in range(4500)))
    job_id = plain_harness.add()
    assert plain_harness.take().job_id == job_id


def test_more_than_one_page_is_claimed_at_once(plain_harness: Harness) -> None:
    ids = plain_harness.add_many(1100)
    assert [claim.lease.job_id for claim in plain_harness.claim(limit=1090)] == ids[:1090]
    assert len(plain_harness.ids()) == 10


def test_an_id_that_is_listed_twice_is_claimed_once(plain_harness: Harness) -> None:
    job_id = plain_harness.add()
    plain_harness.client.rpush(plain_harness.keys.waiting("first"), job_id)
    (claim,) = plain_harness.claim()
    assert str(plain_harness.settle(claim.lease, ended())) == "settled"
    assert plain_harness.where(job_id) == []


def test_an_abandoned_token_claims_no_more_and_its_jobs_return_in_order(harness: Harness) -> None:
    ids = [harness.add() for _ in range(3)]
    token = new_token()
    harness.claim(limit=2, token=token)
    assert harness.heartbeats().abandon(token)
    assert list(harness.claim(token=token)) == []
    assert harness.ids() == ids
    assert harness.lock("first", ids[0]) is None


def test_ready_jobs_move_to_the_front_the_oldest_first(harness: Harness) -> None:
    waiting, now = harness.add(), harness.now_ms()
    late, old, older = (harness.add(push=False) for _ in range(3))
    ready = {late: now + 60_000, old: now - 5, older: now - 500}
    harness.client.zadd(harness.keys.delayed("first"), ready)
    assert [claim.lease.job_id for claim in harness.claim()] == [older, old, waiting]
    assert harness.where(late) == ["first delayed"]


def test_next_due_counts_from_the_servers_clock(harness: Harness) -> None:
    def due() -> float | None:
        return harness.run(harness.store().next_due(("first",)))

    assert due() is None
    before = harness.now_ms()
    harness.settle(harness.start(), LATER)
    left = due() or 0.0
    assert 60 - (harness.now_ms() - before + 1) / 1000 <= left <= 60
    assert harness.run(harness.store().next_due(("second",))) is None
    harness.add()
    assert due() == 0


def test_scripts_that_the_server_has_forgotten_are_sent_again(plain_harness: Harness) -> None:
    lease = plain_harness.start()
    plain_harness.client.script_flush()
    assert str(plain_harness.settle(lease, ERRORED)) == "settled"
    plain_harness.client.script_flush()
    plain_harness.heartbeats().abandon("t")
    assert plain_harness.take().job_id == lease.job_id


def test_invalid_text_affects_no_other_job(plain_harness: Harness) -> None:
    strange = b"\xff\xfe"
    plain_harness.client.hset(b"job:demo:" + strange, mapping={"userId": b"\xff"})
    plain_harness.client.rpush(plain_harness.keys.waiting("first"), strange)
    plain_harness.add(userId=1)
    odd, plain = plain_harness.claim()
    assert odd.record.values["userId"] == "\udcff"
    batch = [(odd.lease, ERRORED), (plain.lease, ended())]
    assert [str(one) for one in plain_harness.run(plain_harness.store().settle(batch))] == ["settled"] * 2
    assert plain_harness.client.llen(plain_harness.keys.processing("first")) == 0
    assert plain_harness.take().job_id == odd.lease.job_id


@pytest.mark.parametrize(
    "asked", [{"conditions": (Where("n", "=", 1),)}, {"forbidden_flags": ("heavy",)}], ids=["conditions", "flags"]
)
def test_conditions_and_flags_are_refused(plain_harness: Harness, asked: dict[str, Any]) -> None:
    job_id = plain_harness.add()
    with pytest.raises(ConfigurationError, match="supports no conditions"):
        plain_harness.claim(**asked)
    assert plain_harness.ids() == [job_id]


def test_a_suspect_is_claimed_only_by_a_claim_of_suspects(harness: Harness) -> None:
    job_id = harness.add(values={"resets:first": 2})  # in the ordinary list, as a worker of the original gives it back
    innocent = harness.add()
    assert [claim.lease.job_id for claim in harness.claim()] == [innocent]
    assert harness.where(job_id) == ["first suspects"]
    (claim,) = harness.claim(limit=1, suspects=True)
    assert (claim.lease.job_id, claim.resets, harness.where(job_id)) == (job_id, 2, ["first processing"])
    harness.heartbeats().release([claim.lease])
    assert harness.where(job_id) == ["first suspects"]


def test_released_jobs_return_in_the_given_order(harness: Harness) -> None:
    ids = [harness.add() for _ in range(4)]
    leases = [claim.lease for claim in harness.claim(limit=3)]
    harness.heartbeats().release(leases)
    assert harness.ids() == ids


def test_jobs_released_by_several_calls_keep_their_order(harness: Harness) -> None:
    ids = [harness.add() for _ in range(4)]
    leases = [claim.lease for claim in harness.claim(limit=3)]
    for at in (1, 0, 2):
        harness.heartbeats().release([leases[at]])
    assert harness.ids() == ids


def test_ready_jobs_are_claimed_in_the_order_of_their_times(harness: Harness) -> None:
    waiting = harness.add()
    now = harness.now_ms()
    late, soon, later = [harness.add(push=False) for _ in range(3)]
    harness.client.zadd(harness.keys.delayed("first"), {late: now - 10, soon: now - 20, later: now + 60_000})
    assert [claim.lease.job_id for claim in harness.claim()] == [soon, late, waiting]


def test_a_job_moved_for_an_idle_worker_comes_before_later_ready_jobs(harness: Harness) -> None:
    now = harness.now_ms()
    first, second = [harness.add(push=False) for _ in range(2)]
    harness.client.zadd(harness.keys.delayed("first"), {first: now - 20, second: now - 10})
    timekeeper = harness.store("first")._timekeeper
    assert harness.run(timekeeper._ask("w")) == (1, 0)
    assert harness.ids() == [first], "one at a time, and only where nobody waits"
    assert harness.run(timekeeper._ask("w")) == (1, -1)
    assert harness.run(timekeeper._ask("another")) == (0, -1), "one keeps the time"
    assert [claim.lease.job_id for claim in harness.claim()] == [first, second]
