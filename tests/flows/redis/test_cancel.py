"""A request to cancel a running job in Redis: every script that would let it wait again cancels it instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stowhand.flows.redis.engine import RedisEngine
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import with_state
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.protocols.store import Verdict
from tests.flows.redis.step_harness import FAILED, SETTLEMENTS, Harness, ended, new_token, park


def cancel(harness: Harness, job_id: str) -> Answer:
    """As a producer does."""

    async def ask() -> Answer:
        engine = RedisEngine(harness.url, harness.shape)
        try:
            return await engine.cancel(job_id)
        finally:
            await engine.close()

    answer: Answer = harness.run(ask())
    return answer


def is_canceled(harness: Harness, lease: Lease, queue: str = "first") -> bool:
    values = harness.client.hgetall(harness.hash(queue, lease.job_id))
    assert harness.where(lease.job_id) == []
    assert "flow:cancel" not in values
    return (values["flow:state"], values["canceled"]) == (json.dumps(f"canceled:{queue}"), "true")


@pytest.mark.parametrize("how", [how for how in SETTLEMENTS if how not in ("fail", "cancel")])
def test_a_settlement_after_a_cancellation_request_cancels_the_job(harness: Harness, how: str) -> None:
    lease, other = harness.start(), harness.start()
    assert cancel(harness, lease.job_id).result is ActionResult.ASKED
    message = with_state(SETTLEMENTS[how], State.CANCELED)
    assert harness.settle(lease, SETTLEMENTS[how]) == message
    assert is_canceled(harness, lease)
    image = harness.snapshot()
    assert harness.settle(lease, SETTLEMENTS[how], repeat=True) == message
    assert harness.snapshot() == image
    assert harness.settle(other, SETTLEMENTS[how]) is Verdict.SETTLED


def test_a_canceled_parent_creates_no_children(harness: Harness) -> None:
    lease = harness.start("parent")
    assert cancel(harness, lease.job_id).result is ActionResult.ASKED
    children = park(harness, lease, recorded=State.CANCELED)
    assert is_canceled(harness, lease, "parent")
    assert [harness.where(child) for _, child in children] == [[], [], []]


def test_each_outcome_is_recorded(harness: Harness) -> None:
    last, failing = harness.start("second"), harness.start()
    for lease in (last, failing):
        assert cancel(harness, lease.job_id).result is ActionResult.ASKED
    assert harness.settle(last, ended(), "second") is Verdict.SETTLED
    assert harness.settle(failing, FAILED) is Verdict.SETTLED
    states = [
        json.loads(harness.client.hget(harness.hash("first", each.job_id), "flow:state")) for each in (last, failing)
    ]
    assert states == ["completed:second", "failed:first"]
    assert [cancel(harness, each.job_id).result for each in (last, failing)] == [
        ActionResult.REFUSED,
        ActionResult.REFUSED,
    ]


BACK: dict[str, Callable[[Harness, Lease], Any]] = {
    "released": lambda harness, lease: harness.heartbeats().release([lease]),
    "abandoned": lambda harness, lease: harness.heartbeats().abandon(lease.token),
    "its worker was lost": lambda harness, lease: harness.die(lease),
    "its worker began anew": lambda harness, lease: harness.heartbeats().reset_worker("w"),
}


@pytest.mark.parametrize("how", BACK)
def test_a_returned_job_with_a_cancellation_request_is_canceled(harness: Harness, how: str) -> None:
    lease = harness.start()
    assert cancel(harness, lease.job_id).result is ActionResult.ASKED
    resets = BACK[how](harness, lease)
    assert is_canceled(harness, lease)
    assert harness.lock("first", lease.job_id) is None
    if how.startswith("its worker"):
        assert [each.state for each in resets] == [State.CANCELED]


def test_only_the_holder_receives_a_cancellation_request(harness: Harness) -> None:
    lease, other = harness.start(), harness.start()
    assert cancel(harness, lease.job_id).result is ActionResult.ASKED
    stale = Lease(lease.job_id, new_token(), 1)
    pulse = harness.heartbeats().beat([lease, other, stale], 600)
    assert pulse.canceled == {(lease.job_id, lease.token)}
    assert pulse.lost == {(stale.job_id, stale.token)}
    assert harness.settle(stale, ended("second")) is Verdict.LOST
    assert harness.where(lease.job_id) == ["first processing"]


def test_a_canceled_job_leaves_every_list(harness: Harness) -> None:
    postponed, suspect, moved = harness.start(), harness.start(), harness.add()
    harness.settle(postponed, SETTLEMENTS["snooze"])
    harness.die(suspect)
    assert harness.take().job_id == suspect.job_id
    harness.die(suspect)
    assert harness.where(suspect.job_id) == ["first suspects"]
    base = harness.keys.waiting("first").removesuffix(":waiting")
    harness.client.lmove(f"{base}:waiting", f"{base}:moved", "RIGHT", "LEFT")
    for job_id in (postponed.job_id, suspect.job_id, moved):
        assert cancel(harness, job_id).result is ActionResult.DONE
        assert cancel(harness, job_id).result is ActionResult.UNCHANGED
        assert "delay" not in harness.values(job_id)
        assert harness.where(job_id) == []
    assert harness.client.exists(f"{base}:moved") == 0
    assert harness.claim() == []


def test_a_job_in_no_list_is_not_canceled(harness: Harness) -> None:
    job_id = harness.start().job_id
    harness.client.delete(harness.keys.processing("first"))
    assert cancel(harness, job_id).result is ActionResult.REFUSED
    assert cancel(harness, harness.keys.new_id()).result is ActionResult.MISSING
