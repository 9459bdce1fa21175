"""Transactional handlers: what they do is committed with their record's state, or nobody ever sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from stowhand.errors import LeaseLost, LogRefused, NonRetryable, StoreUnreachable
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import Cancel, Complete, Outcome, Retry
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Verdict
from stowhand.stores.postgres.table import held_transaction
from tests.conftest import Run
from tests.stores.table.postgres.attempts import WRITE, AttemptHarness, leaves_a_pipeline, opened, write
from tests.support.pgbouncer import PgBouncer, find_pgbouncer

Scene = Callable[[AttemptHarness], Awaitable[None]]


def play(run: Run, url: str, scene: Scene, **options: Any) -> None:
    async def go() -> None:
        async with opened(url, **options) as harness:
            await scene(harness)

    run(go())


def test_the_changes_of_a_handler_and_the_state_become_visible_together(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with harness.attempt() as attempt:
            await write("done")(attempt)
            assert (await harness.effects(), (await harness.row(1))["state"]) == ([], "processing")
            assert await harness.settle(attempt, Complete()) is Verdict.SETTLED
        row = await harness.row(1)
        assert (await harness.effects(), row["state"], row["num_failures"]) == (["done"], "completed", 0)
        assert row["finished_at"] >= row["started_at"]

    play(run, shared_url, scene)


def test_an_unsuccessful_attempt_makes_no_observable_change_but_its_records(run: Run, shared_url: str) -> None:
    cases: list[tuple[Exception, bool, str, int]] = [
        (Retry("no luck"), False, "errored", 1),
        (Retry("no luck"), True, "errored", 1),
        (NonRetryable("no luck"), True, "failed", 1),
        (Cancel("no luck"), False, "canceled", 0),
        (Cancel("no luck"), True, "canceled", 0),
        (ValueError("no luck"), True, "errored", 1),
    ]

    async def scene(harness: AttemptHarness) -> None:
        for outcome, raises, state, failures in cases:

            async def work(attempt: Attempt[Any], outcome: Exception = outcome, raises: bool = raises) -> object:
                await write("half")(attempt)
                await attempt.connection.execute("update jobs set note = 'changed'")
                if raises:
                    raise outcome
                return outcome

            verdict, row = await harness.run(work)
            assert (verdict, row["state"], row["num_failures"]) == (Verdict.SETTLED, state, failures)
            assert (await harness.effects(), row["note"]) == ([], "n")
            assert "no luck" in row["failure_message"]
            await harness.execute("delete from jobs")

    play(run, shared_url, scene)


def test_a_record_that_returns_to_queued_keeps_the_changes_of_its_handler(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> object:
        await write("a part")(attempt)
        await attempt.store.requeue(attempt.lease.job_id, 3600)
        return Complete()

    async def scene(harness: AttemptHarness) -> None:
        verdict, row = await harness.run(work)
        assert (verdict, row["state"], row["num_failures"]) == (Verdict.SETTLED, "queued", 0)
        assert await harness.effects() == ["a part"]
        assert row["process_after"] > datetime.now(UTC)

    play(run, shared_url, scene)


def test_a_rollback_leaves_the_record_as_it_was_claimed(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        claim = await harness.claim()
        before = await harness.row(1)
        async with harness.attempt(claim) as attempt:
            await write("half")(attempt)
        assert (await harness.effects(), await harness.row(1)) == ([], before)
        assert not await harness.heartbeats.release([claim.lease])
        assert (await harness.row(1))["state"] == "queued"

    play(run, shared_url, scene)


def test_an_attempt_of_a_lost_record_does_not_begin(run: Run, shared_url: str) -> None:
    changes = (
        "update jobs set state = 'queued'",
        "update jobs set worker_hostname = 'w-1/6f1c9d5e-0000-4000-8000-000000000000'",
        "update jobs set worker_hostname = 'theirs'",
        "delete from jobs",
    )

    async def scene(harness: AttemptHarness) -> None:
        for change in changes:
            claim = await harness.claim()
            await harness.execute(change)
            before = await harness.execute("select * from jobs")
            with pytest.raises(LeaseLost):
                async with harness.attempt(claim):
                    pytest.fail("begun")
            assert await harness.execute("select * from jobs") == before
            await harness.execute("delete from jobs")

    play(run, shared_url, scene)


def test_a_cancellation_request_before_the_handler_cancels_the_record(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        claim = await harness.claim()
        await harness.execute("update jobs set cancel = true")
        with pytest.raises(LeaseLost, match="cancellation of record"):
            async with harness.attempt(claim):
                pytest.fail("begun")
        row = await harness.row(1)
        assert (row["state"], row["num_failures"], row["finished_at"] is None) == ("canceled", 0, False)

    play(run, shared_url, scene)


def test_cancelling_a_running_record_waits_for_its_end(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with harness.attempt() as attempt:
            request = asyncio.create_task(harness.execute("update jobs set cancel = true"))
            await asyncio.wait([request], timeout=0.1)
            assert not request.done()
            await harness.settle(attempt, Retry("again"))
            await request
        assert (await harness.row(1))["state"] == "errored"
        await harness.heartbeats.maintain()
        assert (await harness.row(1))["state"] == "canceled"

    play(run, shared_url, scene)


def test_a_locked_record_is_waited_for_within_the_timeout(
    run: Run, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(harness: AttemptHarness) -> None:
        claim = await harness.claim()
        async with await psycopg.AsyncConnection.connect(shared_url) as application:
            await application.execute("select from jobs for update")
            with monkeypatch.context() as patience:
                patience.setattr(held_transaction, "LOCK_TIMEOUT_SECONDS", 0.1)
                with pytest.raises(StoreUnreachable, match="lock"):
                    async with harness.attempt(claim):
                        pytest.fail("begun")
            beginning = asyncio.create_task(harness.run(write("late"), claim))
            await asyncio.wait([beginning], timeout=0.1)
            assert not beginning.done()
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            beginning = asyncio.create_task(harness.run(write("late"), claim))
            await asyncio.wait([beginning], timeout=0.05)
            await application.rollback()
            assert (await beginning)[0] is Verdict.SETTLED
        assert await harness.effects() == ["late"]

    play(run, shared_url, scene)


def test_the_lock_shows_that_the_worker_is_alive(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        heartbeats = harness.heartbeats
        claim = await harness.claim()
        await harness.execute("update jobs set last_heartbeat_at = now() - interval '1 day'")
        async with harness.attempt(claim):
            pulse = await heartbeats.beat([claim.lease], 30.0)
            assert pulse.busy == {(1, claim.lease.token)}
            assert not await heartbeats.reset_stalled(0.0)
        (reset,) = await heartbeats.reset_stalled(0.0)
        assert (reset.job_id, reset.state) == (1, State.QUEUED)

    play(run, shared_url, scene)


def test_closing_a_store_releases_open_transactions(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with harness.attempt() as attempt:
            await write("half")(attempt)
            await harness.store.close()
            assert await harness.execute("select id from jobs for update nowait") == [{"id": 1}]
            with pytest.raises(psycopg.OperationalError, match="closed"):
                await write("more")(attempt)
        assert await harness.effects() == []

    play(run, shared_url, scene)


def test_rows_that_refer_to_the_record_may_be_written_meanwhile(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        await harness.execute("create table comments (job bigint references jobs)")
        async with harness.attempt() as attempt:
            async with asyncio.timeout(20):
                await harness.execute("insert into comments values (1)")
            await harness.settle(attempt, Complete())

    play(run, shared_url, scene)


def test_logs_are_written_at_the_end_however_it_ends(run: Run, shared_url: str) -> None:
    first = ExecutionLogEntry(key="step", start_time=datetime(2026, 1, 1, tzinfo=UTC))
    last = ExecutionLogEntry(key="step", start_time=first.start_time, exit_code=3, out="bad")

    async def work(attempt: Attempt[Any]) -> None:
        assert await attempt.store.add_execution_log_entry(first) == 1
        assert await attempt.store.add_execution_log_entry(first) == 2
        with pytest.raises(LogRefused):
            await attempt.store.update_execution_log_entry(3, last)
        await attempt.store.update_execution_log_entry(1, last)
        if attempt.lease.job_id == 1:
            raise ValueError("failed")

    async def scene(harness: AttemptHarness) -> None:
        for job_id, state in ((1, "errored"), (2, "completed")):
            _, row = await harness.run(work)
            assert (row["id"], row["state"], len(row["execution_logs"])) == (job_id, state, 2)
            assert row["execution_logs"][0]["exitCode"] == 3
            await harness.execute("update jobs set state = 'failed' where state = 'errored'")

    play(run, shared_url, scene)


def test_the_store_of_an_attempt_works_in_its_transaction(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        await attempt.connection.execute("insert into jobs (state) values ('errored'), ('completed')")
        assert await attempt.store.count_by_state("errored") == 1
        assert await attempt.store.exists("completed")
        with pytest.raises(Exception, match="no_such_column"):
            await attempt.store.exists("queued", conditions=[("no_such_column")])
        await attempt.store.requeue(2, 60)
        raise ValueError("undo it")

    async def scene(harness: AttemptHarness) -> None:
        claim = await harness.claim(rows=2)
        before = await harness.row(2)
        _, row = await harness.run(work, claim)
        assert (row["state"], "undo it" in row["failure_message"]) == ("errored", True)
        assert await harness.row(2) == before
        assert len(await harness.execute("select id from jobs")) == 2

    play(run, shared_url, scene)


LEFT_BEHIND = """
    set search_path = nowhere; prepare theirs as select 1; listen theirs; create temp table theirs ();
    select pg_advisory_lock(7); declare theirs cursor with hold for select 1
"""
SESSION = """
    select pg_backend_pid(), current_setting('search_path'), current_setting('lock_timeout'),
      (select count(*) from pg_prepared_statements), (select count(*) from pg_listening_channels()),
      to_regclass('pg_temp.theirs'), (select count(*) from pg_cursors where name = 'theirs'),
      (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
"""


@pytest.mark.parametrize("outcome", [Complete(), Retry("no luck")])
def test_session_state_of_a_handler_does_not_reach_the_next_one(run: Run, shared_url: str, outcome: Outcome) -> None:
    seen: list[tuple[object, ...]] = []

    async def work(attempt: Attempt[Any]) -> Outcome:
        cursor = await attempt.connection.execute(SESSION)
        seen.append(await cursor.fetchone())
        await attempt.connection.execute(LEFT_BEHIND)
        return outcome

    async def scene(harness: AttemptHarness) -> None:
        for _ in range(2):
            verdict, _ = await harness.run(work)
            assert verdict is Verdict.SETTLED
        (first, second) = seen
        assert first == second  # one connection served both
        assert first[1:] == ('"$user", public', "0", 0, 0, None, 0, 0)

    play(run, shared_url, scene)


def test_behind_a_pooler_the_session_of_the_handler_is_reset(run: Run, shared_url: str) -> None:
    """Which is another one for each transaction, and serves others in between."""
    program = find_pgbouncer()
    if isinstance(program, str):
        pytest.skip(f"PgBouncer: {program}")

    async def work(attempt: Attempt[Any]) -> None:
        await attempt.connection.execute("set search_path = nowhere")

    async def go() -> None:
        with PgBouncer(program, shared_url) as bouncer:
            async with opened(shared_url, bouncer.url) as harness:
                for _ in range(3):
                    for verdict, row in await asyncio.gather(*(harness.run(work) for _ in range(3))):
                        assert (verdict, row["state"]) == (Verdict.SETTLED, "completed")

    run(go())


def test_the_pool_of_an_application_gets_its_connections_back_unchanged(run: Run, shared_url: str) -> None:
    from psycopg_pool import AsyncConnectionPool

    async def go() -> None:
        async with (
            AsyncConnectionPool(shared_url, min_size=1, max_size=1, open=False) as pool,
            opened(shared_url, pool) as harness,
        ):
            for _ in range(2):
                verdict, _ = await harness.run(write("pooled"))
                assert verdict is Verdict.SETTLED
            async with harness.attempt() as attempt:
                await attempt.connection.execute(WRITE, (1, "half"))
            async with pool.connection() as connection:
                assert not connection.autocommit
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert await harness.effects() == ["pooled", "pooled"]
            assert (await harness.run(leaves_a_pipeline))[1]["state"] == "errored"
            async with asyncio.timeout(20), pool.connection() as connection:
                assert await (await connection.execute("select 1")).fetchone() == (1,)

    run(go())


def test_a_serialization_failure_is_an_error(run: Run, shared_url: str) -> None:
    async def looks_and_writes(attempt: Attempt[Any]) -> None:
        await attempt.connection.execute("select count(*) from effects")
        await write("one")(attempt)

    async def go() -> None:
        place = f"{shared_url}&options=-c%20default_transaction_isolation%3Dserializable"
        async with opened(shared_url, place) as harness:
            first = await harness.claim(rows=2)
            async with harness.attempt(first) as attempt:
                await looks_and_writes(attempt)
                verdict, row = await harness.run(looks_and_writes)
                assert (verdict, row["state"]) == (Verdict.SETTLED, "completed")
                assert await harness.settle(attempt, Complete()) is Verdict.SETTLED
            row = await harness.row(first.lease.job_id)
            assert (row["state"], await harness.effects()) == ("errored", ["one"])
            assert "could not serialize" in row["failure_message"]

    run(go())


def test_following_jobs_are_refused_and_the_changes_undone(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with harness.attempt() as attempt:
            await write("half")(attempt)
            attempt.then.append(NewJob(task="other"))
            assert await harness.settle(attempt, Complete()) is Verdict.SETTLED
        assert ((await harness.row(1))["state"], await harness.effects()) == ("errored", [])

    play(run, shared_url, scene)
