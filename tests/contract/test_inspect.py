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
from tests.contract.needs import needs
from tests.contract.store_harness import FAILED, STATES, StoreHarness

pytestmark = needs("inspect")


@pytest.mark.parametrize("state", STATES)
async def test_a_job_is_found_wherever_it_lies(harness: StoreHarness, state: State) -> None:
    job = await harness.in_state(state, payload='{"n": 1}', serial="q", flags=("f",), priority=3, max_resets=4)
    result = await harness.job(job.id)
    assert (result.id, result.state, result.serial, result.flags) == (job.id, state, "q", ("f",))
    assert (result.priority, result.max_resets, result.created_at) == (3, 4, job.created_at)
    assert (result.finished_at is not None) == state.terminal
    assert (result.worker is not None) == (state is State.PROCESSING)


async def test_an_unknown_job_is_none(harness: StoreHarness) -> None:
    assert await harness.store.jobs.get(999_999) is None


async def test_a_list_shows_what_lives_and_what_failed(harness: StoreHarness) -> None:
    jobs = {state: await harness.in_state(state) for state in STATES}
    listed = await harness.store.inspect.list(JobFilter())
    assert [job.id for job in listed] == [
        jobs[state].id for state in STATES if state not in (State.COMPLETED, State.CANCELED)
    ]


@pytest.mark.parametrize("state", STATES)
async def test_a_list_of_one_state_shows_that_state(harness: StoreHarness, state: State) -> None:
    jobs = {each: await harness.in_state(each) for each in STATES}
    assert [job.id for job in await harness.store.inspect.list(JobFilter(states=(state,)))] == [jobs[state].id]


async def test_a_list_may_mix_the_living_and_the_history_in_id_order(harness: StoreHarness) -> None:
    wanted = (State.COMPLETED, State.QUEUED, State.CANCELED)
    jobs = [await harness.in_state(state) for state in (*wanted, *wanted, State.FAILED)]
    listed = await harness.store.inspect.list(JobFilter(states=wanted))
    assert [job.id for job in listed] == [job.id for job in jobs[:6]]


async def test_a_list_is_paged_by_id(harness: StoreHarness) -> None:
    jobs = [await harness.in_state(state) for state in (State.QUEUED, State.COMPLETED, State.FAILED) * 3]
    seen: list[int] = []
    while page := await harness.store.inspect.list(JobFilter(states=STATES, after=seen[-1] if seen else 0, limit=2)):
        assert len(page) <= 2
        seen.extend(job.id for job in page)
    assert seen == [job.id for job in jobs]


async def test_a_list_shows_each_job_once_while_they_move_to_the_history(harness: StoreHarness) -> None:
    ids = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(150))
    claims = await harness.claim(limit=len(ids))
    other = await harness.another()

    async def complete() -> None:
        for claim in claims:
            assert await other.settle([(claim.lease, COMPLETED)]) == [Verdict.SETTLED]

    moving = asyncio.create_task(complete())
    while not moving.done():
        assert [job.id for job in await harness.everything()] == sorted(ids)
        await asyncio.sleep(0)
    await moving


async def test_a_list_is_narrowed_by_task_queue_and_key(harness: StoreHarness) -> None:
    wanted = await harness.add("a", serial="q", key="k")
    await harness.add("b", serial="q", key="l")
    await harness.add("a", serial="r")
    assert [job.id for job in await harness.store.inspect.list(JobFilter(task="a", serial="q"))] == [wanted.id]
    assert [job.id for job in await harness.store.inspect.list(JobFilter(key="k"))] == [wanted.id]
    assert len(await harness.store.inspect.list(JobFilter(serial="q"))) == 2
    assert list(await harness.store.inspect.list(JobFilter(task="z"))) == []


async def test_counts_name_every_state(harness: StoreHarness) -> None:
    assert await harness.store.inspect.counts() == dict.fromkeys(State, 0)
    for number, state in enumerate(STATES, 1):
        for _ in range(number):
            await harness.in_state(state)
    assert await harness.store.inspect.counts() == {state: number for number, state in enumerate(STATES, 1)}


async def test_oldest_due_is_the_wait_of_what_is_due_and_waits(harness: StoreHarness) -> None:
    assert await harness.store.inspect.oldest_due() == {}
    await harness.add(delay=100.0)
    await harness.in_state(State.FAILED)
    assert await harness.store.inspect.oldest_due() == {}, "later, or never again"
    await harness.pass_time(130.0)
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(30.0, abs=0.1)}
    await harness.add("other", serial="q", priority=-5)
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(30.0, abs=0.1)}, (
        "the longest, whoever comes first"
    )
    await harness.take(tasks=("t",))
    await harness.pass_time(3.0)
    assert await harness.store.inspect.oldest_due() == {"default": pytest.approx(3.0, abs=0.1)}, (
        "what runs does not wait"
    )


async def test_looking_changes_nothing(harness: StoreHarness) -> None:
    job = await harness.in_state(State.PROCESSING)
    image = await harness.image(job.id)
    await harness.job(job.id)
    await harness.everything()
    await harness.store.inspect.counts()
    assert await harness.image(job.id) == image


async def test_times_are_aware(harness: StoreHarness) -> None:
    for state in STATES:
        job = await harness.job((await harness.in_state(state)).id)
        times = (job.run_at, job.created_at, job.updated_at, job.started_at, job.finished_at)
        assert all(moment.utcoffset() is not None for moment in times if moment is not None)


async def test_a_store_describes_its_address(harness: StoreHarness) -> None:
    assert harness.store.description


@pytest.mark.parametrize("name", ["", "a\x00", "a\udcff"])
async def test_a_name_that_nothing_can_bear_lists_nothing(harness: StoreHarness, name: str) -> None:
    await harness.add(serial="q", key="k")
    for wanted in (JobFilter(task=name), JobFilter(serial=name), JobFilter(key=name)):
        assert list(await harness.store.inspect.list(wanted)) == []


async def test_the_newest_come_first_and_what_follows_lies_below(harness: StoreHarness) -> None:
    jobs = [(await harness.in_state(state)).id for state in (*STATES, State.QUEUED)]
    seen: list[int] = []
    while page := await harness.store.inspect.list(
        JobFilter(states=STATES, newest_first=True, after=seen[-1] if seen else 0, limit=2)
    ):
        seen += [job.id for job in page]
    assert seen == sorted(jobs, reverse=True)
    assert [job.id for job in await harness.store.inspect.list(JobFilter(newest_first=True, limit=1))] == [jobs[-1]]


async def test_without_a_filter_the_newest_hundred_are_listed_that_live_or_failed(harness: StoreHarness) -> None:
    jobs = {state: (await harness.in_state(state)).id for state in STATES}
    more = [(await harness.add()).id for _ in range(101 - len(STATES))]
    wanted = [one for state, one in jobs.items() if state not in (State.COMPLETED, State.CANCELED)]
    listed = [job.id for job in await harness.store.inspect.list()]
    assert listed == sorted([*wanted, *more], reverse=True)
    more += [(await harness.add()).id for _ in range(10)]
    assert [job.id for job in await harness.store.inspect.list()] == sorted([*wanted, *more], reverse=True)[:100]


async def test_the_filter_knows_moments_workers_and_words_of_the_error(harness: StoreHarness) -> None:
    failed = await harness.start()
    await harness.settle(failed, msgspec.structs.replace(FAILED, error="LookupError: no such Order\ntraceback"))
    began = await harness.store.timetable.now()
    await harness.pass_time(60.0)
    waiting = await harness.add()
    running = await harness.start(priority=-1)
    completed = await harness.start(priority=-1)
    await harness.settle(completed, COMPLETED)

    async def found(**asked: Any) -> list[int]:
        return [job.id for job in await harness.store.inspect.list(JobFilter(states=STATES, **asked))]

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
