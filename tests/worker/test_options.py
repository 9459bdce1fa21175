"""What a worker is made of: options, store, handler. What does not fit is refused with the fix."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.sizes import format_size, parse_size
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Terms
from stowhand.retry import constant
from stowhand.table import TableOptions, TableStore
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.resetter import Resetter
from stowhand.worker.worker import Worker


async def nothing(ctx: object, record: object) -> None: ...


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tasks": "index"}, "tasks: got a str; use a list of names"),
        ({"tasks": 7}, "tasks: got an int; use a list of names"),
        ({"tasks": ["index", 7]}, "tasks: got an int; use a string"),
        ({"backoff": 5}, "backoff: got an int; use a function"),
        ({"once": "no"}, "once: got a str; use True or False"),
        ({"poll_interval": 0}, "poll_interval: got 0, must be more than 0"),
        ({"poll_interval": timedelta(0)}, "poll_interval: got 0.0"),
        ({"timeout": timedelta(seconds=-1)}, "timeout: got -1.0"),
        ({"max_age": "long"}, "max_age: 'long' is not a duration; write for example 250ms"),
        ({"max_jobs": timedelta(1)}, "max_jobs: got a timedelta; use a whole number"),
        ({"max_memory": "512 monkeys"}, "max_memory: 'monkeys' is not a unit of memory; available: GiB, GB, MiB"),
        ({"max_memory": "much"}, "max_memory: 'much' is not a size; write for example 512MB or 1GiB"),
        ({"max_memory": 512}, "max_memory: got 512 bytes, must be at least 16MiB; write for example 512MB"),
        ({"max_memory": True}, "max_memory: got a bool; use bytes"),
        ({"lease": 3.0, "heartbeat_interval": 2.0}, "three beats"),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        WorkerOptions(**given)


def test_every_duration_may_be_a_timedelta() -> None:
    names = ("lease", "poll_interval", "heartbeat_interval", "timeout", "sweep_interval", "grace")
    options: dict[str, Any] = dict.fromkeys((*names, "max_age"), timedelta(minutes=1))
    worker = WorkerOptions(**(options | {"lease": timedelta(hours=1)}))
    assert (worker.lease, worker.max_age) == (3600.0, 60.0)
    assert {getattr(worker, name) for name in names[1:]} == {60.0}


@pytest.mark.parametrize(
    ("given", "size"),
    [("512MB", 512_000_000), ("1GiB", 2**30), ("1.5 gib", 3 * 2**29), ("20000 kB", 20_000_000), (2**25, 2**25)],
)
def test_memory_may_be_a_phrase(given: Any, size: int) -> None:
    worker = WorkerOptions(max_memory=given)
    assert worker.max_memory == size
    assert parse_size(format_size(size)) == size


def test_names_of_tasks_may_be_any_list() -> None:
    assert WorkerOptions(tasks=["a", "b"]).tasks == ("a", "b")  # type: ignore[arg-type]


def test_beats_are_measured_by_the_lease_that_the_store_lays_down() -> None:
    rare = WorkerOptions(heartbeat_interval=20)
    assert rare.under(Terms(lease=60.0)).every_beat == 20
    with pytest.raises(ConfigurationError, match=r"stalled_max_age \(50 s\)"):
        rare.under(Terms(lease=50.0))
    with pytest.raises(ConfigurationError, match=r"lease \(30 s\) must last at least three beats"):
        Worker(MemoryStore(FakeClock()), nothing, rare)


@pytest.mark.parametrize("store", [None, "postgresql://localhost/db", MemoryStore])
@pytest.mark.parametrize("make", [lambda store: Worker(store, nothing), Resetter])
def test_what_is_no_store_is_refused(store: Any, make: Any) -> None:
    with pytest.raises(ConfigurationError, match="use a store: open_store"):
        make(store)


@pytest.mark.parametrize("wrong", [{"concurrency": 4}, 7])
def test_options_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"use WorkerOptions\(…\)"):
        Worker(MemoryStore(FakeClock()), nothing, wrong)
    with pytest.raises(ConfigurationError, match=r"use ResetterOptions\(…\)"):
        Resetter(MemoryStore(FakeClock()), wrong)


async def plainly(ctx: Attempt[Job], record: Job) -> None: ...


def test_a_plain_handler_is_refused_when_the_worker_is_made() -> None:
    def plain(ctx: Attempt[Job], record: Job) -> None: ...

    class WithHook:
        async def handle(self, ctx: Attempt[Job], record: Job) -> None: ...

        def pre_handle(self, ctx: Attempt[Job], record: Job) -> None: ...

    def handing_on(ctx: Attempt[Job], record: Job) -> Awaitable[None]:
        return plainly(ctx, record)

    for refused, name in ((plain, "handle"), (WithHook(), "pre_handle")):
        with pytest.raises(ConfigurationError, match=f"its {name} is a plain def"):
            Worker(MemoryStore(), refused)  # type: ignore[arg-type]
    Worker(MemoryStore(), handing_on)
    Worker(MemoryStore(), lambda ctx, record: plainly(ctx, record))


def test_a_plain_handler_in_a_partial_or_an_object_is_refused_as_well() -> None:
    def plain(data: str, ctx: Attempt[Job], record: Job) -> None: ...

    async def awaited(data: str, ctx: Attempt[Job], record: Job) -> None: ...

    class Plain:
        def __call__(self, ctx: Attempt[Job], record: Job) -> None: ...

    class Awaited:
        async def __call__(self, ctx: Attempt[Job], record: Job) -> None: ...

    class HandingOn:
        def __call__(self, *given: Any) -> Any:
            return plainly(*given)

    refused: tuple[Any, ...] = (partial(plain, "data"), partial(partial(plain), "data"), Plain(), partial(Plain()))
    for handler in refused:
        with pytest.raises(ConfigurationError, match="its handle is a plain def"):
            Worker(MemoryStore(), handler)
    for handler in (partial(awaited, "data"), Awaited(), partial(Awaited()), HandingOn()):
        Worker(MemoryStore(), handler)


def test_a_backoff_of_the_worker_s_is_refused_where_the_store_has_its_own() -> None:
    store = MemoryStore()
    store.terms = Terms(lease=30.0, backoff=constant(60.0))
    Worker(store, plainly)
    with pytest.raises(ConfigurationError, match="retry_after"):
        Worker(store, plainly, WorkerOptions(backoff=constant(5.0)))


async def works_once(events: Events | None) -> None:
    async def speaking(ctx: Attempt[Job], record: Job) -> None:
        ctx.logger.info("hello from the handler")

    store = MemoryStore()
    await store.jobs.enqueue(NewJob(task="t"))
    await Worker(store, speaking, WorkerOptions(once=True), events=events).run()


async def test_a_worker_without_listeners_writes_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "stowhand")
    await works_once(None)
    assert "hello from the handler" in caplog.text
    assert "Completed task 1 (t) with success" in caplog.text


async def test_a_worker_with_events_of_its_own_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "stowhand")
    await works_once(Events())
    assert caplog.text == ""


@pytest.mark.parametrize("lease", [0.1, "500ms", timedelta(milliseconds=999)])
def test_a_lease_is_a_second_at_least_unless_the_store_lays_it_down(lease: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"lease: got .*, must be at least 1 s"):
        WorkerOptions(lease=lease)
    assert WorkerOptions().under(Terms(lease=0.5)).lease == 0.5


def test_durations_of_a_worker_may_be_phrases() -> None:
    options = WorkerOptions(lease="1m", grace="90s", poll_interval="250ms", timeout="1h")  # type: ignore[arg-type]
    assert (options.lease, options.grace, options.poll_interval, options.timeout) == (60.0, 90.0, 0.25, 3600.0)


@pytest.mark.parametrize("given", [{"queues": ("mail",)}, {"exclude_queues": ("mail",)}])
def test_queues_of_a_store_without_queues_are_refused(given: dict[str, Any]) -> None:
    store = TableStore("postgresql:///nowhere", TableOptions(name="jobs", table_name="jobs"))
    with pytest.raises(ConfigurationError, match="this store has no queues"):
        Worker(store, nothing, WorkerOptions(**given))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queues": ()}, "queues: empty"),
        ({"queues": ("mail",), "exclude_queues": ("mail",)}, "queues, exclude_queues: every queue is excluded"),
    ],
)
def test_a_worker_that_would_claim_from_no_queue_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        WorkerOptions(**given)
