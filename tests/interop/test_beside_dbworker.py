"""One table, two programs: theirs (dbworker.py) and ours. Each keeps the other's records sound."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stowhand.errors import LeaseLost, LogRefused
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED, Retry, Settlement, settle
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.store import Claim, ClaimRequest, Heartbeats, Reply, Verdict
from stowhand.table import TableOptions, TableStore
from tests.conftest import Run
from tests.interop.dbworker import NEWER, OLDER, Theirs
from tests.support.databases import Databases

MINUTE = timedelta(minutes=1)


class Ours:
    """A worker of ours, in single steps."""

    def __init__(self, store: TableStore[dict[str, Any]], heartbeats: Heartbeats) -> None:
        self.store, self.heartbeats = store, heartbeats

    async def claim(self, limit: int = 1) -> Sequence[Claim[dict[str, Any]]]:
        return await self.store.claim(ClaimRequest(worker="our-host", token=str(uuid4()), limit=limit, lease=30.0))

    async def settle(self, claim: Claim[Any], settlement: Settlement = COMPLETED) -> Reply:
        return (await self.store.settle([(claim.lease, settlement)]))[0]

    async def reset(self) -> list[tuple[int, State]]:
        return [(one.job_id, one.state) for one in await self.heartbeats.reset_stalled(0.0)]


@pytest.fixture(scope="module")
def database(postgres_server: Databases) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def theirs(database: str) -> Iterator[Theirs]:
    """On the newer shape, ten records."""
    yield from _theirs(database, NEWER)


@pytest.fixture
def theirs_older(database: str) -> Iterator[Theirs]:
    """On the older one; and the server's own time zone is not UTC."""
    yield from _theirs(database, OLDER)


def _theirs(url: str, shape: str) -> Iterator[Theirs]:
    side = Theirs(url, newer=shape is NEWER, retry_after=60.0)
    side.sql("drop table if exists jobs")
    side.sql(shape)
    side.sql("insert into jobs (size) select n from generate_series(1, 10) as n")
    side.sql(
        "do $$ begin execute 'alter database ' || current_database() || ' set timezone = ''America/New_York'''; end $$"
    )
    yield side
    side.close()


@asynccontextmanager
async def ours(url: str, ahead: timedelta = timedelta(0), **options: Any) -> AsyncIterator[Ours]:
    """``ahead``: by its database's clock it is that much later."""
    values: dict[str, Any] = {"name": "jobs", "table_name": "jobs", "stalled_max_age": 30.0, "max_num_retries": 2}
    pinned = None if not ahead else lambda: datetime.now(UTC) + ahead
    async with TableStore(url, TableOptions(**values | {"retry_after": 60.0} | options), _pinned=pinned) as store:
        heartbeats = store.heartbeats()
        try:
            yield Ours(store, heartbeats)
        finally:
            await heartbeats.close()


def retry(claim: Claim[Any], error: str = "no luck") -> Settlement:
    return settle(Retry(error), attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=lambda attempts: 60.0)


def test_no_record_is_run_by_both_in_turns_or_at_once(run: Run, database: str, theirs: Theirs) -> None:
    together = threading.Barrier(4)
    """Each has its turn, and all of them at once."""

    async def our_part(side: Ours, ran: list[int]) -> None:
        while claims := await side.claim(3):
            if not ran:
                await asyncio.to_thread(together.wait, 20)
            ran += [claim.record["id"] for claim in claims]
            verdicts = await side.store.settle([(claim.lease, COMPLETED) for claim in claims])
            assert set(verdicts) == {Verdict.SETTLED}

    def their_part(ran: list[int]) -> None:
        one = Theirs(database)
        while (job_id := one.dequeue()) is not None:
            if not ran:
                together.wait(20)
            ran.append(job_id)
            assert one.complete(job_id)
        one.close()

    async def go() -> None:
        async with ours(database) as side, ours(database) as other:
            (first,) = await side.claim()
            second = theirs.dequeue()
            (third,) = await side.claim()
            assert [first.record["id"], second, third.record["id"]] == [1, 2, 3]
            theirs.sql("update jobs set state = 'queued' where id <= 3")
            theirs.sql("insert into jobs (size) select n from generate_series(11, 150) as n")
            ran: list[list[int]] = [[], [], [], []]
            await asyncio.gather(
                our_part(side, ran[0]),
                our_part(other, ran[1]),
                asyncio.to_thread(their_part, ran[2]),
                asyncio.to_thread(their_part, ran[3]),
            )
            by_us, by_them = ran[0] + ran[1], ran[2] + ran[3]
            assert sorted(by_us + by_them) == list(range(1, 151))
            assert all(ran), "no turn for one of them"
            for row in theirs.sql("select * from jobs"):
                assert (row["state"], row["num_resets"], row["num_failures"]) == ("completed", 0, 0)
                assert row["size"] == row["id"]
                assert row["worker_hostname"].startswith("our-host/" if row["id"] in by_us else "their-host")

    run(go())


def test_their_reset_takes_ours_only_when_stale_and_our_zombie_is_fenced(
    run: Run, database: str, theirs: Theirs
) -> None:
    async def go() -> None:
        async with ours(database) as side:
            (claim,) = await side.claim()
            await side.heartbeats.beat([claim.lease], 30.0)
            assert theirs.reset(30.0, 3) == ([], [])
            theirs.sql("update jobs set last_heartbeat_at = now() - interval '1 minute' where id = 1")
            assert theirs.reset(30.0, 3) == ([1], [])
            before = theirs.row(1)
            assert (await side.heartbeats.beat([claim.lease], 30.0)).lost == {(1, claim.lease.token)}
            assert await side.settle(claim) is Verdict.LOST
            assert theirs.row(1) == before
            assert theirs.dequeue() == 1
            assert theirs.add_log(1, {"key": "theirs", "command": [], "startTime": "2026-01-01T00:00:00Z"}) == 1
            before = theirs.row(1)
            attempt: Attempt[Any] = Attempt(claim, 0.0)
            side.store.around(attempt)
            with pytest.raises(LogRefused):
                await attempt.store.add_execution_log_entry(ExecutionLogEntry(key="x", start_time=datetime.now(UTC)))
            assert (await side.heartbeats.beat([claim.lease], 30.0)).lost == {(1, claim.lease.token)}
            assert list(await side.heartbeats.release([claim.lease])) == []
            assert await side.settle(claim, retry(claim)) is Verdict.LOST
            assert theirs.row(1) == before
            assert theirs.complete(1)

    run(go())


def test_our_reset_takes_theirs_only_when_stale_and_not_locked(run: Run, database: str, theirs: Theirs) -> None:
    async def go() -> None:
        async with ours(database, max_resets=1) as side, ours(database, MINUTE, max_resets=1) as later:
            assert theirs.dequeue() == 1
            theirs.add_log(1, {"key": "theirs", "command": ["a"], "startTime": "2026-01-01T00:00:00Z"})
            theirs.heartbeat([1])
            assert await side.reset() == []
            with psycopg.connect(database) as application:
                application.execute("select from jobs where id = 1 for update")
                assert await later.reset() == []
            assert await later.reset() == [(1, State.QUEUED)]
            row = theirs.row(1)
            assert (row["num_resets"], row["num_failures"], row["started_at"]) == (1, 0, None)
            assert (row["worker_hostname"], len(row["execution_logs"])) == ("their-host", 1)
            assert theirs.heartbeat([1]) == (set(), set())
            assert not theirs.complete(1)
            assert theirs.dequeue() == 1
            assert await later.reset() == [(1, State.FAILED)]
            row = theirs.row(1)
            assert (row["num_resets"], row["num_failures"]) == (1, 0)
            assert row["failure_message"] == side.store.options.reset_failure_message

    run(go())


def test_a_record_overwritten_by_their_zombie_is_left_to_them(run: Run, database: str, theirs: Theirs) -> None:
    async def go() -> None:
        async with ours(database) as side, ours(database, MINUTE) as later:
            assert theirs.dequeue() == 1
            assert await later.reset() == [(1, State.QUEUED)]
            (claim,) = await side.claim()
            assert claim.record["id"] == 1
            assert theirs.complete(1)  # they compare no host name
            before = theirs.row(1)
            assert await side.settle(claim, retry(claim)) is Verdict.LOST
            assert theirs.row(1) == before

    run(go())


def test_both_count_failures_and_wait_for_retries_alike(run: Run, database: str, theirs: Theirs) -> None:
    async def go() -> None:
        async with ours(database) as side, ours(database, 2 * MINUTE) as later:
            theirs.sql("delete from jobs where id > 1")
            (claim,) = await side.claim()
            assert await side.settle(claim, retry(claim)) is Verdict.SETTLED
            assert (theirs.row(1)["state"], theirs.row(1)["num_failures"]) == ("errored", 1)
            assert theirs.dequeue() is None
            assert not await side.claim()
            theirs.sql("update jobs set finished_at = now() - interval '61 s', process_after = now()")
            assert theirs.dequeue() == 1
            assert theirs.errored(1, "their bad luck", max_attempts=3)
            assert (theirs.row(1)["state"], theirs.row(1)["num_failures"]) == ("errored", 2)
            assert not await side.claim()
            (claim,) = await later.claim()
            assert (claim.attempts, claim.max_attempts) == (3, 3)
            assert await side.settle(claim, retry(claim)) is Verdict.SETTLED
            row = theirs.row(1)
            assert (row["state"], row["num_failures"], row["failure_message"]) == ("failed", 3, "no luck")

    run(go())


def test_both_understand_a_cancellation(run: Run, database: str, theirs: Theirs) -> None:
    async def go() -> None:
        async with ours(database) as side:
            (claim,) = await side.claim()
            assert theirs.dequeue() == 2
            theirs.sql("update jobs set cancel = true where id <= 3")
            assert (await side.heartbeats.beat([claim.lease], 30.0)).canceled == {(1, claim.lease.token)}
            assert theirs.heartbeat([2]) == ({2}, {2})
            recorded = await side.settle(claim, retry(claim))
            assert isinstance(recorded, Settlement)
            assert recorded.state is State.CANCELED, "told as it was recorded"
            assert theirs.errored(2, "stopped", max_attempts=3)
            assert (await side.claim())[0].record["id"] == 4
            states = theirs.sql("select state, num_failures from jobs where id <= 3")
            assert states == [{"state": "canceled", "num_failures": 0}] * 3

    run(go())


def test_each_reads_the_others_logs(run: Run, database: str, theirs: Theirs) -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    async def go() -> None:
        async with ours(database) as side:
            (claim,) = await side.claim()
            attempt: Attempt[Any] = Attempt(claim, 0.0)
            side.store.around(attempt)
            entry = ExecutionLogEntry(key="step.0", command=("ls", "-l"), start_time=started, exit_code=0, out="x")
            assert await attempt.store.add_execution_log_entry(entry) == 1
            ((ours_there),) = theirs.row(1)["execution_logs"]
            assert ours_there == {
                "key": "step.0",
                "command": ["ls", "-l"],
                "startTime": "2026-01-02T03:04:05Z",
                "exitCode": 0,
                "out": "x",
            }
            assert theirs.dequeue() == 2
            theirs.add_log(2, {**ours_there, "key": "step.1", "durationMs": 12})
            result = (await side.store.logs(2) or [])[0]
            assert (result.key, result.duration_ms, result.start_time) == ("step.1", 12, started)

    run(go())


def test_their_requeue_of_a_running_record_fences_us_out(run: Run, database: str, theirs: Theirs) -> None:
    async def go() -> None:
        async with ours(database) as side:
            (claim,) = await side.claim()
            theirs.requeue(1, timedelta(0))
            (again,) = await side.claim()
            assert (again.record["id"], again.lease.token == claim.lease.token) == (1, False)
            assert await side.settle(claim) is Verdict.LOST
            assert await side.settle(again) is Verdict.SETTLED

    run(go())


def test_a_record_held_by_a_transaction_of_ours_is_not_reset_by_them(run: Run, database: str, theirs: Theirs) -> None:
    async def go() -> None:
        async with ours(database, transactional=True) as side:
            (claim,) = await side.claim()
            theirs.sql("update jobs set last_heartbeat_at = now() - interval '1 day' where id = 1")
            attempt: Attempt[Any] = Attempt(claim, 0.0)
            around = side.store.around(attempt)
            assert around is not None
            async with around:
                assert theirs.reset(30.0, 3) == ([], [])
                assert theirs.dequeue() == 2
            transaction = control_of(attempt).transaction
            assert transaction is not None
            await transaction.rollback()
            assert theirs.reset(30.0, 3) == ([1], [])
            with pytest.raises(LeaseLost):
                async with side.store.around(Attempt(claim, 0.0)) or around:
                    pytest.fail("begun")

    run(go())


def test_the_older_shape_is_shared_as_well(run: Run, database: str, theirs_older: Theirs) -> None:
    theirs = theirs_older

    async def go() -> None:
        async with ours(database) as side, ours(database, MINUTE) as later:
            (claim,) = await side.claim()
            assert theirs.dequeue() == 2
            now = datetime.now(UTC).replace(tzinfo=None)
            for job_id in (1, 2):
                for column in ("started_at", "last_heartbeat_at"):
                    assert abs(theirs.row(job_id)[column] - now) < timedelta(seconds=20)
            assert theirs.reset(30.0, 3) == ([], [])
            assert await side.reset() == []
            assert await side.settle(claim, retry(claim)) is Verdict.SETTLED
            assert timedelta(seconds=40) < theirs.row(1)["process_after"] - now < timedelta(seconds=80)
            assert theirs.dequeue() == 3
            assert sorted(await later.reset()) == [(2, State.QUEUED), (3, State.QUEUED)]
            theirs.requeue(4, timedelta(hours=1))
            assert [claim.record["id"] for claim in await side.claim(3)] == [2, 3, 5]
            theirs.sql("update jobs set last_heartbeat_at = last_heartbeat_at - interval '1 minute' where id = 5")
            assert theirs.reset(30.0, 3) == ([5], [])
            assert theirs.row(5)["worker_hostname"].startswith("our-host/")

    run(go())
