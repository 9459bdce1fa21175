"""The table's store as a running handler sees it: the same on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from stowhand.errors import InvalidJob, LogRefused, StoreUnreachable
from stowhand.jobs.execution_log import MAX_OUTPUT_BYTES
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import Snooze
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.queue_store import ActionResult
from stowhand.stores.table import attempt_store
from stowhand.table import ExecutionLogEntry, TableStore, Where
from stowhand.worker import hooks
from tests.conftest import Run
from tests.stores.table.conftest import Place
from tests.stores.table.harness import AT, Upload, attempt, claimed, opened, options, worked_off


def test_a_handler_puts_its_own_record_back_by_returning(place: Place, run: Run) -> None:
    place.add("a.py", num_failures=1)

    async def handle(ctx: Attempt[Any], record: Upload) -> None:
        answer = await ctx.store.requeue(record, timedelta(hours=1))
        assert answer.result is ActionResult.DONE
        assert ctx.store.requeued == 3600

    async def main() -> None:
        async with opened(place, max_num_retries=5) as store:
            await worked_off(store, handle)
            assert 3500 < (await store.next_due(None) or 0) <= 3600

    run(main())
    assert place.sql("SELECT state, num_failures FROM uploads") == [("queued", 1)]


def test_a_handler_that_raises_after_a_requeue_has_failed(place: Place, run: Run) -> None:
    place.add("a.py")

    async def handle(ctx: Attempt[Any], record: Upload) -> None:
        await ctx.store.requeue(record)
        raise ValueError("no")

    async def main() -> None:
        async with opened(place) as store:
            await worked_off(store, handle)

    run(main())
    assert place.states() == ["failed"]


def test_a_moment_for_the_own_record_is_by_the_databases_clock(place: Place, run: Run) -> None:
    place.add("a.py")
    now = datetime(2031, 1, 1, tzinfo=UTC)

    async def main() -> None:
        store = TableStore(place.url, options(), _pinned=lambda: now)
        await store.open()
        made, its = await attempt(store)
        assert its.requeued is None
        await its.requeue(1, now + timedelta(minutes=5))
        assert control_of(made).decided == Snooze(300.0)
        await its.requeue(1, now - timedelta(minutes=5))
        assert control_of(made).decided == Snooze(0.0)
        await store.close()

    run(main())


def test_a_handler_requeues_counts_and_looks_for_others(place: Place, run: Run) -> None:
    place.add("a.py", "b.py")
    place.add("done.py", state="completed")

    async def main() -> None:
        async with opened(place) as store:
            made, its = await attempt(store)
            assert (await its.requeue(2, 60)).result is ActionResult.DONE
            assert (await its.requeue(3)).result is ActionResult.REFUSED
            assert (await its.requeue(99)).result is ActionResult.MISSING
            assert control_of(made).decided is None
            assert await its.exists("completed")
            assert not await its.exists("completed", conditions=Where("path", "=", "a.py"))
            assert await its.count_by_state("queued", State.PROCESSING) == 2
            with pytest.raises(InvalidJob, match="id: got a str; the key is a whole number: use an int"):
                await its.requeue("2")

    run(main())
    assert place.sql("SELECT count(*) FROM uploads WHERE process_after IS NOT NULL") == [(1,)]


def test_entries_of_the_log_are_numbered_updated_and_read_back(place: Place, run: Run) -> None:
    place.add("a.py")

    def entry(out: str, code: int | None = None) -> ExecutionLogEntry:
        return ExecutionLogEntry(key="step", command=("ls", "-l"), start_time=AT, out=out, exit_code=code)

    async def main() -> None:
        async with opened(place) as store:
            _, its = await attempt(store)
            assert [await its.add_execution_log_entry(entry(str(n))) for n in range(1, 4)] == [1, 2, 3]
            assert await its.add_execution_log_entry(entry("4")) == 4
            await its.update_execution_log_entry(2, entry("two\x00", 7))
            await its.update_execution_log_entry(4, entry("four"))
            logs = await store.logs(1) or []
            assert [one.out for one in logs] == ["1", "two\N{REPLACEMENT CHARACTER}", "3", "four"]
            assert (logs[1].exit_code, logs[1].command, logs[1].start_time) == (7, ("ls", "-l"), AT)
            assert await store.logs(99) is None
            for number in (0, -1, True, 5, 2**40):
                with pytest.raises(LogRefused):
                    await its.update_execution_log_entry(number, entry("x"))
            assert len(await store.logs(1) or []) == 4

    run(main())


def test_a_log_is_bounded(on_sqlite: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    on_sqlite.add("a.py")
    monkeypatch.setattr(attempt_store, "MAX_LOG_ENTRIES", 2)

    async def main() -> None:
        async with opened(on_sqlite) as store:
            _, its = await attempt(store)
            long = ExecutionLogEntry(key="step", start_time=AT, out="x" * 100_000)
            assert [await its.add_execution_log_entry(long) for _ in range(2)] == [1, 2]
            with pytest.raises(LogRefused, match="2 entries; update the last one"):
                await its.add_execution_log_entry(long)
            stored = [len(one.out.encode()) for one in await store.logs(1) or []]
            assert stored == [pytest.approx(MAX_OUTPUT_BYTES, abs=8)] * 2

    run(main())


def test_an_attempt_that_lost_its_record_writes_no_log(place: Place, run: Run) -> None:
    place.add("a.py")
    entry = ExecutionLogEntry(key="step", start_time=AT)

    async def main() -> None:
        async with opened(place) as store:
            _, its = await attempt(store)
            assert await its.add_execution_log_entry(entry) == 1
            place.sql("UPDATE uploads SET state = 'queued'")
            with pytest.raises(LogRefused):
                await its.add_execution_log_entry(entry)
            (again,) = await claimed(store, token=str(uuid4()))
            assert again.record.execution_logs == []
            with pytest.raises(LogRefused):
                await its.update_execution_log_entry(1, entry)
            assert await store.logs(1) == []

    run(main())


def test_what_is_no_entry_is_refused_before_any_sql(on_sqlite: Place, run: Run) -> None:
    on_sqlite.add("a.py")

    async def main() -> None:
        async with opened(on_sqlite) as store:
            _, its = await attempt(store)
            with pytest.raises(LogRefused, match="got a dict; use an ExecutionLogEntry"):
                await its.add_execution_log_entry({"key": "x"})  # type: ignore[arg-type]
            naive = AT.replace(tzinfo=None)
            with pytest.raises(LogRefused, match="has no time zone"):
                await its.add_execution_log_entry(ExecutionLogEntry(key="x", start_time=naive))

    run(main())


def test_what_a_transactional_handler_wrote_is_there_only_if_it_succeeded(on_postgres: Place, run: Run) -> None:
    on_postgres.add("good.py", "bad.py", "later.py")
    on_postgres.sql("DROP TABLE IF EXISTS symbols; CREATE TABLE symbols (path text)")

    async def handle(ctx: Attempt[Any], record: Upload) -> None:
        await ctx.connection.execute("INSERT INTO symbols VALUES (%s)", [record.path])
        await ctx.store.add_execution_log_entry(ExecutionLogEntry(key=record.path, start_time=AT))
        if record.path == "bad.py":
            raise ValueError("no")
        if record.path == "later.py":
            await ctx.store.requeue(record, 60)

    async def main() -> None:
        async with opened(on_postgres, transactional=True) as store:
            await worked_off(store, handle)
            assert [one.key for one in await store.logs(2) or []] == ["bad.py"]

    run(main())
    assert on_postgres.states() == ["completed", "failed", "queued"]
    assert on_postgres.sql("SELECT path FROM symbols ORDER BY path") == [("good.py",), ("later.py",)]


class Shut(TableStore[Any]):
    """Its first transaction cannot begin."""

    shut = True

    def around(self, attempt: Attempt[Any]) -> Any:
        return self._refused() if self.shut else super().around(attempt)

    @asynccontextmanager
    async def _refused(self) -> AsyncIterator[None]:
        if self.shut:
            self.shut = False
            raise StoreUnreachable("somebody else's transaction has held it locked")
        yield


def test_a_transaction_that_cannot_begin_costs_no_attempt(
    on_postgres: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "ENCLOSE_RETRY_SECONDS", 3600.0)
    on_postgres.add("a.py")
    started: list[str] = []

    async def handle(ctx: Attempt[Any], record: Upload) -> None:
        started.append(record.path)

    async def main() -> None:
        async with Shut(on_postgres.url, options(transactional=True)) as store:
            await worked_off(store, handle)
            assert started == []
            assert on_postgres.sql("SELECT state, num_failures, num_resets FROM uploads") == [("queued", 0, 0)]
            on_postgres.sql("UPDATE uploads SET process_after = NULL")
            await worked_off(store, handle)

    run(main())
    assert on_postgres.states() == ["completed"]
