"""A worker whose handlers run in their record's transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
import pytest

from stowhand.clock import stopwatch
from stowhand.errors import StoreUnreachable
from stowhand.events import Event, Events, JobEnded, JobLost, JobsReturned, JobStarted
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Verdict
from stowhand.table import TableStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.postgres.attempts import WRITE, AttemptHarness, opened, options

Scene = Callable[[AttemptHarness], Awaitable[None]]
T = TypeVar("T")


def play(run: Run, url: str, scene: Scene, **options: Any) -> None:
    async def go() -> None:
        async with opened(url, **({"stalled_max_age": 60, "heartbeat_interval": 0.3} | options)) as harness:
            await harness.execute("insert into jobs (note) values ('n')")
            await scene(harness)

    run(go())


@asynccontextmanager
async def at_work(harness: AttemptHarness, handle: Any, **given: Any) -> AsyncIterator[list[Event]]:
    said, events = list[Event](), Events()
    for kind in (JobStarted, JobEnded, JobLost, JobsReturned):
        events.on(kind, said.append)
    worker = Worker(harness.store, handle, WorkerOptions(poll_interval=0.05, **given), events=events)
    running = asyncio.ensure_future(worker.run())
    try:
        yield said
    finally:
        worker.stop(now=True)
        await running


async def until(reached: Callable[[], Awaitable[object]], seconds: float = 20.0) -> None:
    end = stopwatch() + seconds
    while not await reached():
        assert stopwatch() < end, "it did not come to that"
        await asyncio.sleep(0.02)


async def writes(ctx: Attempt[Any], record: Any) -> None:
    await ctx.connection.execute(WRITE, (record["id"], "done"))


def stands(harness: AttemptHarness, state: str) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return bool((await harness.row(1))["state"] == state)

    return reached


def test_changes_of_a_handler_are_committed_with_its_record(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with at_work(harness, writes) as said:
            await until(stands(harness, "completed"))
        assert await harness.effects() == ["done"]
        (ended,) = [event for event in said if isinstance(event, JobEnded)]
        assert ended.outcome is AttemptOutcome.OK

    play(run, shared_url, scene)


def test_changes_of_a_failed_attempt_are_undone_and_its_error_recorded(run: Run, shared_url: str) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await writes(ctx, record)
        raise ValueError("no")

    async def scene(harness: AttemptHarness) -> None:
        async with at_work(harness, handle):
            await until(stands(harness, "errored"))
        assert await harness.effects() == []
        assert (await harness.row(1))["num_failures"] == 1

    play(run, shared_url, scene, retry_after=60)


def test_a_timeout_during_a_query_is_undone_and_recorded(run: Run, shared_url: str) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await writes(ctx, record)
        await ctx.connection.execute("select pg_sleep(30)")

    async def scene(harness: AttemptHarness) -> None:
        async with at_work(harness, handle, timeout=0.2):
            await until(stands(harness, "errored"))
        assert await harness.effects() == []
        assert "longer than 0.2 s" in (await harness.row(1))["failure_message"]

    play(run, shared_url, scene, retry_after=60)


def test_a_stopping_worker_undoes_running_attempts_and_returns_their_records(run: Run, shared_url: str) -> None:
    written = asyncio.Event()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await writes(ctx, record)
        written.set()
        await asyncio.sleep(30)

    async def scene(harness: AttemptHarness) -> None:
        async with at_work(harness, handle) as said:
            await written.wait()
        row = await harness.row(1)
        assert (row["state"], row["num_failures"], row["num_resets"]) == ("queued", 0, 0)
        assert await harness.effects() == []
        assert not any(isinstance(event, JobLost) for event in said)

    play(run, shared_url, scene)


def test_the_lock_protects_a_long_attempt_without_a_heartbeat(run: Run, shared_url: str) -> None:
    pids: list[int] = []
    over = asyncio.Event()

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        pids.append(ctx.connection.info.backend_pid)
        await over.wait()
        await writes(ctx, record)

    async def scene(harness: AttemptHarness) -> None:
        async def spoke() -> object:
            """When the server last heard from the transaction."""
            rows = await harness.execute("select state_change from pg_stat_activity where pid = any(%s)", [pids])
            return rows[0]["state_change"] if rows else None

        in_an_hour = TableStore(harness.url, options(), _pinned=lambda: datetime.now(UTC) + timedelta(hours=1))
        async with at_work(harness, handle) as said, in_an_hour as later:
            await until(spoke)
            first = await spoke()
            # It says something, so that it is not taken for abandoned.
            await until(lambda: differs(spoke, first))
            heartbeats = later.heartbeats()
            assert not await heartbeats.reset_stalled(0.0)
            await heartbeats.close()
            over.set()
            await until(stands(harness, "completed"))
            assert not any(isinstance(event, JobLost) for event in said)
        assert await harness.effects() == ["done"]

    play(run, shared_url, scene, stalled_max_age=6)


async def differs(tell: Callable[[], Awaitable[object]], before: object) -> bool:
    now = await tell()
    return now is not None and now != before


def test_a_terminated_transaction_is_an_error_and_leaves_no_changes(run: Run, shared_url: str) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await writes(ctx, record)
        async with await psycopg.AsyncConnection.connect(shared_url, autocommit=True) as other:
            await other.execute("select pg_terminate_backend(%s)", (ctx.connection.info.backend_pid,))
        await asyncio.sleep(0.05)

    async def scene(harness: AttemptHarness) -> None:
        async with at_work(harness, handle):
            await until(stands(harness, "errored"))
        assert await harness.effects() == []

    play(run, shared_url, scene, retry_after=60)


def test_a_requeue_keeps_the_changes_and_runs_again_later(run: Run, shared_url: str) -> None:
    async def handle(ctx: Attempt[Any], record: Any) -> None:
        await writes(ctx, record)
        await ctx.store.requeue(record, 3600)

    async def scene(harness: AttemptHarness) -> None:
        async with at_work(harness, handle) as said:
            await until(lambda: asyncio.sleep(0, any(isinstance(event, JobEnded) for event in said)))
        row = await harness.row(1)
        assert (row["state"], row["num_failures"], await harness.effects()) == ("queued", 0, ["done"])

    play(run, shared_url, scene)


@asynccontextmanager
async def few_connections(url: str) -> AsyncIterator[AttemptHarness]:
    """As somebody who may have six, three of which are for transactions."""
    async with opened(url) as harness:
        await harness.execute("drop role if exists few")
        await harness.execute("create role few login connection limit 6")
        await harness.execute("grant usage on schema public to few")
        await harness.execute("grant all on all tables in schema public to few")
        await harness.execute("grant all on all sequences in schema public to few")
        few = url.replace("postgres@", "few@")
        async with TableStore(few, options()) as store:
            yield AttemptHarness(few, store, harness.other)
        await harness.execute("drop owned by few; drop role few")


def test_fewer_connections_than_attempts_only_slow_it_down(run: Run, shared_url: str) -> None:
    """Transactions must not take the connection away on which those that got none are given back."""

    async def go() -> None:
        async with few_connections(shared_url) as few:
            handled = asyncio.Event()

            async def handle(_ctx: Attempt[Any], _record: Any) -> None:
                await handled.wait()

            await few.execute("insert into jobs (note) select 'n' from generate_series(1, 5)")
            async with at_work(few, handle, concurrency=6):
                await until(lambda: few.execute("select id from jobs where process_after is not null"))
                handled.set()
                await until(lambda: none_left(few))

    run(go())


def test_idle_connections_are_closed_if_there_are_too_few(run: Run, shared_url: str) -> None:
    async def go() -> None:
        async with few_connections(shared_url) as few:
            async with few.attempt(), few.attempt(), few.attempt():
                pass
            await few.execute("update jobs set state = 'failed'")
            claim = await few.claim()
            backend: Any = few.store._backend
            await backend._settler.close()
            async with await patiently(lambda: psycopg.AsyncConnection.connect(few.url)):
                with pytest.raises(StoreUnreachable):
                    await few.run(writes_one, claim)
                assert (await patiently(lambda: few.run(writes_one, claim)))[0] is Verdict.SETTLED

    run(go())


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """The server counts a connection for some moments after it was closed."""
    for _ in range(100):
        with contextlib.suppress(StoreUnreachable, psycopg.OperationalError):
            return await attempt()
        await asyncio.sleep(0.05)
    raise AssertionError("the idle connections did not make way")


async def writes_one(attempt: Attempt[Any]) -> None:
    await attempt.connection.execute(WRITE, (1, "done"))


async def none_left(harness: AttemptHarness) -> bool:
    return not await harness.execute("select id from jobs where state <> 'completed'")
