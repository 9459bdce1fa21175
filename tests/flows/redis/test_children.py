"""Parents and children: created once, waited for without a slot, and the last to end brings the parent back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from stowhand.flows.redis.settlements import StepResult, encode_end
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement
from stowhand.protocols.store import Verdict
from tests.flows.redis.step_harness import CANCELED, FAILED, Harness, ended, park

OPEN = "children:parent:open"


def wait_on() -> Settlement:
    """A parent that has looked, and waits on."""
    return Settlement(State.COMPLETED, AttemptOutcome.OK, result=encode_end(StepResult(children=[])))


def test_a_parent_fans_out_and_is_parked(harness: Harness) -> None:
    lease = harness.start("parent")
    (_, first), *_ = park(harness, lease)
    assert harness.where(lease.job_id) == ["parent parked"]
    assert harness.lock("parent", lease.job_id) is None
    assert harness.values(lease.job_id, "parent")[OPEN] == 3
    assert len(harness.ids("parent:kid")) == 2
    assert len(harness.ids("parent:other")) == 1
    assert harness.values(first, "parent:kid") == {"n": 0, "parent": lease.job_id}
    assert harness.hash("parent:kid", first).endswith("job:parent:kid:u0")
    lives = harness.client.pttl(harness.hash("parent:kid", first))
    assert 86_000_000 < lives <= 86_400_000 if harness.variant == "classic" else lives == -1


def test_the_last_child_returns_the_parent_to_the_front_whatever_its_outcome(harness: Harness) -> None:
    lease = harness.start("parent")
    children = park(harness, lease)
    other = harness.add("parent")
    for (queue, child_id), end in zip(children, (ended(x=1), FAILED, CANCELED), strict=True):
        assert harness.where(lease.job_id) == ["parent parked"]
        child = harness.take(queue)
        assert child.job_id == child_id
        assert harness.settle(child, end, queue) is Verdict.SETTLED
        assert harness.client.hget(harness.hash(queue, child_id), "done") == "true"
    assert harness.ids("parent") == [lease.job_id, other]
    assert OPEN not in harness.values(lease.job_id, "parent")


def test_a_retried_child_has_not_ended(harness: Harness) -> None:
    lease = harness.start("parent")
    ((queue, _),) = park(harness, lease, ["kid"])
    assert harness.die(harness.take(queue), queue)[0].state is State.QUEUED
    assert harness.where(lease.job_id) == ["parent parked"]


def test_a_child_that_the_sweep_fails_has_ended(harness: Harness) -> None:
    lease = harness.start("parent")
    ((queue, child_id),) = park(harness, lease, ["other"])
    assert harness.die(harness.take(queue), queue)[0].state is State.FAILED
    assert harness.values(child_id, queue)["done"] is True
    assert harness.where(lease.job_id) == ["parent waiting"]


def test_a_second_attempt_creates_no_child_again(harness: Harness) -> None:
    lease = harness.start("parent")
    park(harness, lease)
    first = harness.ids("parent:kid")
    harness.client.zrem(harness.keys.parked("parent"), lease.job_id)
    harness.client.rpush(harness.keys.waiting("parent"), lease.job_id)
    park(harness, harness.take("parent"))
    assert harness.ids("parent:kid") == first
    assert harness.where(lease.job_id) == ["parent parked"]


def test_a_parent_whose_children_have_all_ended_is_not_parked(harness: Harness) -> None:
    lease = harness.start("parent")
    ((queue, _),) = park(harness, lease, ["kid"])
    harness.client.zrem(harness.keys.parked("parent"), lease.job_id)
    harness.client.rpush(harness.keys.waiting("parent"), lease.job_id)
    running = harness.take("parent")
    assert (
        harness.settle(harness.take(queue), ended(), queue) is Verdict.SETTLED
    )  # the child ends while the parent looks
    assert harness.settle(running, wait_on(), "parent") is Verdict.SETTLED
    assert harness.where(lease.job_id) == ["parent waiting"]


def vanished(harness: Harness, queue: str, child_id: str) -> None:
    harness.client.delete(harness.hash(queue, child_id))


def ended_by_the_original(harness: Harness, queue: str, child_id: str) -> None:
    harness.client.hset(harness.hash(queue, child_id), "done", "true")


def failed_by_an_early_original(harness: Harness, queue: str, child_id: str) -> None:
    harness.client.hset(harness.hash(queue, child_id), "done", '"true"')


@pytest.mark.parametrize(
    "end", [vanished, ended_by_the_original, failed_by_an_early_original], ids=lambda one: one.__name__
)
def test_the_sweep_finds_children_that_ended_without_waking_their_parent(
    harness: Harness, end: Callable[[Harness, str, str], None]
) -> None:
    lease = harness.start("parent")
    first, second = park(harness, lease, ["kid", "kid"])
    end(harness, *first)
    before = harness.now_ms()
    harness.client.zadd(harness.keys.parked("parent"), {lease.job_id: before})
    harness.sweep("parent", sweeps=1)
    assert harness.values(lease.job_id, "parent")[OPEN] == 1
    assert harness.client.zscore(harness.keys.parked("parent"), lease.job_id) > before + 5000
    end(harness, *second)
    harness.sweep("parent", sweeps=1)
    assert harness.where(lease.job_id) == ["parent parked"], "each has its turn"
    harness.client.zadd(harness.keys.parked("parent"), {lease.job_id: harness.now_ms()})
    harness.sweep("parent", sweeps=1)
    assert harness.where(lease.job_id) == ["parent waiting"]


def test_a_parked_parent_without_a_hash_is_dropped(harness: Harness) -> None:
    lease = harness.start("parent")
    ((queue, _),) = park(harness, lease, ["kid"])
    harness.client.delete(harness.keys.job(lease.job_id))
    assert harness.settle(harness.take(queue), ended(), queue) is Verdict.SETTLED
    assert not harness.client.exists(harness.keys.job(lease.job_id))
    harness.client.zadd(harness.keys.parked("parent"), {lease.job_id: 1})
    harness.sweep("parent", sweeps=1)
    assert harness.where(lease.job_id) == []


def test_a_child_created_by_another_program_can_end(harness: Harness) -> None:
    child_id, key = harness.keys.child("parent:kid", "u9")
    harness.client.hset(key, "parent", json.dumps(["no", "id"]))
    harness.client.rpush(harness.keys.waiting("parent:kid"), child_id)
    assert harness.settle(harness.take("parent:kid"), ended(x=1), "parent:kid") is Verdict.SETTLED
    assert harness.values(child_id, "parent:kid")["done"] is True
