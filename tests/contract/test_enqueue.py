"""Enqueueing: what a job looks like when it is new, what is refused, and many at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.queue_store import JobFilter
from tests.contract.backends import payload_of
from tests.contract.needs import needs
from tests.contract.store_harness import StoreHarness

pytestmark = needs("jobs")


async def test_a_new_job_has_the_documented_defaults(harness: StoreHarness) -> None:
    job = await harness.store.jobs.enqueue(NewJob(task="t"))
    assert (job.task, payload_of(job.payload_text), job.state, job.serial) == ("t", {}, State.QUEUED, None)
    assert (job.priority, job.attempts, job.max_attempts, job.resets, job.max_resets) == (0, 0, 25, 0, None)
    assert (job.key, job.flags, job.last_error, job.revision, job.result_text) == (None, (), None, 0, None)
    assert (job.run_at, job.created_at, job.updated_at) == (harness.now, harness.now, harness.now)
    assert (job.started_at, job.finished_at, job.worker, job.cancel_requested) == (None, None, None, False)


async def test_what_enqueue_gives_is_what_was_committed(harness: StoreHarness) -> None:
    job = await harness.add(serial="q", key="k", priority=-3, flags=("a",), payload='{"n": [1.5, null]}', max_resets=0)
    assert await harness.job(job.id) == job


async def test_a_delay_counts_from_the_stores_now(harness: StoreHarness) -> None:
    await harness.pass_time(5)
    assert (await harness.add(delay=2.5)).run_at == harness.now + timedelta(seconds=2.5)


async def test_a_run_time_is_kept_as_given_in_any_zone(harness: StoreHarness) -> None:
    moment = datetime(2031, 7, 1, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=-4)))
    job = await harness.add(run_at=moment)
    assert job.run_at == moment
    assert job.run_at.utcoffset() is not None
    far = datetime(2200, 1, 1, tzinfo=UTC)
    assert (await harness.add(run_at=far)).run_at == far


async def test_a_run_time_in_the_past_is_kept(harness: StoreHarness) -> None:
    moment = datetime(1999, 1, 1, tzinfo=UTC)
    assert (await harness.add(run_at=moment)).run_at == moment


@pytest.mark.parametrize(
    "payload",
    ["null", "0", '""', "[]", "true", '{"é": "\\ud83d\\ude00"}', '{"big": 123456789012345678901234567890}', '"日本"'],
)
async def test_any_json_value_is_a_payload(harness: StoreHarness, payload: str) -> None:
    job = await harness.add(payload=payload)
    assert payload_of((await harness.job(job.id)).payload_text) == payload_of(payload)


async def test_names_come_back_as_they_were_given(harness: StoreHarness) -> None:
    name = "a'b\"c;--%s {} \\ é 日本"
    job = await harness.add(name, serial=name, key=name, flags=(name,))
    (listed,) = await harness.store.inspect.list(JobFilter(task=name, serial=name, key=name))
    assert (listed.task, listed.serial, listed.key, listed.flags) == (name, name, name, (name,))
    assert (await harness.take(tasks=(name,))).job_id == job.id


async def test_the_longest_names_and_the_widest_priorities_are_accepted(harness: StoreHarness) -> None:
    for priority in (-(2**31), 2**31 - 1):
        job = await harness.add("t" * 128, serial="q" * 128, key="k" * 512, priority=priority, flags=("f" * 128,))
        assert (job.priority, len(job.task), len(job.key or "")) == (priority, 128, 512)


REFUSED: dict[str, dict[str, Any]] = {
    "task too long": {"task": "t" * 129},
    "task empty": {"task": ""},
    "queue too long": {"serial": "q" * 129},
    "key too long": {"key": "k" * 513},
    "key empty": {"key": ""},
    "no attempts": {"max_attempts": 0},
    "priority too wide": {"priority": 2**31},
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_the_limits_forbid_is_refused_and_nothing_written(harness: StoreHarness, why: str) -> None:
    job = NewJob(**({"task": "t"} | REFUSED[why]))
    with pytest.raises(InvalidJob):
        await harness.store.jobs.enqueue(job)
    with pytest.raises(InvalidJob):
        await harness.store.jobs.enqueue_many([NewJob(task="fine"), job])
    assert list(await harness.everything()) == []


async def test_a_flag_given_twice_is_one(harness: StoreHarness) -> None:
    assert (await harness.add(flags=("b", "a", "b"))).flags in (("b", "a"), ("a", "b"))


async def test_ids_grow(harness: StoreHarness) -> None:
    ids = [(await harness.add()).id for _ in range(5)]
    assert ids == sorted(set(ids))


async def test_enqueue_many_returns_ids_in_the_order_of_the_jobs(harness: StoreHarness) -> None:
    ids = await harness.store.jobs.enqueue_many([NewJob(task=f"t{n}", priority=-n, payload=str(n)) for n in range(50)])
    jobs = [await harness.job(job_id) for job_id in ids]
    assert [(job.task, job.priority, payload_of(job.payload_text)) for job in jobs] == [
        (f"t{n}", -n, n) for n in range(50)
    ]
    assert ids == sorted(set(ids))


async def test_many_may_be_none(harness: StoreHarness) -> None:
    assert list(await harness.store.jobs.enqueue_many([])) == []


async def test_many_may_come_from_an_async_generator(harness: StoreHarness) -> None:
    async def jobs() -> AsyncIterator[NewJob]:
        for number in range(3):
            yield NewJob(task=f"t{number}", serial="q", flags=("f",), delay=60.0, max_attempts=2, max_resets=1)

    ids = await harness.store.jobs.enqueue_many(jobs())
    job = await harness.job(ids[2])
    assert (job.task, job.serial, job.flags, job.max_attempts, job.max_resets) == ("t2", "q", ("f",), 2, 1)
    assert job.run_at == harness.now + timedelta(seconds=60)


async def test_many_are_all_or_none(harness: StoreHarness) -> None:
    def jobs() -> Iterator[NewJob]:
        yield NewJob(task="a")
        yield NewJob(task="b", key="k")
        raise LookupError("the producer broke")

    with pytest.raises(LookupError):
        await harness.store.jobs.enqueue_many(jobs())
    assert list(await harness.everything()) == []
    assert (await harness.add(key="k")).revision == 0


async def test_many_from_an_async_generator_are_all_or_none(harness: StoreHarness) -> None:
    async def jobs() -> AsyncIterator[NewJob]:
        for number in range(2000):
            yield NewJob(task=f"t{number}")
        raise LookupError("the producer broke")

    with pytest.raises(LookupError):
        await harness.store.jobs.enqueue_many(jobs())
    assert list(await harness.everything()) == []


async def test_one_key_twice_among_many_is_refused_and_nothing_written(harness: StoreHarness) -> None:
    waiting = await harness.add(key="k", payload='{"n": 1}')
    jobs = [NewJob(task="a"), NewJob(task="b", key="k"), NewJob(task="c"), NewJob(task="d", key="k")]
    with pytest.raises(InvalidJob):
        await harness.store.jobs.enqueue_many(jobs)
    assert list(await harness.everything()) == [waiting]


async def test_keyed_ones_among_many_follow_the_rules_of_keys(harness: StoreHarness) -> None:
    waiting = await harness.add("old", key="waiting", payload="[1]")
    running = await harness.start("runs", key="running")
    failed = await harness.in_state(State.FAILED, key="failed")
    ids = await harness.store.jobs.enqueue_many(
        [
            NewJob(task="plain"),
            NewJob(task="new", key="waiting", payload="[2]"),
            NewJob(task="new", key="running"),
            NewJob(task="new", key="failed"),
            NewJob(task="new", key="fresh"),
        ]
    )
    assert (ids[1], ids[3]) == (waiting.id, failed.id)
    assert ids[2] != running.job_id
    assert len(set(ids)) == 5
    assert payload_of((await harness.job(waiting.id)).payload_text) == [1, 2]
    assert (await harness.job(running.job_id)).key is None
    assert (await harness.job(failed.id)).state is State.QUEUED


async def test_thousands_are_enqueued_in_one_call(harness: StoreHarness) -> None:
    ids = await harness.store.jobs.enqueue_many(NewJob(task="t", payload=f'{{"n": {n}}}') for n in range(3000))
    assert len(set(ids)) == 3000
    assert (await harness.store.inspect.counts())[State.QUEUED] == 3000


async def test_next_due_returns_the_seconds_until_the_first_waiting_job(harness: StoreHarness) -> None:
    assert await harness.store.next_due(None) is None
    await harness.add("a", delay=60.0)
    await harness.add("b", delay=90.0)
    assert await harness.store.next_due(None) == pytest.approx(60)
    assert await harness.store.next_due(("b", "c")) == pytest.approx(90)
    assert await harness.store.next_due(("c",)) is None
    await harness.pass_time(75)
    assert await harness.store.next_due(None) == 0


async def test_next_due_counts_retries_and_not_what_runs_or_has_ended(harness: StoreHarness) -> None:
    for state in (State.PROCESSING, State.FAILED, State.CANCELED, State.COMPLETED):
        await harness.in_state(state)
    assert await harness.store.next_due(None) is None
    await harness.in_state(State.ERRORED)
    assert await harness.store.next_due(None) == pytest.approx(60)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_that_may_delete_is_refused_to_producers(harness: StoreHarness, key: str | None) -> None:
    """Built-in tasks come from administrators and crontabs; and nothing else of the call is written."""
    job = NewJob(task=PURGE_TASK, key=key)
    for refused in (
        harness.store.jobs.enqueue(job),
        harness.store.jobs.add_jobs([NewJob(task="t"), job]),
        harness.store.jobs.enqueue_many([NewJob(task="t"), job]),
    ):
        with pytest.raises(InvalidJob, match="is built in"):
            await refused
    assert await harness.everything() == []
