"""Transactions whose connection, process or loop dies: nothing is called completed that was not committed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.jobs.lifecycle import Complete, Outcome, Retry
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Verdict
from stowhand.table import TableStore
from tests.conftest import Run
from tests.stores.table.postgres.attempts import opened, options, soon, write
from tests.support.proxy import Proxy
from tests.support.sources import ROOT

END = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'stowhand:transaction:%'"


@pytest.mark.parametrize(
    ("outcome", "state", "effects"), [(Complete(), "completed", ["done"]), (Retry("no luck"), "errored", [])]
)
def test_a_commit_whose_reply_was_lost_is_recognized(
    run: Run, shared_url: str, outcome: Outcome, state: str, effects: list[str]
) -> None:
    async def go() -> None:
        with Proxy(shared_url) as proxy:
            async with opened(shared_url, proxy.url) as harness, harness.attempt() as attempt:
                await write("done")(attempt)
                proxy.lose_next_reply("transaction", to=b"commit")
                assert await harness.settle(attempt, outcome) is Verdict.ALREADY_SETTLED
                assert proxy.lost.is_set()
                row = await harness.row(1)
                assert (row["state"], await harness.effects()) == (state, effects)
                assert row["num_failures"] == (state == "errored")

    run(go())


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_in_doubt_is_resolved_when_the_lock_ends(run: Run, shared_url: str, committed: bool) -> None:
    async def go() -> None:
        with Proxy(shared_url) as proxy:
            async with opened(shared_url, proxy.url) as harness, harness.attempt() as attempt:
                await write("done")(attempt)
                arrive = proxy.hold_next_request("transaction", to=b"commit")
                settling = asyncio.create_task(harness.settle(attempt, Complete()))
                await soon(proxy.held.is_set)
                if committed:
                    asyncio.get_running_loop().call_later(0.15, arrive.set)
                else:
                    await harness.execute(END)
                verdict, row = await settling, await harness.row(1)
                arrive.set()
                if committed:
                    assert (verdict, row["state"]) == (Verdict.ALREADY_SETTLED, "completed")
                    assert await harness.effects() == ["done"]
                else:
                    assert (verdict, row["state"], row["num_failures"]) == (Verdict.SETTLED, "errored", 1)
                    assert "the connection broke" in row["failure_message"]
                    assert await harness.effects() == []

    run(go())


def test_a_connection_that_breaks_during_a_handler_undoes_its_changes(run: Run, shared_url: str) -> None:
    async def go() -> None:
        async with opened(shared_url) as harness:

            async def work(attempt: Attempt[Any]) -> None:
                await write("half")(attempt)
                await harness.execute(END)

            verdict, row = await harness.run(work)
            assert (verdict, row["state"], row["num_failures"]) == (Verdict.SETTLED, "errored", 1)
            assert await harness.effects() == []
            await harness.execute("update jobs set state = 'failed'")
            assert (await harness.run(write("next")))[0] is Verdict.SETTLED

    run(go())


def test_a_record_that_was_reset_after_its_connection_broke_is_lost(run: Run, shared_url: str) -> None:
    async def go() -> None:
        async with opened(shared_url) as harness, harness.attempt() as attempt:
            await write("half")(attempt)
            await harness.execute(END)
            await harness.execute("update jobs set state = 'queued'")
            assert await harness.settle(attempt, Complete()) is Verdict.LOST
            assert ((await harness.row(1))["state"], await harness.effects()) == ("queued", [])

    run(go())


def test_the_records_of_killed_processes_are_released_and_reset(run: Run, shared_url: str) -> None:
    async def start(how: str) -> asyncio.subprocess.Process:
        """It waits idle in its transaction, or for a statement of it."""
        command = [sys.executable, "-m", "tests.stores.table.postgres.dying", shared_url, how]
        return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)

    async def go() -> None:
        later = TableStore(shared_url, options(), _pinned=lambda: datetime.now(UTC) + timedelta(hours=1))
        async with opened(shared_url) as harness, later:
            await harness.execute("insert into jobs select from generate_series(1, 2)")
            heartbeats, found = later.heartbeats(), list[ResetJob]()
            processes = [await start("idle"), await start("busy")]
            try:
                for process in processes:
                    assert process.stdout is not None
                    assert await process.stdout.readline() == b"holding\n"
                assert not await heartbeats.reset_stalled(0.0)
            finally:
                for process in processes:
                    process.kill()
                    await process.wait()

            async def revived() -> bool:
                found.extend(await heartbeats.reset_stalled(0.0))
                return len(found) == 2

            async with asyncio.timeout(20):
                while not await revived():  # noqa: ASYNC110 - what is waited for happens in another process
                    await asyncio.sleep(0.01)
            await heartbeats.close()
            assert [(one.state, one.worker) for one in found] == [(State.QUEUED, "w-9")] * 2
            rows = await harness.execute("select state, num_resets from jobs")
            assert rows == [{"state": "queued", "num_resets": 1}] * 2
            assert await harness.effects() == []

    run(go())


def test_a_blocked_loop_loses_the_lock_like_a_lease(run: Run, shared_url: str) -> None:
    async def blocks(attempt: Attempt[Any]) -> None:
        await write("half")(attempt)
        pid, end = attempt.connection.info.backend_pid, time.monotonic() + 20
        with psycopg.connect(shared_url, autocommit=True) as other:
            while other.execute("select from pg_stat_activity where pid = %s", [pid]).fetchall():
                assert time.monotonic() < end, "the server waits for ever"
                time.sleep(0.02)  # noqa: ASYNC251 - that is what it is about

    async def go() -> None:
        async with opened(shared_url, stalled_max_age=0.5, heartbeat_interval=0.1) as harness:
            _, row = await harness.run(blocks)
            assert (row["state"], await harness.effects()) == ("errored", [])
            assert "idle-in-transaction" in row["failure_message"]

    run(go())


def test_log_entries_survive_a_broken_connection(run: Run, shared_url: str) -> None:
    from stowhand.jobs.execution_log import ExecutionLogEntry

    async def go() -> None:
        async with opened(shared_url) as harness:

            async def work(attempt: Attempt[Any]) -> None:
                await attempt.store.add_execution_log_entry(ExecutionLogEntry(key="a", start_time=datetime.now(UTC)))
                await harness.execute(END)

            _, row = await harness.run(work)
            assert [entry["key"] for entry in row["execution_logs"]] == ["a"]

    run(go())
