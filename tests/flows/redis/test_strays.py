"""Ids that stand where they should not: twice, or in processing though they have ended."""

from __future__ import annotations

import pytest

from stowhand.protocols.store import Verdict
from tests.flows.redis.step_harness import Harness, ended


def test_an_id_that_is_listed_twice_is_run_once(harness: Harness) -> None:
    job_id = harness.add()
    harness.client.rpush(harness.keys.waiting("first"), job_id)
    lease = harness.take()
    assert harness.claim() == []
    assert harness.where(job_id) == ["first processing"]
    assert harness.settle(lease, ended("second")) is Verdict.SETTLED
    assert harness.where(job_id) == ["second waiting"]


def test_a_leftover_lock_does_not_hide_a_job(plain_harness: Harness) -> None:
    """The original's workers leave their lock after a failure, and the job may be retried before it expires."""
    job_id = plain_harness.add()
    plain_harness.client.set(plain_harness.keys.lock("first", job_id), "their-worker", px=60_000)
    assert plain_harness.take().job_id == job_id


def test_an_id_that_is_processed_twice_is_reset_once(plain_harness: Harness) -> None:
    job_id = plain_harness.add(push=False)
    plain_harness.client.rpush(plain_harness.keys.processing("first"), job_id, job_id)
    assert [reset.job_id for reset in plain_harness.sweep()] == [job_id]
    assert plain_harness.where(job_id) == ["first waiting"]


def test_a_failed_job_left_in_processing_is_not_run_again(plain_harness: Harness) -> None:
    """The original records the failure first, and removes the job from processing after that."""
    job_id = plain_harness.add(push=False, done=True, failed=True, failedQueue="first", failedErrorMsg="no")
    plain_harness.client.rpush(plain_harness.keys.processing("first"), job_id)
    assert plain_harness.sweep() == []
    assert plain_harness.where(job_id) == []
    assert plain_harness.values(job_id)["failedErrorMsg"] == "no"


@pytest.mark.parametrize("how", ["abandon", "release", "worker", "lease"])
def test_an_id_that_is_processed_twice_is_released_once(plain_harness: Harness, how: str) -> None:
    lease = plain_harness.start()
    plain_harness.client.rpush(plain_harness.keys.processing("first"), lease.job_id)
    heartbeats = plain_harness.heartbeats()
    match how:
        case "abandon":
            heartbeats.abandon(lease.token)
        case "release":
            heartbeats.release([lease])
        case "worker":
            heartbeats.reset_worker("w")
        case _:
            heartbeats.reset_lease(lease)
    plain_harness.sweep()
    assert plain_harness.where(lease.job_id) == ["first waiting"]


def test_in_a_long_list_too_a_lock_makes_forget_that_there_was_none(plain_harness: Harness) -> None:
    ids = plain_harness.add_many(1200)
    plain_harness.client.rename(plain_harness.keys.waiting("first"), plain_harness.keys.processing("first"))
    late = plain_harness.keys.lock("first", ids[0])
    plain_harness.client.mset({plain_harness.keys.lock("first", job_id): "w:t" for job_id in ids[1:]})
    assert plain_harness.sweep(sweeps=1) == []
    plain_harness.client.set(late, "w:t")
    assert plain_harness.sweep(sweeps=1) == []
    plain_harness.client.delete(late)
    assert plain_harness.sweep(sweeps=1) == []
    assert [reset.job_id for reset in plain_harness.sweep(sweeps=1)] == [ids[0]]
