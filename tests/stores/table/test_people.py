"""The table's store as people see it: the same on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from stowhand.errors import ConfigurationError, InvalidJob, LogRefused
from stowhand.events import Events, StoreCalled
from stowhand.jobs.job import State
from stowhand.jobs.lease import Unreadable
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.queue_store import ActionResult
from stowhand.protocols.store import Verdict
from stowhand.table import ExecutionLogEntry, TableStore, Where
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import AT, Upload, claimed, opened, options


def test_a_requeued_record_is_taken_from_its_worker(place: Place, run: Run) -> None:
    place.add("a.py")

    async def main() -> None:
        async with opened(place) as store:
            (claim,) = await claimed(store)
            assert (await store.requeue(claim.record, timedelta(minutes=1))).result is ActionResult.DONE
            assert list(await store.settle([(claim.lease, COMPLETED)])) == [Verdict.LOST]

    run(main())
    assert place.states() == ["queued"]


@pytest.mark.parametrize("state", ["completed", "failed", "canceled"])
def test_what_is_over_is_not_requeued(place: Place, run: Run, state: str) -> None:
    place.add("a.py", state=state)

    async def main() -> None:
        async with opened(place) as store:
            answer = await store.requeue(1)
            assert answer.result is ActionResult.REFUSED
            assert state in answer.reason

    run(main())
    assert place.states() == [state]


@pytest.mark.parametrize("wrong", ["1", True, 1.0, None, 2**63, {"id": "1"}])
def test_a_key_of_the_wrong_type_changes_nothing(place: Place, run: Run, wrong: Any) -> None:
    place.add("a.py", state="errored")

    async def main() -> None:
        async with opened(place) as store:
            with pytest.raises(InvalidJob, match="id: "):
                await store.requeue(wrong)
            with pytest.raises(InvalidJob, match="id: "):
                await store.logs(wrong)

    run(main())
    assert place.states() == ["errored"]


def test_counts_are_by_state_and_by_condition(place: Place, run: Run) -> None:
    for state, number in (("queued", 2), ("processing", 1), ("errored", 1), ("completed", 3)):
        place.add(*["x.py"] * number, state=state)
    place.add("future.py", size=9, process_after=datetime(2100, 1, 1, tzinfo=UTC).isoformat(sep=" "))

    async def main() -> None:
        async with opened(place) as store:
            assert await store.queued_count() == 4
            assert await store.queued_count(include_processing=True) == 5
            assert await store.queued_count(conditions=[Where("size", ">", 5)]) == 1
            assert await store.count_by_state("queued", "processing") == 4
            assert (await store.counts())[State.COMPLETED] == 3
            assert await store.counts("failed") == {State.FAILED: 0}
            assert await store.exists("errored")
            assert not await store.exists("failed", "canceled")
            for call in (store.count_by_state, store.exists):
                with pytest.raises(ConfigurationError, match="states: none given"):
                    await call()
            with pytest.raises(ConfigurationError, match="did you mean 'canceled'"):
                await store.exists("cancelled")

    run(main())


def test_durations_are_measured_by_the_databases_clock(place: Place, run: Run) -> None:
    now = datetime(2031, 1, 1, 12, tzinfo=UTC)

    def before(**ago: float) -> str:
        return (now - timedelta(**ago)).strftime("%Y-%m-%d %H:%M:%S+00:00")

    async def main() -> None:
        store = TableStore(place.url, options(), _pinned=lambda: now)
        await store.open()
        assert await store.max_duration_in_queue() == timedelta(0)
        assert await store.oldest_claim_age() == timedelta(0)
        place.add("a.py", queued_at=before(minutes=40), process_after=before(minutes=30))
        place.add("b.py", state="processing", started_at=before(minutes=2), last_heartbeat_at=before(minutes=1))
        assert await store.max_duration_in_queue() == timedelta(minutes=30)
        assert await store.oldest_claim_age() == timedelta(minutes=2)
        await store.close()

    run(main())


def test_rows_of_an_own_statement_become_records(place: Place, run: Run) -> None:
    place.add("a.py", "b.py", size=5)
    query = "SELECT id, path, size, execution_logs FROM uploads ORDER BY id"

    async def main() -> None:
        async with opened(place) as store:
            instance = await store.scan_all(place.sql(query))
            assert [(one.id, one.path, one.size) for one in instance] == [(1, "a.py", 5), (2, "b.py", 5)]
            assert await store.scan_all([{"size": 5, "path": "a.py", "id": 1, "execution_logs": None}]) == instance[:1]

    run(main())


def test_rows_of_a_cursor_become_records_by_its_names(on_postgres: Place, run: Run) -> None:
    on_postgres.add("a.py", size=5)
    query = "SELECT size, path, execution_logs, id FROM uploads"

    async def main() -> None:
        async with opened(on_postgres) as store:
            with psycopg.connect(on_postgres.url) as connection:
                instance = await store.scan_all(connection.execute(query))
            async with await psycopg.AsyncConnection.connect(on_postgres.url) as other:
                assert await store.scan_all(await other.execute(query)) == instance == [Upload(1, "a.py", 5, [])]

    run(main())


def test_an_applications_own_pool_will_do(on_postgres: Place, run: Run) -> None:
    on_postgres.add("a.py")

    async def main() -> None:
        async with AsyncConnectionPool(on_postgres.url, min_size=1, max_size=4, open=False) as pool:
            async with TableStore(pool, options()) as store:
                (claim,) = await claimed(store)
                assert list(await store.settle([(claim.lease, COMPLETED)])) == [Verdict.SETTLED]
            async with pool.connection() as connection:
                assert await (await connection.execute("SELECT state FROM uploads")).fetchall() == [("completed",)]

    run(main())


def test_nothing_that_is_shown_holds_a_password() -> None:
    store = TableStore("postgresql://me:secret@127.0.0.1:1/app", options())
    assert "127.0.0.1" in store.description
    assert "uploads" in store.description
    assert "secret" not in store.description


def test_every_call_emits_an_event_with_its_time_and_whether_it_failed(place: Place, run: Run) -> None:
    place.add("a.py")
    events = Events()
    notices: list[StoreCalled] = []
    events.on(StoreCalled, notices.append)

    async def main() -> None:
        async with opened(place, events) as store:
            (claim,) = await claimed(store)
            heartbeats = store.heartbeats()
            await heartbeats.beat([claim.lease], 30)
            await heartbeats.close()
            await store.settle([(claim.lease, COMPLETED)])
            instance = Attempt(claim, 0.0)
            store.around(instance)
            with pytest.raises(LogRefused):
                await instance.store.add_execution_log_entry(ExecutionLogEntry(key="x", start_time=AT))

    run(main())
    assert [(one.store, one.operation, one.failed) for one in notices] == [
        ("uploads", operation, operation == "add_log") for operation in ("open", "claim", "beat", "settle", "add_log")
    ]
    assert all(0 < one.seconds < 30 for one in notices)


def test_an_unreadable_record_is_in_its_claim(place: Place, run: Run) -> None:
    place.add("a.py")
    broken = options(record=None, scan=lambda row: 1 / 0, column_expressions=["id"])

    async def main() -> None:
        async with TableStore(place.url, broken) as store:
            (claim,) = await claimed(store)
            assert claim.record == Unreadable("ZeroDivisionError: division by zero")

    run(main())


def test_records_are_listed_by_state_and_page_without_a_token(place: Place, run: Run) -> None:
    for state in ("queued", "completed", "failed", "errored"):
        place.add("a.py", state=state)

    async def main() -> None:
        async with opened(place, max_num_retries=1) as store:
            assert [record.id for record in await store.records()] == [1, 3, 4]
            assert [record.id for record in await store.records(after=1, limit=1)] == [3]
            assert [record.state for record in await store.records("completed")] == ["completed"]
            (claim,) = await claimed(store, limit=1)
            running = await store.look_up(claim.record)
            assert running is not None
            assert (running.state, running.worker, running.cancel) == ("processing", "host/1/boot", False)
            assert running.started_at is not None
            assert running.started_at.utcoffset() == timedelta(0)
            assert claim.lease.token not in repr(running)
            assert await store.look_up(99) is None
            with pytest.raises(InvalidJob, match="limit"):
                await store.records(limit=0)

    run(main())


@pytest.mark.parametrize("state", ["failed", "canceled", "errored", "queued"])
def test_a_retried_record_starts_again_and_its_former_worker_writes_nothing(place: Place, run: Run, state: str) -> None:
    place.add("a.py")
    place.sql("UPDATE uploads SET num_failures = 3, num_resets = 1")

    async def main() -> None:
        async with opened(place, max_num_retries=5) as store:
            (claim,) = await claimed(store)
            cancel = state == "canceled"
            place.sql(f"UPDATE uploads SET state = '{state}', cancel = {'true' if cancel else 'false'}")
            assert (await store.retry_record(1)).result is ActionResult.DONE
            record = await store.look_up(1)
            assert record is not None
            assert (record.state, record.num_failures, record.num_resets, record.cancel) == ("queued", 0, 0, False)
            assert list(await store.settle([(claim.lease, COMPLETED)])) == [Verdict.LOST]
            assert len(await claimed(store, token="22222222-2222-4222-8222-222222222222")) == 1

    run(main())


def test_what_runs_or_is_completed_is_not_retried(place: Place, run: Run) -> None:
    place.add("a.py", state="completed")
    place.add("a.py")

    async def main() -> None:
        async with opened(place) as store:
            await claimed(store)
            answers = [await store.retry_record(number) for number in (1, 2, 3)]
            assert [answer.result for answer in answers] == [
                ActionResult.REFUSED,
                ActionResult.REFUSED,
                ActionResult.MISSING,
            ]

    run(main())
    assert place.states() == ["completed", "processing"]


def test_a_waiting_record_is_canceled_at_once_and_a_running_one_is_asked(place: Place, run: Run) -> None:
    place.add("a.py")
    place.add("a.py")
    place.add("a.py", state="failed")

    async def main() -> None:
        async with opened(place) as store:
            (claim,) = await claimed(store, limit=1)
            answers = [await store.cancel_record(number) for number in (1, 2, 2, 3, 4)]
            assert [answer.result for answer in answers] == [
                ActionResult.ASKED,
                ActionResult.DONE,
                ActionResult.UNCHANGED,
                ActionResult.REFUSED,
                ActionResult.MISSING,
            ]
            heartbeats = store.heartbeats()
            try:
                assert (await heartbeats.beat([claim.lease], 30)).canceled
            finally:
                await heartbeats.close()

    run(main())
    assert place.states() == ["processing", "canceled", "failed"]
