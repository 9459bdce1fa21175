"""Claiming: what is due, in which order, for whom, and what the row says meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import State
from tests.contract.bench import ERRORED, Bench, new_token


async def test_a_claim_moves_the_job_to_processing_under_its_lease(bench: Bench) -> None:
    job = await bench.add("mail", payload='{"to": "ann"}')
    token = new_token()
    (claim,) = await bench.claim(worker="w7", token=token)
    assert (claim.lease.job_id, claim.lease.token, claim.lease.epoch) == (job.id, token, 1)
    assert (claim.task, claim.attempts, claim.max_attempts, claim.queue) == ("mail", 1, 25, None)
    assert claim.record.id == job.id
    running = await bench.job(job.id)
    assert (running.state, running.attempts, running.worker) == (State.PROCESSING, 1, "w7")
    assert running.started_at == bench.now


async def test_the_claimed_record_is_the_row_as_it_was_committed(bench: Bench) -> None:
    await bench.add("mail", queue="q", key="k", priority=3, flags=("a", "b"), max_attempts=4, max_resets=2)
    (claim,) = await bench.claim()
    assert claim.record == await bench.job(claim.lease.job_id)
    assert claim.queue == "q"


async def test_jobs_are_claimed_by_priority_then_run_time_then_id(bench: Bench) -> None:
    late = await bench.add(priority=5)
    soon = await bench.add(priority=1, run_at=bench.now - timedelta(seconds=1))
    sooner = await bench.add(priority=1, run_at=bench.now - timedelta(seconds=2))
    first = await bench.add(priority=-7)
    again = await bench.add(priority=1, run_at=bench.now - timedelta(seconds=1))
    claims = await bench.claim(10)
    assert [claim.lease.job_id for claim in claims] == [first.id, sooner.id, soon.id, again.id, late.id]


async def test_a_claim_takes_no_more_than_its_limit_and_leaves_the_rest_untouched(bench: Bench) -> None:
    jobs = [await bench.add() for _ in range(5)]
    claims = await bench.claim(3)
    assert [claim.lease.job_id for claim in claims] == [job.id for job in jobs[:3]]
    assert [await bench.job(job.id) for job in jobs[3:]] == jobs[3:]


async def test_a_claim_with_conditions_is_refused_and_takes_nothing(bench: Bench) -> None:
    job = await bench.add(priority=9)
    for suspects in (False, True):
        with pytest.raises(ConfigurationError, match="a queue takes no conditions"):
            await bench.claim(conditions=(Where("priority", "<=", 5),), suspects=suspects)
    assert await bench.job(job.id) == job


async def test_jobs_of_one_claim_share_its_token(bench: Bench) -> None:
    for _ in range(3):
        await bench.add()
    token = new_token()
    assert {claim.lease.token for claim in await bench.claim(3, token=token)} == {token}


async def test_two_claims_give_two_jobs_and_a_third_finds_nothing(bench: Bench) -> None:
    for _ in range(2):
        await bench.add()
    first, second = await bench.take(), await bench.take()
    assert first.job_id != second.job_id
    assert list(await bench.claim()) == []


async def test_an_empty_store_gives_nothing(bench: Bench) -> None:
    assert list(await bench.claim(10)) == []


async def test_a_future_job_waits_until_its_moment(bench: Bench) -> None:
    job = await bench.add(run_at=bench.now + timedelta(seconds=60))
    await bench.pass_time(59.9)
    assert list(await bench.claim()) == []
    await bench.pass_time(0.1)
    assert (await bench.take()).job_id == job.id


async def test_an_errored_job_is_claimed_again_when_it_is_due(bench: Bench) -> None:
    job = await bench.in_state(State.ERRORED)
    await bench.pass_time(59.9)
    assert list(await bench.claim()) == []
    await bench.pass_time(0.1)
    (claim,) = await bench.claim()
    assert (claim.lease.job_id, claim.attempts, claim.lease.epoch) == (job.id, 2, 2)


@pytest.mark.parametrize("state", [State.PROCESSING, State.FAILED, State.CANCELED, State.COMPLETED])
async def test_only_waiting_jobs_are_claimed(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    await bench.pass_time(86_000)
    assert list(await bench.claim(10)) == []
    assert await bench.job(job.id) == job


async def test_only_the_named_tasks_are_claimed(bench: Bench) -> None:
    mail, other, sms = await bench.add("mail"), await bench.add("other"), await bench.add("sms")
    claims = await bench.claim(10, tasks=("mail", "sms"))
    assert [claim.lease.job_id for claim in claims] == [mail.id, sms.id]
    assert await bench.job(other.id) == other


async def test_no_tasks_named_means_any_and_none_known_means_none(bench: Bench) -> None:
    await bench.add("anything")
    assert list(await bench.claim(tasks=())) == []
    assert len(await bench.claim(tasks=None)) == 1


async def test_jobs_with_a_forbidden_flag_stay(bench: Bench) -> None:
    free = await bench.add()
    flagged = await bench.add(flags=("other", "heavy"))
    harmless = await bench.add(flags=("light",))
    claims = await bench.claim(10, forbidden_flags=("heavy", "slow"))
    assert [claim.lease.job_id for claim in claims] == [free.id, harmless.id]
    assert (await bench.job(flagged.id)).attempts == 0
    assert (await bench.take()).job_id == flagged.id


async def test_an_abandoned_token_claims_nothing(bench: Bench) -> None:
    job = await bench.add()
    token = new_token()
    bench.heart.abandon(token)
    assert list(await bench.claim(token=token)) == []
    assert await bench.job(job.id) == job


async def test_the_last_attempt_is_counted_and_no_more(bench: Bench) -> None:
    job = await bench.add(max_attempts=1)
    await bench.settle(await bench.take(), ERRORED)
    await bench.pass_time(60)
    await bench.take()
    assert (await bench.job(job.id)).attempts == 1


async def test_the_error_of_an_earlier_attempt_stays_while_the_next_one_runs(bench: Bench) -> None:
    job = await bench.in_state(State.ERRORED)
    await bench.pass_time(60)
    await bench.take()
    assert (await bench.job(job.id)).last_error == "it failed"
