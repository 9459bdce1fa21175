"""What a transactional handler may do to its connection, and what becomes of its record all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import Cancel, Complete, Retry
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Verdict
from stowhand.stores.postgres.table import held_transaction
from tests.conftest import Run
from tests.stores.table.postgres.attempts import WRITE, AttemptHarness, Work, leaves_a_pipeline, opened, write

Scene = Callable[[AttemptHarness], Awaitable[None]]
LEFT: list[object] = []


def play(run: Run, url: str, scene: Scene, **options: Any) -> None:
    async def go() -> None:
        async with opened(url, **options) as harness:
            await scene(harness)

    run(go())


async def swallows_an_error(attempt: Attempt[Any]) -> None:
    with pytest.raises(psycopg.Error):
        await attempt.connection.execute("select 1/0")


async def commits(attempt: Attempt[Any]) -> None:
    await attempt.connection.execute("commit")


async def rolls_back(attempt: Attempt[Any]) -> None:
    await attempt.connection.execute("rollback")


async def begins_anew(attempt: Attempt[Any]) -> None:
    await attempt.connection.execute("commit and chain")
    await attempt.connection.execute(WRITE, (0, "x"))


async def commits_and_fails(attempt: Attempt[Any]) -> None:
    await begins_anew(attempt)
    await swallows_an_error(attempt)


async def leaves_a_copy(attempt: Attempt[Any]) -> None:
    copy = attempt.connection.cursor().copy("copy effects (what) from stdin")
    await (await copy.__aenter__()).write(b"x\n")
    LEFT.append(copy)


async def breaks_the_connection(attempt: Attempt[Any]) -> None:
    with pytest.raises(psycopg.OperationalError):
        await attempt.connection.execute("select pg_terminate_backend(pg_backend_pid())")


async def breaks_a_deferred_constraint(attempt: Attempt[Any]) -> None:
    await attempt.connection.execute("create table parents (id int primary key)")
    await attempt.connection.execute(
        "create table children (parent int references parents deferrable initially deferred)"
    )
    await attempt.connection.execute("insert into children values (7)")


UNRULY: dict[Work, str] = {
    swallows_an_error: "one of its statements had failed",
    commits: "ended the transaction itself",
    rolls_back: "ended the transaction itself",
    begins_anew: "ended the transaction itself",
    commits_and_fails: "ended the transaction itself",
    leaves_a_copy: "left a stream, a COPY or a pipeline open",
    leaves_a_pipeline: "left a stream, a COPY or a pipeline open",
    breaks_the_connection: "broke",
    breaks_a_deferred_constraint: "violates foreign key",
}


def test_an_attempt_that_cannot_be_committed_is_an_error_with_the_reason(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        for number, (unruly, why) in enumerate(UNRULY.items(), 1):
            verdict, row = await harness.run(unruly)
            assert (verdict, row["state"], row["num_failures"]) == (Verdict.SETTLED, "errored", 1), unruly
            assert why in row["failure_message"]
            assert "division by zero" not in row["failure_message"]  # how we find out is nobody's concern
            await harness.execute("update jobs set state = 'failed'")
            # Whatever it left behind, the next attempt has nothing of it.
            assert (await harness.run(write("next")))[0] is Verdict.SETTLED
            assert await harness.effects() == ["next"] * number, unruly

    play(run, shared_url, scene)


def test_a_failing_unruly_attempt_is_recorded_with_its_error(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        for unruly, why in UNRULY.items():

            async def work(attempt: Attempt[Any], unruly: Work = unruly) -> None:
                await unruly(attempt)
                raise ValueError("its own")

            verdict, row = await harness.run(work)
            assert (verdict, row["state"], row["num_failures"]) == (Verdict.SETTLED, "errored", 1), unruly
            assert "its own" in row["failure_message"]
            assert ("ended the transaction" in row["failure_message"]) is ("ended" in why), unruly
            await harness.execute("update jobs set state = 'failed'")
        assert await harness.effects() == []

    play(run, shared_url, scene)


def test_commit_rollback_and_close_are_refused_at_once(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        for verb in ("commit", "rollback", "close"):
            with pytest.raises(psycopg.ProgrammingError, match="ends with the attempt"):
                await getattr(attempt.connection, verb)()
        await write("goes on")(attempt)

    async def scene(harness: AttemptHarness) -> None:
        assert (await harness.run(work))[0] is Verdict.SETTLED
        assert await harness.effects() == ["goes on"]

    play(run, shared_url, scene)


def test_a_nested_block_may_fail_alone(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        await write("before")(attempt)
        try:
            async with attempt.connection.transaction():
                await write("inside")(attempt)
                await attempt.connection.execute("select 1/0")
        except psycopg.errors.DivisionByZero:
            await write("caught")(attempt)
        async with attempt.connection.transaction():
            await write("after")(attempt)

    async def scene(harness: AttemptHarness) -> None:
        _, row = await harness.run(work)
        assert (row["state"], await harness.effects()) == ("completed", ["before", "caught", "after"])

    play(run, shared_url, scene)


def test_a_nested_block_that_was_never_left_is_committed(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        await attempt.connection.transaction().__aenter__()
        await write("inside")(attempt)

    async def scene(harness: AttemptHarness) -> None:
        _, row = await harness.run(work)
        assert (row["state"], await harness.effects()) == ("completed", ["inside"])

    play(run, shared_url, scene)


def test_a_task_that_continues_reaches_no_transaction(run: Run, shared_url: str) -> None:
    left: list[asyncio.Task[Any]] = []
    go_on = asyncio.Event()

    async def leaks(attempt: Attempt[Any]) -> None:
        async def later() -> None:
            await go_on.wait()
            await attempt.connection.execute(WRITE, (0, "leaked"))

        await write("one")(attempt)
        left.append(asyncio.create_task(later()))

    async def scene(harness: AttemptHarness) -> None:
        assert (await harness.run(leaks))[0] is Verdict.SETTLED
        async with harness.attempt() as attempt:
            go_on.set()
            with pytest.raises(psycopg.InterfaceError, match="is over"):
                await left[0]
            await write("two")(attempt)
            await harness.settle(attempt, Complete())
        assert await harness.effects() == ["one", "two"]

    play(run, shared_url, scene)


def test_a_statement_that_continues_delays_only_briefly(
    run: Run, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leaks(attempt: Attempt[Any]) -> None:
        await write("one")(attempt)
        left.append(asyncio.create_task(attempt.connection.execute("select pg_sleep(60)")))
        await asyncio.sleep(0.05)

    async def scene(harness: AttemptHarness) -> None:
        monkeypatch.setattr(held_transaction, "STATEMENT_TIMEOUT_SECONDS", 0.2)
        async with asyncio.timeout(20):
            verdict, row = await harness.run(leaks)
        assert (verdict, row["state"], await harness.effects()) == (Verdict.SETTLED, "errored", [])
        assert "a statement still ran" in row["failure_message"]
        with pytest.raises(psycopg.Error):
            await left[0]

    play(run, shared_url, scene)


def test_an_open_stream_is_not_waited_for(run: Run, shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[AsyncIterator[Any]] = []

    async def work(attempt: Attempt[Any]) -> None:
        stream = attempt.connection.cursor().stream("select generate_series(1, 100000)")
        await anext(stream)
        streams.append(stream)

    async def scene(harness: AttemptHarness) -> None:
        monkeypatch.setattr(held_transaction, "STATEMENT_TIMEOUT_SECONDS", 60.0)
        async with asyncio.timeout(20):
            _, row = await harness.run(work)
        assert (row["state"], "left a stream" in row["failure_message"]) == ("errored", True)
        streams.clear()

    play(run, shared_url, scene)


@pytest.mark.parametrize("outcome", [Cancel("stopped"), Retry("timed out")])
def test_a_handler_cancelled_in_a_query_is_settled_in_its_transaction(run: Run, shared_url: str, outcome: Any) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with harness.attempt() as attempt:
            await write("half")(attempt)
            query = asyncio.create_task(attempt.connection.execute("select pg_sleep(60)"))
            await asyncio.sleep(0.05)
            query.cancel()
            async with asyncio.timeout(20):
                await asyncio.wait([query])
                assert await harness.settle(attempt, outcome) is Verdict.SETTLED
        assert ((await harness.row(1))["state"], await harness.effects()) == (judged_state(outcome), [])

    play(run, shared_url, scene)


def judged_state(outcome: object) -> str:
    return "canceled" if isinstance(outcome, Cancel) else "errored"


def test_settings_of_a_handler_do_not_affect_its_settlement(run: Run, shared_url: str) -> None:
    settings = (
        "set local search_path = elsewhere",
        "set search_path = elsewhere",
        "set local role nobody_much",
        "set local timezone = 'America/New_York'",
        "set search_path = elsewhere; reset all",
    )

    async def scene(harness: AttemptHarness) -> None:
        await harness.execute("drop schema if exists elsewhere cascade")
        await harness.execute("create schema elsewhere")
        await harness.execute("create table elsewhere.jobs (like public.jobs including all)")
        await harness.execute("do $$ begin create role nobody_much; exception when duplicate_object then null; end $$")
        for setting in settings:

            async def work(attempt: Attempt[Any], setting: str = setting) -> None:
                await attempt.connection.execute(setting.encode())

            verdict, row = await harness.run(work)
            assert (verdict, row["state"]) == (Verdict.SETTLED, "completed"), (setting, row["failure_message"])

    play(run, shared_url, scene)


def test_a_statement_timeout_of_a_handler_does_not_end_its_settlement(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        await attempt.connection.execute("set local statement_timeout = '200ms'")

    async def scene(harness: AttemptHarness) -> None:
        await harness.execute(
            "create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.3); return new; end'"
        )
        await harness.execute(
            "create trigger slow before update on jobs for each row"
            " when (new.state = 'completed') execute function slow()"
        )
        verdict, row = await harness.run(work)
        assert (verdict, row["state"]) == (Verdict.SETTLED, "completed"), row["failure_message"]

    play(run, shared_url, scene)


def test_a_handler_that_makes_its_transaction_read_only_is_completed(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        await write("done")(attempt)
        await attempt.connection.execute("set transaction read only")

    async def scene(harness: AttemptHarness) -> None:
        verdict, row = await harness.run(work)
        assert (verdict, row["state"], await harness.effects()) == (Verdict.SETTLED, "completed", ["done"])

    play(run, shared_url, scene)


def test_a_handler_that_deletes_its_record_keeps_its_changes(run: Run, shared_url: str) -> None:
    async def scene(harness: AttemptHarness) -> None:
        async with harness.attempt() as attempt:
            await write("moved")(attempt)
            await attempt.connection.execute("delete from jobs where id = %s", (attempt.lease.job_id,))
            assert await harness.settle(attempt, Complete()) is Verdict.LOST
        assert (await harness.execute("select id from jobs"), await harness.effects()) == ([], ["moved"])

    play(run, shared_url, scene)


def test_a_constraint_that_refuses_the_message_does_not_keep_the_record(run: Run, shared_url: str) -> None:
    async def fails(attempt: Attempt[Any]) -> None:
        await write("half")(attempt)
        raise ValueError("x" * 5000)

    async def scene(harness: AttemptHarness) -> None:
        await harness.execute("alter table jobs add check (length(failure_message) < 1000)")
        verdict, row = await harness.run(fails)
        assert (verdict, row["state"], await harness.effects()) == (Verdict.SETTLED, "errored", [])
        assert "could not be written" in row["failure_message"]

    play(run, shared_url, scene)


def test_a_temporary_table_of_the_same_name_does_not_hide_the_table(run: Run, shared_url: str) -> None:
    async def work(attempt: Attempt[Any]) -> None:
        await attempt.connection.execute("create temp table jobs as select * from public.jobs")
        await write("done")(attempt)
        assert await attempt.store.exists(State.PROCESSING)
        assert (await attempt.store.requeue(2)).result == "done"

    async def scene(harness: AttemptHarness) -> None:
        claim = await harness.claim(rows=2)
        await harness.execute("update jobs set process_after = now() where id = 2")
        verdict, row = await harness.run(work, claim)
        assert (verdict, row["state"], await harness.effects()) == (Verdict.SETTLED, "completed", ["done"])
        assert (await harness.row(2))["state"] == "queued"

    play(run, shared_url, scene)
