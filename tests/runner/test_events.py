"""``WorkerEvents``: the events of each name, their number, and their listeners."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, NonRetryable
from stowhand.jobs.lifecycle import Cancel, Fail, Snooze
from stowhand.runner import Logger, Runner, WorkerEvents, make_worker_utils, run, run_once
from stowhand.runner.events import EVENT_RECORDS, TaskFailed
from tests.docs.pages import DOCS


class RecordedEvents(list[tuple[str, Any]]):
    """All events of an emitter, in order."""

    def __init__(self, events: WorkerEvents) -> None:
        super().__init__()
        on: Any = events.on
        for name in EVENT_RECORDS:
            on(name, lambda event, name=name: self.append((name, event)))

    @property
    def counts(self) -> Counter[str]:
        return Counter(name for name, _ in self)

    def of(self, name: str) -> list[Any]:
        return [event for one, event in self if one == name]

    def order(self, *prefixes: str) -> list[str]:
        return [name for name, _ in self if name.startswith(prefixes)]


async def add(url: str, *tasks: str, **details: Any) -> list[int]:
    async with await make_worker_utils(connection_string=url) as utils:
        await utils.migrate()
        return [(await utils.add_job(task, **details)).id for task in tasks]


async def drain(url: str, tasks: dict[str, Any], concurrency: int = 1, **options: Any) -> RecordedEvents:
    events = WorkerEvents()
    recorded = RecordedEvents(events)
    await run_once(connection_string=url, task_list=tasks, concurrency=concurrency, events=events, **options)
    return recorded


async def quick(payload: Any) -> None:
    """Ends at once."""


async def no(payload: Any) -> None:
    raise ValueError("no")


async def never(payload: Any) -> None:
    raise NonRetryable("never")


@pytest.mark.parametrize(("jobs", "concurrency"), [(5, 3), (1, 1), (0, 2)])
async def test_jobs_workers_and_pool_are_counted_as_the_original_does(url: str, jobs: int, concurrency: int) -> None:
    await add(url, *["quick"] * jobs)
    recorded = await drain(url, {"quick": quick}, concurrency)
    counts = recorded.counts
    assert {name: counts[name] for name in EVENT_RECORDS if not name.startswith(("worker:getJob", "pool:listen"))} == {
        "pool:create": 1,
        "pool:release": 1,
        "pool:gracefulShutdown": 0,
        "pool:gracefulShutdown:error": 0,
        "worker:create": concurrency,
        "worker:release": concurrency,
        "worker:stop": concurrency,
        "worker:fatalError": 0,
        "job:start": jobs,
        "job:success": jobs,
        "job:error": 0,
        "job:failed": 0,
        "job:complete": jobs,
        "gracefulShutdown": 0,
        "stop": 1,
    }
    assert recorded[0][0] == "pool:create"
    assert [name for name, _ in recorded[-2:]] == ["pool:release", "stop"]
    assert counts["worker:getJob:start"] >= 1
    assert counts["worker:getJob:empty"] >= 1


async def test_each_event_carries_the_record_the_worker_and_the_error(sqlite_url: str) -> None:
    (job_id,) = await add(sqlite_url, "no", max_attempts=1)
    recorded = await drain(sqlite_url, {"no": no})
    assert recorded.order("job:") == ["job:start", "job:error", "job:failed", "job:complete"]
    pool = recorded.of("pool:create")[0].worker_pool
    (created,) = recorded.of("worker:create")
    assert created.tasks == {"no": no}
    for name in ("job:start", "job:error", "job:failed", "job:complete"):
        (event,) = recorded.of(name)
        assert (event.job.id, event.job.task, event.job.attempts) == (job_id, "no", 1)
        assert event.worker is created.worker
    for name in ("job:error", "job:failed", "job:complete"):
        (event,) = recorded.of(name)
        assert type(event.error) is ValueError
    assert recorded.of("pool:release")[0].pool is pool
    assert [event.error for event in recorded.of("worker:stop")] == [None]


async def test_a_claim_emits_start_and_emits_empty_only_without_jobs(sqlite_url: str) -> None:
    await add(sqlite_url, "quick")
    recorded = await drain(sqlite_url, {"quick": quick})
    assert recorded.order("worker:getJob", "job:start")[:2] == ["worker:getJob:start", "job:start"]
    assert recorded.counts["worker:getJob:empty"] == recorded.counts["worker:getJob:start"] - 1


async def test_an_error_of_forbidden_flags_is_no_failed_claim(sqlite_url: str) -> None:
    calls: list[bool] = []

    def flags() -> list[str]:
        calls.append(True)
        return [] if len(calls) > 1 else 1 / 0  # type: ignore[return-value]

    await add(sqlite_url, "quick")
    recorded = await drain(sqlite_url, {"quick": quick}, forbidden_flags=flags)
    assert recorded.counts["job:success"] == 1
    assert not recorded.of("worker:getJob:error")


async def test_an_error_with_attempts_left_is_no_failure(sqlite_url: str) -> None:
    await add(sqlite_url, "no")
    assert (await drain(sqlite_url, {"no": no})).order("job:") == ["job:start", "job:error", "job:complete"]


@pytest.mark.parametrize(
    ("returned", "told", "kind"),
    [
        (Fail("so be it"), ["job:start", "job:error", "job:failed", "job:complete"], TaskFailed),
        (Cancel("not wanted"), ["job:start", "job:complete"], TaskFailed),
        (Snooze(60), ["job:start", "job:complete"], type(None)),
    ],
)
async def test_outcomes_without_an_exception(sqlite_url: str, returned: Any, told: list[str], kind: type) -> None:
    async def task(payload: Any) -> Any:
        return returned

    await add(sqlite_url, "task")
    recorded = await drain(sqlite_url, {"task": task})
    assert recorded.order("job:") == told
    assert type(recorded.of("job:complete")[0].error) is kind


async def test_a_timeout_is_reported_as_a_task_failed_error(sqlite_url: str) -> None:
    async def slow(payload: Any) -> None:
        await asyncio.Event().wait()

    await add(sqlite_url, "slow")
    recorded = await drain(sqlite_url, {"slow": slow}, timeout=0.05)
    (event,) = recorded.of("job:error")
    assert isinstance(event.error, TaskFailed)
    assert "timed out" in str(event.error)


async def test_a_pool_has_one_worker_for_each_running_job(sqlite_url: str) -> None:
    together = asyncio.Barrier(3)
    seen: list[tuple[Any, Any]] = []

    async def meet(payload: Any) -> None:
        await together.wait()

    await add(sqlite_url, *["meet"] * 6)
    events = WorkerEvents()
    events.on("job:start", lambda event: seen.append((event.worker, event.worker.active_job)))
    await run_once(connection_string=sqlite_url, task_list={"meet": meet}, concurrency=3, events=events)
    assert len({worker.worker_id for worker, _ in seen}) == 3
    assert sorted(job.id for _, job in seen) == [1, 2, 3, 4, 5, 6]
    assert all(worker.active_job is None for worker, _ in seen)


async def test_job_complete_is_emitted_only_after_the_settlement_is_written(sqlite_url: str) -> None:
    states: list[str] = []
    await add(sqlite_url, "quick")
    events = WorkerEvents()
    runner: Runner | None = None
    done = asyncio.Event()

    async def look(event: Any) -> None:
        assert runner is not None
        job = await runner._plan.store.jobs.get(event.job.id)
        states.append(job.state.value if job else "")
        done.set()

    events.on("job:complete", look)
    runner = await run(connection_string=sqlite_url, task_list={"quick": quick}, events=events, no_handle_signals=True)
    await done.wait()
    await runner.stop()
    assert states == ["completed"]


async def test_a_job_whose_settlement_failed_emits_no_complete(sqlite_url: str) -> None:
    """The job loses its lease while it runs: nothing is recorded, and only the start is emitted."""
    await add(sqlite_url, "steal")
    events = WorkerEvents()
    recorded = RecordedEvents(events)
    ended = asyncio.Event()

    async def steal(payload: Any) -> None:
        await runner._plan.store.admin.force_unlock_workers([runner._worker.id])
        runner._worker.stop()
        ended.set()

    runner = await run(connection_string=sqlite_url, task_list={"steal": steal}, events=events, no_handle_signals=True)
    await ended.wait()
    await runner.wait()
    assert recorded.order("job:") == ["job:start"]
    assert not runner._observer._attempts, "nor is it remembered"


async def test_a_returned_job_is_forgotten(sqlite_url: str) -> None:
    begun = asyncio.Event()

    async def stuck(payload: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    runner = await run(connection_string=sqlite_url, task_list={"stuck": stuck}, no_handle_signals=True, grace=0)
    recorded = RecordedEvents(runner.events)
    await runner.add_job("stuck")
    await begun.wait()
    await runner.stop()
    assert recorded.order("job:") == ["job:start"]
    assert not runner._observer._attempts


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
@pytest.mark.parametrize("name", ["pool:create", "worker:getJob:start", "job:start", "job:success", "stop"])
async def test_a_listener_that_raises_stops_no_job_and_no_other_listener(
    sqlite_url: str, name: Any, error: type[BaseException]
) -> None:
    await add(sqlite_url, "quick", "quick")
    events = WorkerEvents()
    lines: list[str] = []

    def broken(event: Any) -> None:
        raise error("a bad listener")

    async def broken_later(event: Any) -> None:
        raise RuntimeError("a bad listener, later")

    events.on(name, broken)
    events.on(name, broken_later)
    recorded = RecordedEvents(events)

    def keep(level: str, message: str, meta: object) -> None:
        lines.append(message)

    await run_once(
        connection_string=sqlite_url, task_list={"quick": quick}, events=events, logger=Logger(lambda scope: keep)
    )
    assert recorded.counts["job:complete"] == 2
    assert recorded.counts[name] >= 1
    assert f"A listener to {name!r} raised {error.__name__}: a bad listener" in lines
    assert f"A listener to {name!r} raised RuntimeError: a bad listener, later" in lines


async def test_a_listener_can_be_removed_and_can_be_for_one_event(sqlite_url: str) -> None:
    events = WorkerEvents()
    recorded: list[str] = []
    gone = lambda event: recorded.append("gone")  # noqa: E731
    once = lambda event: recorded.append("once")  # noqa: E731
    events.on("job:success", gone)
    events.off("job:success", gone)
    events.once("job:success", once)
    events.once("job:start", gone)
    events.off("job:start", gone)
    await add(sqlite_url, "quick", "quick")
    await run_once(connection_string=sqlite_url, task_list={"quick": quick}, events=events)
    assert recorded == ["once"]


async def test_asynchronous_listeners_have_ended_when_the_runner_has(sqlite_url: str) -> None:
    events = WorkerEvents()
    ended: list[str] = []

    async def slow(event: Any) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append("stop")

    events.on("stop", slow)
    runner = await run(connection_string=sqlite_url, task_list={"quick": quick}, events=events, no_handle_signals=True)
    close = runner._plan.store.close

    async def closing() -> None:
        ended.append("closing")
        await close()

    runner._plan.store.close = closing  # type: ignore[method-assign]
    await runner.stop()
    assert ended == ["stop", "closing"], "they may still use it"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    events: Any = WorkerEvents()
    with pytest.raises(ConfigurationError, match="no event 'job:sucess'; did you mean 'job:success'"):
        events.on("job:sucess", print)
    with pytest.raises(ConfigurationError):
        events.off("jobs", print)


async def test_a_listener_added_later_receives_only_later_events(sqlite_url: str) -> None:
    ran = asyncio.Event()
    runner = await run(connection_string=sqlite_url, task_list={"quick": quick}, no_handle_signals=True)
    runner.events.on("job:complete", lambda event: ran.set())
    await runner.add_job("quick")
    await ran.wait()
    await runner.stop()


async def test_one_emitter_serves_several_runs(sqlite_url: str) -> None:
    events = WorkerEvents()
    recorded = RecordedEvents(events)
    for _ in range(2):
        await add(sqlite_url, "quick")
        await run_once(connection_string=sqlite_url, task_list={"quick": quick}, events=events)
    assert recorded.counts["job:complete"] == recorded.counts["stop"] == 2


async def test_a_listener_can_shut_down_the_pool(sqlite_url: str) -> None:
    events = WorkerEvents()
    recorded = RecordedEvents(events)
    events.on("pool:create", lambda event: asyncio.get_running_loop().call_soon(event.pool.graceful_shutdown, "enough"))
    runner = await run(connection_string=sqlite_url, task_list={"quick": quick}, no_handle_signals=True, events=events)
    await runner.wait()
    assert [event.message for event in recorded.of("pool:gracefulShutdown")] == ["enough"]
    assert recorded.counts["worker:stop"] == 4


async def test_stopping_emits_a_graceful_shutdown_and_then_the_end(sqlite_url: str) -> None:
    events = WorkerEvents()
    recorded = RecordedEvents(events)
    runner = await run(
        connection_string=sqlite_url, task_list={"quick": quick}, no_handle_signals=True, events=events, concurrency=1
    )
    await runner.stop()
    assert recorded.order("pool", "worker:release", "worker:stop", "stop") == [
        "pool:create", "pool:gracefulShutdown", "worker:release", "worker:stop", "pool:release", "stop",
    ]  # fmt: skip


async def test_listening_is_reported_with_its_connection_and_again_after_a_disconnect(postgres_url: str) -> None:
    events = WorkerEvents()
    recorded = RecordedEvents(events)
    listens = asyncio.Semaphore(0)
    events.on("pool:listen:success", lambda event: listens.release())
    runner = await run(
        connection_string=postgres_url, task_list={"quick": quick}, no_handle_signals=True, events=events,
        poll_interval=0.2,
    )  # fmt: skip
    await listens.acquire()
    client = recorded.of("pool:listen:success")[0].client
    store: Any = runner._plan.store
    async with store.connections.connection() as connection:
        await connection.execute("select pg_terminate_backend(%s)", [client.info.backend_pid])
    await listens.acquire()
    await runner.stop()
    assert recorded.order("pool:listen")[:5] == [
        "pool:listen:connecting", "pool:listen:success",
        "pool:listen:error", "pool:listen:connecting", "pool:listen:success",
    ]  # fmt: skip
    assert isinstance(recorded.of("pool:listen:error")[0].error, Exception)


async def test_a_failed_claim_is_reported_and_retried(postgres_url: str) -> None:
    events = WorkerEvents()
    erred = asyncio.Event()
    seen: list[BaseException] = []

    def note(event: Any) -> None:
        seen.append(event.error)
        erred.set()

    events.on("worker:getJob:error", note)
    runner = await run(
        connection_string=postgres_url, task_list={"quick": quick}, no_handle_signals=True, events=events
    )
    store: Any = runner._plan.store
    async with store.connections.connection() as connection:
        await connection.execute("alter schema stowhand rename to hidden")
        await connection.commit()
        runner._worker.wake()
        await erred.wait()
        await connection.execute("alter schema hidden rename to stowhand")
    await runner.stop()
    assert "stowhand" in str(seen[0])


def test_the_reference_page_has_every_event_with_its_keys() -> None:
    page = (DOCS / "reference" / "runner.md").read_text()
    for name, payload in EVENT_RECORDS.items():
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` ")), None)
        assert row is not None, name
        for key in payload.__struct_fields__:
            assert f"`{key}`" in row, (name, key)
