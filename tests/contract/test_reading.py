"""A store that is only read: every question is answered, nothing is written, and no answer takes for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from stowhand.errors import SchemaMissing, StoreRefused, StoreTooSlow
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.operator import Ages, WorkerDescription, WorkerList
from stowhand.protocols.queue_store import QueueStore, Reschedule
from stowhand.protocols.search import Search
from stowhand.protocols.store import StoreOptions
from tests.contract.store_harness import STATES, StoreHarness
from tests.support.questions import QUESTIONS

STORES = ("sqlite", "postgres")

ACTIONS: dict[str, Callable[[QueueStore], Awaitable[object]]] = {
    "enqueue": lambda store: store.jobs.enqueue(NewJob(task="t")),
    "enqueue many": lambda store: store.jobs.enqueue_many([NewJob(task="t")] * 3),
    "retry": lambda store: store.admin.retry(5),
    "cancel": lambda store: store.admin.cancel(1),
    "remove": lambda store: store.admin.remove(1),
    "complete": lambda store: store.admin.complete_jobs([1]),
    "fail": lambda store: store.admin.permanently_fail_jobs([1]),
    "reschedule": lambda store: store.admin.reschedule_jobs([1], Reschedule(priority=1)),
    "unlock": lambda store: store.admin.force_unlock_workers(["w1"]),
    "pause": lambda store: store.operate.pause_serial("q"),
    "pause task": lambda store: store.operate.pause_task("t"),
    "set limit": lambda store: store.operate.set_limit("t", LimitValues(concurrency=1)),
    "reset limit": lambda store: store.operate.reset_limit("t"),
    "purge": lambda store: store.operate.purge(Ages(failed=0.0)),
    "install": lambda store: store.schema.install(),
}


@asynccontextmanager
async def looking(harness: StoreHarness, read_timeout: float = 60.0) -> AsyncIterator[QueueStore]:
    """One more store on the same jobs, which only looks."""
    options = StoreOptions(pinned=harness.clock.now, read_only=True, read_timeout=read_timeout)
    store = harness.backend.store(options)
    try:
        yield store
    finally:
        await store.close()


async def refused(action: Awaitable[object]) -> bool:
    """In words that say why."""
    try:
        await action
    except StoreRefused as error:
        return "opened for reading only (read_only)" in str(error)
    return False


async def populate(harness: StoreHarness) -> None:
    """A job in each state, and a worker."""
    for state in STATES:
        await harness.in_state(state, serial=None if state is State.PROCESSING else f"q{state}")
    assert isinstance(harness.heartbeats, WorkerList)
    await harness.heartbeats.worker_seen(
        WorkerDescription("w1", "h", 1, "1", ("a",), 4, app_version="2.0"),
        TaskDeclarations({"t": "default"}, {"t": TaskLimits(concurrency="t")}, {"t": LimitValues(concurrency=9)}),
    )


async def test_every_question_is_answered_as_to_everybody(harness: StoreHarness) -> None:
    await populate(harness)
    now = harness.now
    async with looking(harness) as store:
        await store.open()
        for name, question in QUESTIONS.items():
            assert await question(store) == await question(harness.store), name
        assert list(await store.inspect.throughput(now - timedelta(hours=1), now)) == []


async def test_nothing_can_be_written(harness: StoreHarness) -> None:
    await populate(harness)
    before = [await harness.image(job.id) for job in await harness.everything()]
    async with looking(harness) as store:
        await store.open()
        for name, action in ACTIONS.items():
            assert await refused(action(store)), name
        assert len((await store.inspect.search(Search())).jobs) == len(before), "it goes on to look"
    assert [await harness.image(job.id) for job in await harness.everything()] == before
    assert list(await harness.store.inspect.serials()) == list(await harness.store.inspect.serials())
    assert (await harness.store.inspect.pauses()).names() == []


async def test_a_place_without_a_schema_is_left_without_one(bare_harness: StoreHarness) -> None:
    async with looking(bare_harness) as store:
        with pytest.raises(SchemaMissing):
            await store.open()


async def test_a_question_that_takes_too_long_ends_in_words(harness: StoreHarness) -> None:
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(20_000))
    async with looking(harness, read_timeout=0.001) as store:
        with pytest.raises(StoreTooSlow, match=r"no answer within 0\.001 s"):
            await store.inspect.figures()
    async with looking(harness) as store:
        assert (await store.inspect.counts())[State.QUEUED] == 20_000


async def test_two_look_at_once(harness: StoreHarness) -> None:
    await populate(harness)
    async with looking(harness) as one, looking(harness) as other:
        answers = await asyncio.gather(*(question(store) for store in (one, other) for question in QUESTIONS.values()))
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
