"""Looking: single jobs, lists and counts."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import Verdict
from tests.contract.bench import FAILED, STATES, Bench


@pytest.mark.parametrize("state", STATES)
async def test_a_job_is_found_wherever_it_lies(bench: Bench, state: State) -> None:
    job = await bench.in_state(state, payload='{"n": 1}', queue="q", flags=("f",), priority=3, max_resets=4)
    found = await bench.job(job.id)
    assert (found.id, found.state, found.queue, found.flags) == (job.id, state, "q", ("f",))
    assert (found.priority, found.max_resets, found.created_at) == (3, 4, job.created_at)
    assert (found.finished_at is not None) == state.terminal
    assert (found.worker is not None) == (state is State.PROCESSING)


async def test_an_unknown_job_is_none(bench: Bench) -> None:
    assert await bench.store.get(999_999) is None


async def test_a_list_shows_what_lives_and_what_failed(bench: Bench) -> None:
    jobs = {state: await bench.in_state(state) for state in STATES}
    listed = await bench.store.list(JobFilter())
    assert [job.id for job in listed] == [
        jobs[state].id for state in STATES if state not in (State.COMPLETED, State.CANCELED)
    ]


@pytest.mark.parametrize("state", STATES)
async def test_a_list_of_one_state_shows_that_state(bench: Bench, state: State) -> None:
    jobs = {each: await bench.in_state(each) for each in STATES}
    assert [job.id for job in await bench.store.list(JobFilter(states=(state,)))] == [jobs[state].id]


async def test_a_list_may_mix_the_living_and_the_history_in_id_order(bench: Bench) -> None:
    wanted = (State.COMPLETED, State.QUEUED, State.CANCELED)
    jobs = [await bench.in_state(state) for state in (*wanted, *wanted, State.FAILED)]
    listed = await bench.store.list(JobFilter(states=wanted))
    assert [job.id for job in listed] == [job.id for job in jobs[:6]]


async def test_a_list_is_paged_by_id(bench: Bench) -> None:
    jobs = [await bench.in_state(state) for state in (State.QUEUED, State.COMPLETED, State.FAILED) * 3]
    seen: list[int] = []
    while page := await bench.store.list(JobFilter(states=STATES, after=seen[-1] if seen else 0, limit=2)):
        assert len(page) <= 2
        seen.extend(job.id for job in page)
    assert seen == [job.id for job in jobs]


async def test_a_list_shows_each_job_once_while_they_move_to_the_history(bench: Bench) -> None:
    ids = await bench.store.enqueue_many(NewJob(task="t") for _ in range(150))
    claims = await bench.claim(limit=len(ids))
    other = await bench.another()

    async def complete() -> None:
        for claim in claims:
            assert await other.settle([(claim.lease, COMPLETED)]) == [Verdict.SETTLED]

    moving = asyncio.create_task(complete())
    while not moving.done():
        assert [job.id for job in await bench.everything()] == sorted(ids)
        await asyncio.sleep(0)
    await moving


async def test_a_list_is_narrowed_by_task_queue_and_key(bench: Bench) -> None:
    wanted = await bench.add("a", queue="q", key="k")
    await bench.add("b", queue="q", key="l")
    await bench.add("a", queue="r")
    assert [job.id for job in await bench.store.list(JobFilter(task="a", queue="q"))] == [wanted.id]
    assert [job.id for job in await bench.store.list(JobFilter(key="k"))] == [wanted.id]
    assert len(await bench.store.list(JobFilter(queue="q"))) == 2
    assert list(await bench.store.list(JobFilter(task="z"))) == []


async def test_counts_name_every_state(bench: Bench) -> None:
    assert await bench.store.counts() == dict.fromkeys(State, 0)
    for number, state in enumerate(STATES, 1):
        for _ in range(number):
            await bench.in_state(state)
    assert await bench.store.counts() == {state: number for number, state in enumerate(STATES, 1)}


async def test_oldest_due_is_the_wait_of_what_is_due_and_waits(bench: Bench) -> None:
    assert await bench.store.oldest_due() == 0
    await bench.add(delay=100.0)
    await bench.in_state(State.FAILED)
    assert await bench.store.oldest_due() == 0, "later, or never again"
    await bench.pass_time(130.0)
    assert await bench.store.oldest_due() == pytest.approx(30.0, abs=0.1)
    await bench.add("other", queue="q", priority=-5)
    assert await bench.store.oldest_due() == pytest.approx(30.0, abs=0.1), "the longest, whoever comes first"
    await bench.take(tasks=("t",))
    await bench.pass_time(3.0)
    assert await bench.store.oldest_due() == pytest.approx(3.0, abs=0.1), "what runs does not wait"


async def test_looking_changes_nothing(bench: Bench) -> None:
    job = await bench.in_state(State.PROCESSING)
    image = await bench.image(job.id)
    await bench.job(job.id)
    await bench.everything()
    await bench.store.counts()
    assert await bench.image(job.id) == image


async def test_times_are_aware(bench: Bench) -> None:
    for state in STATES:
        job = await bench.job((await bench.in_state(state)).id)
        times = (job.run_at, job.created_at, job.updated_at, job.started_at, job.finished_at)
        assert all(moment.utcoffset() is not None for moment in times if moment is not None)


async def test_a_store_says_where_it_is(bench: Bench) -> None:
    assert bench.store.description


@pytest.mark.parametrize("name", ["", "a\x00", "a\udcff"])
async def test_a_name_that_nothing_can_bear_lists_nothing(bench: Bench, name: str) -> None:
    await bench.add(queue="q", key="k")
    for wanted in (JobFilter(task=name), JobFilter(queue=name), JobFilter(key=name)):
        assert list(await bench.store.list(wanted)) == []


async def test_the_newest_come_first_and_what_follows_lies_below(bench: Bench) -> None:
    jobs = [(await bench.in_state(state)).id for state in (*STATES, State.QUEUED)]
    seen: list[int] = []
    while page := await bench.store.list(
        JobFilter(states=STATES, newest_first=True, after=seen[-1] if seen else 0, limit=2)
    ):
        seen += [job.id for job in page]
    assert seen == sorted(jobs, reverse=True)
    assert [job.id for job in await bench.store.list(JobFilter(newest_first=True, limit=1))] == [jobs[-1]]


async def test_without_a_filter_the_newest_hundred_are_listed_that_live_or_failed(bench: Bench) -> None:
    jobs = {state: (await bench.in_state(state)).id for state in STATES}
    more = [(await bench.add()).id for _ in range(101 - len(STATES))]
    wanted = [one for state, one in jobs.items() if state not in (State.COMPLETED, State.CANCELED)]
    listed = [job.id for job in await bench.store.list()]
    assert listed == sorted([*wanted, *more], reverse=True)
    more += [(await bench.add()).id for _ in range(10)]
    assert [job.id for job in await bench.store.list()] == sorted([*wanted, *more], reverse=True)[:100]


async def test_the_filter_knows_moments_workers_and_words_of_the_error(bench: Bench) -> None:
    failed = await bench.start()
    await bench.settle(failed, msgspec.structs.replace(FAILED, error="LookupError: no such Order\ntraceback"))
    began = await bench.store.now()
    await bench.pass_time(60.0)
    waiting = await bench.add()
    running = await bench.start(priority=-1)
    completed = await bench.start(priority=-1)
    await bench.settle(completed, COMPLETED)

    async def found(**asked: Any) -> list[int]:
        return [job.id for job in await bench.store.list(JobFilter(states=STATES, **asked))]

    everything = await found()
    assert await found(error="no such order") == [failed.job_id]
    assert await found(error="%") == await found(error="nul \0") == []
    assert await found(worker="w1") == [running.job_id]
    assert await found(worker="w2") == []
    later = began + timedelta(seconds=30)
    assert await found(until=later) == [failed.job_id]
    assert await found(since=later) == [one for one in everything if one != failed.job_id]
    assert await found(since=later, until=later) == []
    assert waiting.id in await found(since=later)
    with pytest.raises(InvalidJob, match="no time zone"):
        await found(since=datetime(2030, 1, 1))  # noqa: DTZ001
