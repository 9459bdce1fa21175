"""Claims of a flow's jobs: what they take, in which order, and what they leave behind in Redis."""

from __future__ import annotations

from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import Where
from tests.flows.redis.step_desk import ERRORED, LATER, Desk, ended, new_token


def test_a_claim_brings_the_wanted_attributes_and_locks_the_job(desk: Desk) -> None:
    job_id = desk.add(userId=1, text="not wanted")
    token, before = new_token(), desk.now_ms()
    (claim,) = desk.claim(token=token, worker="host:1:w")
    assert (claim.lease.job_id, claim.lease.token, claim.task) == (job_id, token, "first")
    assert before * 1000 <= claim.lease.epoch < (desk.now_ms() + 1) * 1000
    assert (claim.attempts, claim.max_attempts, claim.resets) == (1, 3, 0)
    record = claim.record
    assert (record.id, record.queue, record.flow, record.priority) == (job_id, "first", "demo", 1)
    assert (record.values, record.correlation_id) == ({"userId": "1", "n": None}, '"c-1"')
    assert desk.where(job_id) == ["first processing"]
    classic = desk.variant == "classic"
    assert desk.lock("first", job_id) == f"host:1:w{'+' * classic}:{token}"
    left = desk.client.pttl(desk.keys.lease(token) if classic else desk.keys.lock("first", job_id))
    assert 30_000 - (desk.now_ms() - before) - 1 <= left <= 30_000


def test_all_attributes_are_what_the_hash_holds(desk: Desk) -> None:
    desk.add("second", a=[1], b="x")
    (claim,) = desk.claim("second")
    assert claim.record.values == {
        "flowName": '"demo"', "priority": "1", "correlationId": '"c-1"', "a": "[1]", "b": '"x"'
    }  # fmt: skip


def test_jobs_are_taken_from_the_head(desk: Desk) -> None:
    ids = [desk.add(n=number) for number in range(5)]
    assert [claim.lease.job_id for claim in desk.claim(limit=3)] == ids[:3]
    assert (desk.ids(), desk.ids(kind="processing")) == (ids[3:], ids[:3])


@pytest.mark.parametrize("desk", ["priority", "tagged"], indirect=True)
def test_smaller_priorities_are_served_first(desk: Desk) -> None:
    later, least, first = desk.add(priority=2), desk.add(priority=3), desk.add(priority=1)
    claims = desk.claim()
    assert [claim.lease.job_id for claim in claims] == [first, later, least]
    assert [claim.record.priority for claim in claims] == [1, 2, 3]
    assert desk.ids(kind="processing", priority=2) == [later]
    assert [str(desk.settle(claim.lease, ERRORED)) for claim in claims] == ["settled"] * 3
    assert desk.ids(priority=2) == [later]


def test_a_ghost_is_dropped_and_the_next_is_taken(desk: Desk) -> None:
    ghost, empty = desk.add(), desk.add()
    desk.client.delete(desk.hash("first", ghost))
    desk.client.delete(desk.hash("first", empty))
    desk.client.set(desk.hash("first", empty), "no hash")
    job_id = desk.add()
    assert desk.take().job_id == job_id
    assert (desk.where(ghost), desk.where(empty)) == ([], [])
    assert desk.lock("first", ghost) is None


def test_a_hash_of_no_wanted_attribute_is_no_ghost(plain_desk: Desk) -> None:
    job_id = plain_desk.keys.new_id()
    plain_desk.client.hset(plain_desk.keys.job(job_id), "else", "1")
    plain_desk.client.rpush(plain_desk.keys.waiting("first"), job_id)
    assert plain_desk.take().job_id == job_id


def test_thousands_of_ghosts_do_not_hide_a_job(plain_desk: Desk) -> None:
    plain_desk.client.rpush(plain_desk.keys.waiting("first"), *(f"ghost{number}" for number in range(4500)))
    job_id = plain_desk.add()
    assert plain_desk.take().job_id == job_id


def test_more_than_one_page_is_claimed_at_once(plain_desk: Desk) -> None:
    ids = plain_desk.add_many(1100)
    assert [claim.lease.job_id for claim in plain_desk.claim(limit=1090)] == ids[:1090]
    assert len(plain_desk.ids()) == 10


def test_an_id_that_stands_there_twice_is_taken_once(plain_desk: Desk) -> None:
    job_id = plain_desk.add()
    plain_desk.client.rpush(plain_desk.keys.waiting("first"), job_id)
    (claim,) = plain_desk.claim()
    assert str(plain_desk.settle(claim.lease, ended())) == "settled"
    assert plain_desk.where(job_id) == []


def test_an_abandoned_token_claims_nothing_more_and_gives_back_in_order(desk: Desk) -> None:
    ids = [desk.add() for _ in range(3)]
    token = new_token()
    desk.claim(limit=2, token=token)
    assert desk.heart().abandon(token)
    assert list(desk.claim(token=token)) == []
    assert desk.ids() == ids
    assert desk.lock("first", ids[0]) is None


def test_what_is_ready_comes_to_the_front_the_oldest_first(desk: Desk) -> None:
    waiting, now = desk.add(), desk.now_ms()
    late, old, older = (desk.add(push=False) for _ in range(3))
    ready = {late: now + 60_000, old: now - 5, older: now - 500}
    desk.client.zadd(desk.keys.delayed("first"), ready)
    assert [claim.lease.job_id for claim in desk.claim()] == [older, old, waiting]
    assert desk.where(late) == ["first delayed"]


def test_next_due_counts_from_the_servers_clock(desk: Desk) -> None:
    def due() -> float | None:
        return desk.run(desk.store().next_due(("first",)))

    assert due() is None
    before = desk.now_ms()
    desk.settle(desk.start(), LATER)
    left = due() or 0.0
    assert 60 - (desk.now_ms() - before + 1) / 1000 <= left <= 60
    assert desk.run(desk.store().next_due(("second",))) is None
    desk.add()
    assert due() == 0


def test_scripts_that_the_server_has_forgotten_are_sent_again(plain_desk: Desk) -> None:
    lease = plain_desk.start()
    plain_desk.client.script_flush()
    assert str(plain_desk.settle(lease, ERRORED)) == "settled"
    plain_desk.client.script_flush()
    plain_desk.heart().abandon("t")
    assert plain_desk.take().job_id == lease.job_id


def test_bytes_that_are_no_text_hurt_nobody_else(plain_desk: Desk) -> None:
    strange = b"\xff\xfe"
    plain_desk.client.hset(b"job:demo:" + strange, mapping={"userId": b"\xff"})
    plain_desk.client.rpush(plain_desk.keys.waiting("first"), strange)
    plain_desk.add(userId=1)
    odd, plain = plain_desk.claim()
    assert odd.record.values["userId"] == "\udcff"
    batch = [(odd.lease, ERRORED), (plain.lease, ended())]
    assert [str(one) for one in plain_desk.run(plain_desk.store().settle(batch))] == ["settled"] * 2
    assert plain_desk.client.llen(plain_desk.keys.processing("first")) == 0
    assert plain_desk.take().job_id == odd.lease.job_id


@pytest.mark.parametrize(
    "asked", [{"conditions": (Where("n", "=", 1),)}, {"forbidden_flags": ("heavy",)}], ids=["conditions", "flags"]
)
def test_conditions_and_flags_are_refused(plain_desk: Desk, asked: dict[str, Any]) -> None:
    job_id = plain_desk.add()
    with pytest.raises(ConfigurationError, match="takes no conditions"):
        plain_desk.claim(**asked)
    assert plain_desk.ids() == [job_id]


def test_a_suspect_is_taken_only_when_asked_for_alone(desk: Desk) -> None:
    job_id = desk.add(values={"resets:first": 2})  # in the ordinary list, as a worker of the original gives it back
    innocent = desk.add()
    assert [claim.lease.job_id for claim in desk.claim()] == [innocent]
    assert desk.where(job_id) == ["first suspects"]
    (claim,) = desk.claim(limit=1, suspects=True)
    assert (claim.lease.job_id, claim.resets, desk.where(job_id)) == (job_id, 2, ["first processing"])
    desk.heart().release([claim.lease])
    assert desk.where(job_id) == ["first suspects"]


def test_what_is_released_comes_back_in_the_order_given(desk: Desk) -> None:
    ids = [desk.add() for _ in range(4)]
    leases = [claim.lease for claim in desk.claim(limit=3)]
    desk.heart().release(leases)
    assert desk.ids() == ids


def test_what_several_calls_hand_back_stands_in_its_old_order(desk: Desk) -> None:
    ids = [desk.add() for _ in range(4)]
    leases = [claim.lease for claim in desk.claim(limit=3)]
    for at in (1, 0, 2):
        desk.heart().release([leases[at]])
    assert desk.ids() == ids


def test_what_is_ready_is_taken_in_the_order_of_its_moments(desk: Desk) -> None:
    waiting = desk.add()
    now = desk.now_ms()
    late, soon, later = [desk.add(push=False) for _ in range(3)]
    desk.client.zadd(desk.keys.delayed("first"), {late: now - 10, soon: now - 20, later: now + 60_000})
    assert [claim.lease.job_id for claim in desk.claim()] == [soon, late, waiting]


def test_one_that_was_lent_to_whoever_is_idle_comes_before_what_became_ready_after_it(desk: Desk) -> None:
    now = desk.now_ms()
    first, second = [desk.add(push=False) for _ in range(2)]
    desk.client.zadd(desk.keys.delayed("first"), {first: now - 20, second: now - 10})
    timekeeper = desk.store("first")._timekeepers[0]
    assert desk.run(timekeeper._ask("w")) == (1, 0)
    assert desk.ids() == [first], "one at a time, and only where nobody waits"
    assert desk.run(timekeeper._ask("w")) == (1, -1)
    assert desk.run(timekeeper._ask("another")) == (0, -1), "one keeps the time"
    assert [claim.lease.job_id for claim in desk.claim()] == [first, second]
