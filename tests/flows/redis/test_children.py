"""Parents and children: created once, waited for without a slot, and the last to end brings the parent back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from stowhand.flows.redis.ending import StepEnd, encode_end
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import Ended, Settlement
from stowhand.protocols.store import Verdict
from tests.flows.redis.step_desk import CANCELED, FAILED, Desk, ended, park

OPEN = "children:parent:open"


def wait_on() -> Settlement:
    """A parent that has looked, and waits on."""
    return Settlement(State.COMPLETED, Ended.OK, result=encode_end(StepEnd(children=[])))


def test_a_parent_fans_out_and_is_parked(desk: Desk) -> None:
    lease = desk.start("parent")
    (_, first), *_ = park(desk, lease)
    assert desk.where(lease.job_id) == ["parent parked"]
    assert desk.lock("parent", lease.job_id) is None
    assert desk.values(lease.job_id, "parent")[OPEN] == 3
    assert len(desk.ids("parent:kid")) == 2
    assert len(desk.ids("parent:other")) == 1
    assert desk.values(first, "parent:kid") == {"n": 0, "parent": lease.job_id}
    assert desk.hash("parent:kid", first).endswith("job:parent:kid:u0")
    lives = desk.client.pttl(desk.hash("parent:kid", first))
    assert 86_000_000 < lives <= 86_400_000 if desk.variant == "classic" else lives == -1


def test_the_last_child_brings_the_parent_back_to_the_front_whatever_its_end(desk: Desk) -> None:
    lease = desk.start("parent")
    children = park(desk, lease)
    other = desk.add("parent")
    for (queue, child_id), end in zip(children, (ended(x=1), FAILED, CANCELED), strict=True):
        assert desk.where(lease.job_id) == ["parent parked"]
        child = desk.take(queue)
        assert child.job_id == child_id
        assert desk.settle(child, end, queue) is Verdict.SETTLED
        assert desk.client.hget(desk.hash(queue, child_id), "done") == "true"
    assert desk.ids("parent") == [lease.job_id, other]
    assert OPEN not in desk.values(lease.job_id, "parent")


def test_a_child_that_is_tried_again_has_not_ended(desk: Desk) -> None:
    lease = desk.start("parent")
    ((queue, _),) = park(desk, lease, ["kid"])
    assert desk.die(desk.take(queue), queue)[0].state is State.QUEUED
    assert desk.where(lease.job_id) == ["parent parked"]


def test_a_child_that_the_sweep_fails_has_ended(desk: Desk) -> None:
    lease = desk.start("parent")
    ((queue, child_id),) = park(desk, lease, ["other"])
    assert desk.die(desk.take(queue), queue)[0].state is State.FAILED
    assert desk.values(child_id, queue)["done"] is True
    assert desk.where(lease.job_id) == ["parent waiting"]


def test_a_second_attempt_creates_no_child_again(desk: Desk) -> None:
    lease = desk.start("parent")
    park(desk, lease)
    first = desk.ids("parent:kid")
    desk.client.zrem(desk.keys.parked("parent"), lease.job_id)
    desk.client.rpush(desk.keys.waiting("parent"), lease.job_id)
    park(desk, desk.take("parent"))
    assert desk.ids("parent:kid") == first
    assert desk.where(lease.job_id) == ["parent parked"]


def test_a_parent_whose_children_have_all_ended_is_not_parked(desk: Desk) -> None:
    lease = desk.start("parent")
    ((queue, _),) = park(desk, lease, ["kid"])
    desk.client.zrem(desk.keys.parked("parent"), lease.job_id)
    desk.client.rpush(desk.keys.waiting("parent"), lease.job_id)
    running = desk.take("parent")
    assert desk.settle(desk.take(queue), ended(), queue) is Verdict.SETTLED  # the child ends while the parent looks
    assert desk.settle(running, wait_on(), "parent") is Verdict.SETTLED
    assert desk.where(lease.job_id) == ["parent waiting"]


def vanished(desk: Desk, queue: str, child_id: str) -> None:
    desk.client.delete(desk.hash(queue, child_id))


def ended_by_the_original(desk: Desk, queue: str, child_id: str) -> None:
    desk.client.hset(desk.hash(queue, child_id), "done", "true")


def failed_by_an_early_original(desk: Desk, queue: str, child_id: str) -> None:
    desk.client.hset(desk.hash(queue, child_id), "done", '"true"')


@pytest.mark.parametrize(
    "end", [vanished, ended_by_the_original, failed_by_an_early_original], ids=lambda one: one.__name__
)
def test_the_sweep_finds_children_that_ended_without_a_word(desk: Desk, end: Callable[[Desk, str, str], None]) -> None:
    lease = desk.start("parent")
    first, second = park(desk, lease, ["kid", "kid"])
    end(desk, *first)
    before = desk.now_ms()
    desk.client.zadd(desk.keys.parked("parent"), {lease.job_id: before})
    desk.sweep("parent", looks=1)
    assert desk.values(lease.job_id, "parent")[OPEN] == 1
    assert desk.client.zscore(desk.keys.parked("parent"), lease.job_id) > before + 5000
    end(desk, *second)
    desk.sweep("parent", looks=1)
    assert desk.where(lease.job_id) == ["parent parked"], "each has its turn"
    desk.client.zadd(desk.keys.parked("parent"), {lease.job_id: desk.now_ms()})
    desk.sweep("parent", looks=1)
    assert desk.where(lease.job_id) == ["parent waiting"]


def test_a_parked_parent_whose_hash_is_gone_is_forgotten(desk: Desk) -> None:
    lease = desk.start("parent")
    ((queue, _),) = park(desk, lease, ["kid"])
    desk.client.delete(desk.keys.job(lease.job_id))
    assert desk.settle(desk.take(queue), ended(), queue) is Verdict.SETTLED
    assert not desk.client.exists(desk.keys.job(lease.job_id))
    desk.client.zadd(desk.keys.parked("parent"), {lease.job_id: 1})
    desk.sweep("parent", looks=1)
    assert desk.where(lease.job_id) == []


def test_a_child_of_somebody_elses_making_ends_all_the_same(desk: Desk) -> None:
    child_id, key = desk.keys.child("parent", "kid", "u9")
    desk.client.hset(key, "parent", json.dumps(["no", "id"]))
    desk.client.rpush(desk.keys.waiting("parent:kid"), child_id)
    assert desk.settle(desk.take("parent:kid"), ended(x=1), "parent:kid") is Verdict.SETTLED
    assert desk.values(child_id, "parent:kid")["done"] is True
