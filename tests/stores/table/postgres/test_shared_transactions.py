"""Attempts that share a transaction: all of them, or, after any error, each again in one of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from stowhand.events import Events, JobEnded, JobLost
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.lifecycle import COMPLETED, Ended, Fail
from stowhand.protocols.handler import Attempt, control_of
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Claim, ClaimRequest, Reply, Verdict
from stowhand.stores.postgres.table import shared_transaction
from stowhand.stores.postgres.table.held_transaction import HeldTransaction
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.stores.table.postgres.attempts import WRITE, AttemptHarness, judged, opened, soon
from tests.support.proxy import Proxy

RECORDS = 30
END = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'stowhand:transaction:%'"
XIDS = "select count(distinct xmin::text) as many from jobs where state = 'completed'"
Work = Callable[[Attempt[Any]], Awaitable[object]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine does not begin another transaction for being slow: all that is claimed together shares one."""
    monkeypatch.setattr(shared_transaction, "LONGEST", 60.0)
    monkeypatch.setattr(shared_transaction, "SOON", 60.0)


class Ward:
    """A worker on that many records, and what it was told."""

    def __init__(self, harness: AttemptHarness, **given: Any) -> None:
        self.harness, self.calls, self.ended, self.lost = harness, Counter[int](), Counter[Ended](), 0
        self.events = Events()
        self.events.on(JobEnded, lambda event: self.ended.update([event.ended]))
        self.events.on(JobLost, self._lost)
        self.options = WorkerOptions(**{"once": True, "concurrency": RECORDS, "poll_interval": 0.05} | given)

    def _lost(self, _: JobLost) -> None:
        self.lost += 1

    async def work(self, act: Work, records: int = RECORDS) -> None:
        await self.harness.execute(f"insert into jobs (note) select 'n' from generate_series(1, {records})")

        async def handle(ctx: Attempt[Any], record: Any) -> object:
            self.calls[record["id"]] += 1
            await ctx.connection.execute(WRITE, (record["id"], "done"))
            return await act(ctx)

        await Worker(self.harness.store, handle, self.options, events=self.events).run()

    async def states(self) -> Counter[str]:
        return Counter(row["state"] for row in await self.harness.execute("select state from jobs"))

    async def done(self) -> list[int]:
        """The records whose handler's work is there, each as often as it is."""
        return [row["job"] for row in await self.harness.execute("select job from effects order by job")]


def batch(run: Run, url: str, scene: Callable[[Ward], Awaitable[None]], options: Any = (), **given: Any) -> None:
    async def go() -> None:
        table = {"transactional": "batch", "stalled_max_age": 60, "retry_after": 60} | dict(options)
        async with opened(url, **table) as harness:
            await scene(Ward(harness, **given))

    run(go())


async def nothing(_: Attempt[Any]) -> None:
    """No more than what every handler here does."""


def test_records_are_settled_together_and_each_handler_is_called_once(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        await ward.work(nothing)
        assert ward.calls == Counter(range(1, RECORDS + 1))
        assert await ward.done() == list(range(1, RECORDS + 1))
        assert ward.ended == {Ended.OK: RECORDS}
        ((found),) = await ward.harness.execute(XIDS)
        assert found["many"] == 1, "transactions"

    batch(run, shared_url, scene)


def test_one_that_fails_undoes_all_and_then_fails_alone(run: Run, shared_url: str) -> None:
    async def fail(ctx: Attempt[Any]) -> None:
        if ctx.record["id"] == 5:
            raise ValueError("number five")

    async def scene(ward: Ward) -> None:
        await ward.work(fail)
        assert await ward.states() == {"completed": RECORDS - 1, "errored": 1}
        row = await ward.harness.row(5)
        assert "number five" in row["failure_message"]
        assert row["num_failures"] == 1, "it is one attempt, though its handler was called twice"
        assert await ward.done() == [number for number in range(1, RECORDS + 1) if number != 5]
        assert ward.ended == {Ended.OK: RECORDS - 1, Ended.RETRY: 1}
        assert set(ward.calls.values()) == {1, 2}
        assert ward.calls[5] == 2

    batch(run, shared_url, scene)


@pytest.mark.parametrize(
    ("statement", "said"),
    [("select 1 / 0", "division by zero"), ("commit", "ended the transaction itself")],
    ids=["an error that it survives", "a COMMIT in SQL"],
)
def test_what_cannot_go_on_is_undone_and_named(run: Run, shared_url: str, statement: str, said: str) -> None:
    async def break_it(ctx: Attempt[Any]) -> None:
        if ctx.record["id"] == 4:
            try:
                await ctx.connection.execute(statement)
            except Exception:  # noqa: BLE001 - that is what such a handler does
                return

    async def scene(ward: Ward) -> None:
        await ward.work(break_it, 8)
        assert await ward.states() == {"completed": 7, "errored": 1}
        message = (await ward.harness.row(4))["failure_message"]
        assert said in message or "one of its statements had failed" in message
        others = [job for job in await ward.done() if job != 4]
        assert sorted(set(others)) == [1, 2, 3, 5, 6, 7, 8]
        if statement != "commit":  # which nobody can take back
            assert others == sorted(set(others))

    batch(run, shared_url, scene)


def test_what_is_deferred_to_the_commit_is_an_error_of_its_own_record(run: Run, shared_url: str) -> None:
    async def refer(ctx: Attempt[Any]) -> None:
        key = 99 if ctx.record["id"] == 3 else ctx.record["id"]
        await ctx.connection.execute("insert into notes values (%s)", (key,))

    async def scene(ward: Ward) -> None:
        refers = "job bigint references jobs deferrable initially deferred"
        await ward.harness.execute(f"create table notes ({refers})")
        await ward.work(refer, 8)
        assert await ward.states() == {"completed": 7, "errored": 1}
        assert "notes_job_fkey" in (await ward.harness.row(3))["failure_message"]

    batch(run, shared_url, scene)


def test_a_lease_that_is_gone_undoes_all_and_the_others_run_again(run: Run, shared_url: str) -> None:
    """What a zombie did is not committed, however it ended."""

    async def scene(ward: Ward) -> None:
        async def take(ctx: Attempt[Any]) -> None:
            if ctx.record["id"] == 2 and ward.calls[2] == 1:
                mark = "worker_hostname = 'another', started_at = now(), last_heartbeat_at = now()"
                await ward.harness.execute(f"update jobs set {mark} where id = 2")

        await ward.work(take, 6)
        assert (await ward.harness.row(2))["state"] == "processing", "another worker's"
        assert await ward.states() == {"completed": 5, "processing": 1}
        assert await ward.done() == [1, 3, 4, 5, 6]
        assert (ward.ended, ward.lost) == ({Ended.OK: 5}, 1)

    batch(run, shared_url, scene)


def test_a_row_that_somebody_locks_for_a_moment_is_waited_for(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        await ward.harness.execute("insert into jobs (note) select 'n' from generate_series(1, 2)")
        first, second = await begun(ward.harness, 2)
        async with ward.harness.other.transaction():
            await ward.harness.execute("select from jobs where id = 1 for update")
            held = asyncio.gather(*(settled(attempt) for attempt in (first, second)))
            await asyncio.sleep(0)
        assert await held == [Verdict.SETTLED] * 2

    batch(run, shared_url, scene)


async def begun(harness: AttemptHarness, number: int) -> list[Attempt[Any]]:
    """Attempts whose handlers have worked, one after the other, in one transaction."""
    await harness.execute(f"insert into jobs (note) select 'n' from generate_series(1, {number})")
    request = ClaimRequest(worker="w-1", token="8c1d0e0e-93a1-4b9c-8c4f-0ea37d6f3a11", limit=number, lease=60.0)
    return [await worked(harness, claim) for claim in await harness.store.claim(request)]


async def worked(harness: AttemptHarness, claim: Claim[Any]) -> Attempt[Any]:
    attempt: Attempt[Any] = Attempt(claim, 0.0)
    around = harness.store.around(attempt)
    assert around is not None
    async with around:
        await attempt.connection.execute(WRITE, (claim.lease.job_id, "done"))
    return attempt


async def settled(attempt: Attempt[Any], settlement: Any = COMPLETED) -> Reply | None:
    transaction = control_of(attempt).transaction
    assert transaction is not None
    return await transaction.settle(settlement)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_reply_was_lost_is_found_again(run: Run, shared_url: str, committed: bool) -> None:
    async def go() -> None:
        with Proxy(shared_url) as proxy:
            async with opened(shared_url, proxy.url, transactional="batch") as harness:
                attempts = await begun(harness, 3)
                if committed:
                    proxy.lose_next_reply("transaction", to=b"commit")
                    replies = await asyncio.gather(*map(settled, attempts))
                    assert replies == [Verdict.ALREADY_SETTLED] * 3
                else:
                    arrive = proxy.hold_next_request("transaction", to=b"commit")
                    settling = asyncio.gather(*map(settled, attempts))
                    await soon(proxy.held.is_set)
                    await harness.execute(END)
                    assert await settling == [None] * 3, "they are to run again"
                    arrive.set()
                rows = await harness.execute("select state from jobs")
                assert [row["state"] for row in rows] == ["completed" if committed else "processing"] * 3
                assert len(await harness.effects()) == (3 if committed else 0)

    run(go())


def test_a_commit_in_doubt_is_not_judged_before_the_server_has_ended_it(run: Run, shared_url: str) -> None:
    async def go() -> None:
        with Proxy(shared_url) as proxy:
            async with opened(shared_url, proxy.url, transactional="batch") as harness:
                attempts = await begun(harness, 2)
                arrive = proxy.hold_next_request("transaction", to=b"commit")
                settling = asyncio.gather(*map(settled, attempts))
                await soon(proxy.held.is_set)
                asyncio.get_running_loop().call_later(0.15, arrive.set)
                assert set(await settling) <= {Verdict.SETTLED, Verdict.ALREADY_SETTLED}
                assert len(await harness.effects()) == 2

    run(go())


def test_one_that_is_given_back_takes_the_work_of_all_with_it(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        first, second = await begun(ward.harness, 2)
        transaction = control_of(second).transaction
        assert transaction is not None
        waiting = asyncio.ensure_future(settled(first))
        await transaction.rollback()
        assert await waiting is None
        assert await ward.done() == []
        assert await ward.states() == {"processing": 2}

    batch(run, shared_url, scene)


def test_one_that_shares_with_nobody_is_not_called_twice(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        (attempt,) = await begun(ward.harness, 1)
        assert await settled(attempt, judged(attempt, Fail("no"))) is Verdict.SETTLED
        assert ((await ward.harness.row(1))["state"], await ward.done()) == ("failed", [])

    batch(run, shared_url, scene)


def test_a_timeout_is_recorded_at_once_and_the_others_run_again(
    run: Run, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_transaction, "SOON", 0.005)  # the time of those that wait for a place passes too

    async def sleep(ctx: Attempt[Any]) -> None:
        if ctx.record["id"] == 3:
            await ctx.connection.execute("select pg_sleep(60)")

    async def scene(ward: Ward) -> None:
        await ward.work(sleep, 6)
        assert await ward.states() == {"completed": 5, "errored": 1}
        assert ward.calls[3] == 1
        assert await ward.done() == [1, 2, 4, 5, 6]

    batch(run, shared_url, scene, job_timeout=2.0)


def test_one_whose_time_ends_while_its_connection_is_looked_at_keeps_nobody_waiting(
    run: Run, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_transaction, "SOON", 0.005)
    looks, look = 0, HeldTransaction.is_fit_for_another

    async def stuck(held: HeldTransaction) -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            await asyncio.sleep(60)  # a ping under way, on a network that stands still
        return await look(held)

    monkeypatch.setattr(HeldTransaction, "is_fit_for_another", stuck)

    async def scene(ward: Ward) -> None:
        async with asyncio.timeout(30):
            await ward.work(nothing, 3)
        assert await ward.states() == {"completed": 2, "errored": 1}
        assert len(await ward.done()) == 2

    batch(run, shared_url, scene, job_timeout=2.0)


def test_a_cancellation_is_heard_while_the_handler_runs(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        async def wait(ctx: Attempt[Any]) -> None:
            if ctx.record["id"] == 2:
                await ward.harness.execute("update jobs set cancel = true where id = 2")
                await asyncio.sleep(60)

        await ward.work(wait, 3)
        assert await ward.states() == {"completed": 2, "canceled": 1}
        assert await ward.done() == [1, 3]

    batch(run, shared_url, scene, {"cancel_interval": 0.1})


def test_a_stop_returns_what_has_not_ended_and_what_was_undone_with_it(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        await ward.harness.execute("insert into jobs (note) select 'n' from generate_series(1, 4)")
        hanging = asyncio.Event()

        async def handle(ctx: Attempt[Any], record: Any) -> None:
            await ctx.connection.execute(WRITE, (record["id"], "done"))
            if record["id"] == 3:
                hanging.set()
                await asyncio.sleep(60)

        worker = Worker(ward.harness.store, handle, WorkerOptions(concurrency=4), events=ward.events)
        running = asyncio.ensure_future(worker.run())
        await hanging.wait()
        worker.stop(now=True)
        await running
        rows = await ward.harness.execute("select state, num_failures, num_resets from jobs")
        assert rows == [{"state": "queued", "num_failures": 0, "num_resets": 0}] * 4
        assert (await ward.done(), ward.lost) == ([], 0)

    batch(run, shared_url, scene)


def test_logs_are_written_with_all_ends(run: Run, shared_url: str) -> None:
    async def scene(ward: Ward) -> None:
        async def log(ctx: Attempt[Any]) -> None:
            entry = ExecutionLogEntry(key=f"step {ctx.record['id']}", start_time=datetime.now(UTC))
            await ctx.store.execution_log.add(entry)

        await ward.work(log, 4)
        for number in range(1, 5):
            (entry,) = await ward.harness.store.logs(number) or []
            assert entry.key == f"step {number}"

    batch(run, shared_url, scene)
