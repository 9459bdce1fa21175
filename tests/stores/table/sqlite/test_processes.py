"""Several programs on one file, in either journal mode: nothing is claimed twice, nothing is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import Pulse
from stowhand.stores.database import sqlite_connection
from stowhand.stores.sqlite.table import heartbeats as module
from tests.conftest import Run
from tests.stores.table.sqlite.application import Application, asking, claimed, keys
from tests.stores.table.sqlite.programs import line, start, tell

Made = Callable[..., Application]
both = pytest.mark.parametrize("journal", ["delete", "wal"])


@both
def test_processes_never_claim_the_same_record(made: Made, journal: str) -> None:
    app = made(journal=journal)
    ids = [app.add() for _ in range(45)]
    workers = [start("drain", app.path) for _ in range(2)]
    for worker in workers:
        tell(worker)
    rows = [Counter(map(int, worker.communicate(timeout=60)[0].split())) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert all(rows), "one of the two had nothing to do, so this proved nothing"
    assert rows[0] + rows[1] == Counter(ids)
    assert set(app.states()) == {"completed"}
    assert app.sql("PRAGMA journal_mode") == [(journal,)]


def test_what_a_killed_process_had_claimed_comes_back(app: Application, run: Run) -> None:
    key = app.add()
    worker = start("hold", app.path)
    tell(worker)
    assert line(worker) == str(key)
    worker.kill()
    worker.communicate()
    assert app.states() == ["processing"]

    async def scenario() -> None:
        table = await app.served(pinned=False, stalled_max_age=0.05)
        heartbeats = table.heartbeats()
        await asyncio.sleep(0.06)
        back = await heartbeats.reset_stalled(0.0)
        assert [(job.job_id, job.worker, job.state) for job in back] == [(key, "doomed", "queued")]
        assert await keys(table) == [key]
        await heartbeats.close()

    run(scenario())


@both
def test_an_applications_transaction_is_waited_for_and_never_undone(made: Made, run: Run, journal: str) -> None:
    app = made(journal=journal)
    key = app.add()
    writer = start("write", app.path)

    async def scenario() -> None:
        table = await app.served(pinned=False)
        # Looking needs no lock.
        assert await table.queries.exists([State.QUEUED])
        claiming = asyncio.create_task(claimed(table))
        await asyncio.sleep(0.05)
        assert not claiming.done()
        await asyncio.to_thread(writer.communicate, "\n")
        assert (await claiming).lease.job_id == key
        assert await keys(table) == [key + 1]

    run(scenario())


@both
def test_a_lock_that_is_held_for_too_long_is_reported(
    made: Made, run: Run, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_DEADLINE_SECONDS", 0.1)
    app = made(journal=journal)
    app.add()
    writer = start("write", app.path)

    async def scenario() -> None:
        table = await app.served(pinned=False)
        heartbeats = table.heartbeats()
        with pytest.raises(StoreUnreachable) as raised:
            await table.claim(asking())
        if sys.platform == "linux":
            assert f"process {writer.pid}" in str(raised.value)
        with pytest.raises(StoreUnreachable):
            await heartbeats.abandon("00000000-0000-4000-8000-000000000000")
        await heartbeats.close()

    run(scenario())
    writer.communicate("\n")
    assert app.states() == ["queued", "queued"]


def test_a_commit_waits_for_a_reader_without_write_ahead_logging(app: Application, run: Run) -> None:
    key = app.add()
    app.sql("BEGIN")
    app.sql("SELECT * FROM uploads")

    async def scenario() -> None:
        table = await app.served(pinned=False)
        claiming = asyncio.create_task(claimed(table))
        await asyncio.sleep(0.15)
        assert not claiming.done()
        app.sql("COMMIT")
        taken = await claiming
        assert taken.lease.job_id == key
        assert await table.settle([(taken.lease, COMPLETED)]) == ["settled"]

    run(scenario())


@both
def test_a_worker_is_woken_by_a_record_that_is_due_and_by_no_other_commit(made: Made, run: Run, journal: str) -> None:
    app = made(journal=journal)
    app.raw.executescript("CREATE TABLE other (n INTEGER)")

    async def scenario() -> None:
        table = await app.served(pinned=False)
        waiting = asyncio.create_task(table.wait(20))
        for n in range(3):
            app.sql("INSERT INTO other VALUES (?)", n)
            app.add(process_after="2999-01-01")
            await asyncio.sleep(0.03)
        assert not waiting.done()
        # Somebody who is just writing is not news, and no trouble.
        app.sql("BEGIN EXCLUSIVE")
        await asyncio.sleep(0.03)
        assert not waiting.done()
        app.sql("INSERT INTO uploads (size) VALUES (1)")
        app.sql("COMMIT")
        assert await waiting
        assert len(await keys(table)) == 1
        # Its own commits are not news either.
        assert not await table.wait(0.05)

    run(scenario())


def test_an_idle_claim_takes_no_lock(app: Application, run: Run) -> None:
    app.add(process_after="2999-01-01")

    async def scenario() -> None:
        table = await app.served(pinned=False)
        app.sql("BEGIN IMMEDIATE")
        assert await keys(table) == []
        heartbeats = table.heartbeats()
        assert await heartbeats.reset_stalled(0.0) == []
        await heartbeats.maintain()
        await heartbeats.close()
        app.sql("ROLLBACK")

    run(scenario())


def test_a_reset_that_had_to_wait_lets_the_beats_go_first(
    app: Application, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LOCK_WAIT_SECONDS", 0.0)
    app.add(state="processing", last_heartbeat_at="2024-05-01 11:00:00")

    async def scenario() -> None:
        table = await app.served()
        heartbeats = table.heartbeats()
        assert await heartbeats.reset_stalled(0.0) == []
        monkeypatch.undo()
        assert len(await heartbeats.reset_stalled(0.0)) == 1
        await heartbeats.close()

    run(scenario())


@both
def test_a_reset_right_after_a_long_transaction_lets_the_beats_go_first(
    made: Made, run: Run, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    app = made(journal=journal)
    app.add()

    async def scenario() -> None:
        table = await app.served()
        taken = await claimed(table)
        app.sql("BEGIN IMMEDIATE")
        app.later(40)
        theirs, ours = table.heartbeats(), table.heartbeats()
        beaten = threading.Event()

        async def beat() -> Pulse:
            try:
                return await theirs.beat([taken.lease], 30.0)
            finally:
                await theirs.close()
                beaten.set()

        class Clock(SystemClock):
            async def sleep(self, seconds: float) -> None:
                assert seconds >= 0.1
                assert await asyncio.to_thread(beaten.wait, 20)

        monkeypatch.setattr(module, "SYSTEM_CLOCK", Clock())
        beating = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(beat())))
        await asyncio.sleep(0.05)
        app.sql("COMMIT")
        assert await ours.reset_stalled(0.0) == []
        assert (await beating).lost == frozenset()
        await ours.close()

    run(scenario())


@both
def test_a_file_that_is_put_in_the_place_of_another_is_served(made: Made, run: Run, journal: str) -> None:
    app, other = made(journal=journal), made(journal=journal)
    app.add()
    for _ in range(2):
        other.add(process_after="2024-05-02")

    async def scenario() -> None:
        table = await app.served()
        taken, heartbeats = await claimed(table), table.heartbeats()
        assert (await heartbeats.beat([taken.lease], 30.0)).lost == frozenset()
        waiting = asyncio.create_task(table.wait(20))
        await asyncio.sleep(0.03)
        other.raw.close()
        app.raw.close()
        for name in ("", "-wal", "-shm"):
            app.path.with_name(app.path.name + name).unlink(missing_ok=True)
        for read in (lambda: table.queries.exists([State.QUEUED]), table.queries.next_due):
            with pytest.raises(StoreUnreachable, match="does not exist"):
                await read()
        with pytest.raises(StoreUnreachable, match="does not exist"):
            await waiting
        other.path.rename(app.path)
        app.raw = sqlite3.connect(app.path, isolation_level=None)
        app.later(86_400)
        assert (await heartbeats.beat([taken.lease], 30.0)).lost == {(taken.lease.job_id, taken.lease.token)}
        assert await table.settle([(taken.lease, COMPLETED)]) == ["lost"]
        assert await keys(table) == [1, 2]
        await heartbeats.close()

    run(scenario())
    assert app.states() == ["processing", "processing"]


def test_a_file_that_is_not_there_is_not_made(app: Application, run: Run) -> None:
    app.raw.close()
    app.path.unlink()

    async def scenario() -> None:
        table = app.table()
        with pytest.raises(StoreUnreachable, match="the application creates the file"):
            await table.open()
        assert not app.path.exists()
        app.path = app.path.with_name("x" * 300)
        with pytest.raises(ConfigurationError, match="cannot be read: File name too long"):
            await app.table().open()

    run(scenario())
    app.raw = sqlite3.connect(":memory:")
