"""Claiming: what is due, in which order, for whom, and what the row says meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import State
from tests.contract.needs import cases, excepted, needs
from tests.contract.store_harness import ERRORED, StoreHarness, new_token


@needs("epochs")
async def test_a_claim_moves_the_job_to_processing_under_its_lease(harness: StoreHarness) -> None:
    job = await harness.add("mail", payload='{"to": "ann"}')
    token = new_token()
    (claim,) = await harness.claim(worker="w7", token=token)
    assert (claim.lease.job_id, claim.lease.token, claim.lease.epoch) == (job.id, token, 1)
    assert (claim.task, claim.attempts, claim.max_attempts, claim.serial) == ("mail", 1, 25, None)
    assert claim.record.id == job.id
    running = await harness.job(job.id)
    assert (running.state, running.attempts, running.worker) == (State.PROCESSING, 1, "w7")
    assert running.started_at == harness.now


@needs("keys")
async def test_the_claimed_record_is_the_row_as_it_was_committed(harness: StoreHarness) -> None:
    await harness.add("mail", serial="q", key="k", priority=3, flags=("a", "b"), max_attempts=4, max_resets=2)
    (claim,) = await harness.claim()
    assert claim.record == await harness.job(claim.lease.job_id)
    assert claim.serial == "q"


@excepted(redis="by priority, then as they stand in the list")
async def test_jobs_are_claimed_by_priority_then_run_time_then_id(harness: StoreHarness) -> None:
    late = await harness.add(priority=5)
    soon = await harness.add(priority=1, run_at=harness.now - timedelta(seconds=1))
    sooner = await harness.add(priority=1, run_at=harness.now - timedelta(seconds=2))
    first = await harness.add(priority=-7)
    again = await harness.add(priority=1, run_at=harness.now - timedelta(seconds=1))
    claims = await harness.claim(10)
    assert [claim.lease.job_id for claim in claims] == [first.id, sooner.id, soon.id, again.id, late.id]


async def test_a_claim_takes_no_more_than_its_limit_and_leaves_the_rest_untouched(harness: StoreHarness) -> None:
    jobs = [await harness.add() for _ in range(5)]
    claims = await harness.claim(3)
    assert [claim.lease.job_id for claim in claims] == [job.id for job in jobs[:3]]
    assert [await harness.job(job.id) for job in jobs[3:]] == jobs[3:]


@excepted(table="it takes conditions")
async def test_a_claim_with_conditions_is_refused_and_takes_nothing(harness: StoreHarness) -> None:
    job = await harness.add(priority=9)
    for suspects in (False, True):
        with pytest.raises(ConfigurationError, match="a queue supports no conditions"):
            await harness.claim(conditions=(Where("priority", "<=", 5),), suspects=suspects)
    assert await harness.job(job.id) == job


async def test_jobs_of_one_claim_share_its_token(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.add()
    token = new_token()
    assert {claim.lease.token for claim in await harness.claim(3, token=token)} == {token}


async def test_two_claims_give_two_jobs_and_a_third_finds_nothing(harness: StoreHarness) -> None:
    for _ in range(2):
        await harness.add()
    first, second = await harness.take(), await harness.take()
    assert first.job_id != second.job_id
    assert list(await harness.claim()) == []


async def test_an_empty_store_gives_nothing(harness: StoreHarness) -> None:
    assert list(await harness.claim(10)) == []


@needs("clock")
async def test_a_future_job_waits_until_its_moment(harness: StoreHarness) -> None:
    job = await harness.add(run_at=harness.now + timedelta(seconds=60))
    await harness.pass_time(59.9)
    assert list(await harness.claim()) == []
    await harness.pass_time(0.1)
    assert (await harness.take()).job_id == job.id


@needs("epochs")
async def test_an_errored_job_is_claimed_again_when_it_is_due(harness: StoreHarness) -> None:
    job = await harness.in_state(State.ERRORED)
    await harness.pass_time(59.9)
    assert list(await harness.claim()) == []
    await harness.pass_time(0.1)
    (claim,) = await harness.claim()
    assert (claim.lease.job_id, claim.attempts, claim.lease.epoch) == (job.id, 2, 2)


@cases(
    "state",
    [State.PROCESSING, State.FAILED, State.CANCELED, State.COMPLETED],
    needs={State.PROCESSING: "expired_leases"},
)
async def test_only_waiting_jobs_are_claimed(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state)
    await harness.pass_time(86_000)
    assert list(await harness.claim(10)) == []
    assert await harness.job(job.id) == job


async def test_only_the_named_tasks_are_claimed(harness: StoreHarness) -> None:
    mail, other, sms = await harness.add("mail"), await harness.add("other"), await harness.add("sms")
    claims = await harness.claim(10, tasks=("mail", "sms"))
    assert [claim.lease.job_id for claim in claims] == [mail.id, sms.id]
    assert await harness.job(other.id) == other


async def test_no_tasks_named_means_any_and_none_known_means_none(harness: StoreHarness) -> None:
    await harness.add("anything")
    assert list(await harness.claim(tasks=())) == []
    assert len(await harness.claim(tasks=None)) == 1


@needs("flags")
async def test_jobs_with_a_forbidden_flag_stay(harness: StoreHarness) -> None:
    free = await harness.add()
    flagged = await harness.add(flags=("other", "heavy"))
    harmless = await harness.add(flags=("light",))
    claims = await harness.claim(10, forbidden_flags=("heavy", "slow"))
    assert [claim.lease.job_id for claim in claims] == [free.id, harmless.id]
    assert (await harness.job(flagged.id)).attempts == 0
    assert (await harness.take()).job_id == flagged.id


@needs("tokens")
async def test_an_abandoned_token_claims_nothing(harness: StoreHarness) -> None:
    job = await harness.add()
    token = new_token()
    await harness.heartbeats.abandon(token)
    assert list(await harness.claim(token=token)) == []
    assert await harness.job(job.id) == job


@needs("limits")
async def test_the_last_attempt_is_counted_and_no_more(harness: StoreHarness) -> None:
    job = await harness.add(max_attempts=1)
    await harness.settle(await harness.take(), ERRORED)
    await harness.pass_time(60)
    await harness.take()
    assert (await harness.job(job.id)).attempts == 1


@needs("messages")
async def test_the_error_of_an_earlier_attempt_stays_while_the_next_one_runs(harness: StoreHarness) -> None:
    job = await harness.in_state(State.ERRORED)
    await harness.pass_time(60)
    await harness.take()
    assert (await harness.job(job.id)).last_error == "it failed"
