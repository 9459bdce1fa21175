"""Handing back: unspent, as if it had never been claimed; and tokens given up for lost."""

from __future__ import annotations

from stowhand.jobs.job import State
from stowhand.protocols.store import Verdict
from tests.contract.bench import ERRORED, Bench, new_token


async def test_a_released_job_is_as_it_was_before_its_claim(bench: Bench) -> None:
    job = await bench.add(key="k", queue="q", flags=("a",), priority=2)
    lease = await bench.take()
    await bench.pass_time(5)
    bench.heart.release([lease])
    back = await bench.job(job.id)
    assert (back.state, back.attempts, back.run_at, back.worker) == (State.QUEUED, 0, job.run_at, None)
    assert (back.key, back.queue, back.flags, back.priority) == ("k", "q", ("a",), 2)
    assert (back.resets, back.last_error, back.revision, back.finished_at) == (0, None, 0, None)


async def test_a_released_job_is_due_at_once(bench: Bench) -> None:
    lease = await bench.start()
    bench.heart.release([lease])
    again = await bench.take()
    assert (again.job_id, again.epoch) == (lease.job_id, 2)
    assert (await bench.job(lease.job_id)).attempts == 1


async def test_releasing_a_retry_gives_back_that_attempt_only(bench: Bench) -> None:
    job = await bench.in_state(State.ERRORED)
    await bench.pass_time(60)
    due = (await bench.job(job.id)).run_at
    bench.heart.release([await bench.take()])
    back = await bench.job(job.id)
    assert (back.state, back.attempts, back.last_error, back.run_at) == (State.QUEUED, 1, "it failed", due)


async def test_a_release_does_not_touch_the_resets(bench: Bench) -> None:
    job = await bench.make_suspect(times=1)
    bench.heart.release([await bench.take()])
    assert (await bench.job(job.id)).resets == 1


async def test_releasing_many_takes_each_by_its_own_pair(bench: Bench) -> None:
    kept, *given = [await bench.start(task) for task in "abcd"]
    await bench.settle(given[0])
    bench.heart.release(given)
    states = [(await bench.job(lease.job_id)).state for lease in (kept, *given)]
    assert states == [State.PROCESSING, State.COMPLETED, State.QUEUED, State.QUEUED]


async def test_releasing_nothing_or_twice_is_harmless(bench: Bench) -> None:
    lease = await bench.start()
    bench.heart.release([])
    bench.heart.release([lease])
    before = await bench.image(lease.job_id)
    bench.heart.release([lease])
    assert await bench.image(lease.job_id) == before


async def test_a_release_of_a_job_that_was_asked_to_cancel_cancels_it(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.store.cancel(lease.job_id)
    bench.heart.release([lease])
    job = await bench.job(lease.job_id)
    assert (job.state, job.finished_at, job.worker) == (State.CANCELED, bench.now, None)
    assert (await bench.add(key="k")).id != job.id


async def test_a_release_of_a_job_whose_key_was_removed_cancels_it(bench: Bench) -> None:
    lease = await bench.start(key="k")
    await bench.store.remove_key("k")
    bench.heart.release([lease])
    assert (await bench.job(lease.job_id)).state is State.CANCELED


async def test_a_release_of_a_job_whose_key_was_taken_runs_it_again(bench: Bench) -> None:
    lease = await bench.start(key="k")
    newer = await bench.add("newer", key="k")
    bench.heart.release([lease])
    back = await bench.job(lease.job_id)
    assert (back.state, back.key) == (State.QUEUED, None)
    assert (await bench.job(newer.id)).key == "k"
    again = await bench.take(tasks=("t",))
    await bench.settle(again, ERRORED)
    assert (await bench.job(lease.job_id)).state is State.FAILED


async def test_abandoning_a_token_gives_back_all_it_holds_and_nothing_else(bench: Bench) -> None:
    for _ in range(4):
        await bench.add()
    lost = await bench.claim(2)
    (other,) = await bench.claim(1)
    bench.heart.abandon(lost[0].lease.token)
    for claim in lost:
        job = await bench.job(claim.lease.job_id)
        assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)
    assert (await bench.job(other.lease.job_id)).state is State.PROCESSING


async def test_an_abandoned_token_never_claims_again(bench: Bench) -> None:
    await bench.add()
    token = new_token()
    await bench.take(token=token)
    bench.heart.abandon(token)
    assert list(await bench.claim(token=token)) == []
    await bench.pass_time(60)
    assert list(await bench.claim(token=token)) == []
    assert (await bench.take()).epoch == 2


async def test_abandoning_twice_or_a_token_that_never_claimed_is_harmless(bench: Bench) -> None:
    token = new_token()
    bench.heart.abandon(token)
    bench.heart.abandon(token)
    assert await bench.settle(await bench.start()) is Verdict.SETTLED


async def test_abandoning_a_job_that_was_asked_to_cancel_cancels_it(bench: Bench) -> None:
    lease = await bench.start()
    await bench.store.cancel(lease.job_id)
    bench.heart.abandon(lease.token)
    assert (await bench.job(lease.job_id)).state is State.CANCELED
