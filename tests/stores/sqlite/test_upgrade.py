"""A file of version 1 is refused until it is upgraded; then its jobs, its leases and its history are all there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from stowhand.clock import wall_clock
from stowhand.errors import SchemaOutdated
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.queue_store import JobFilter, Reschedule, Tick
from stowhand.protocols.store import Verdict
from stowhand.stores.sqlite.queue import SqliteStore, claim, schema
from tests.conftest import Run
from tests.stores.sqlite.programs import request


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """As version 1 made it: with no statement of a later migration."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        for statement in schema.migration(1):
            connection.execute(statement)
        connection.execute("INSERT INTO stowhand_schema (version, applied_at) VALUES (1, 0)")
        connection.commit()
    return path


@pytest.fixture
def used(old: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Lease, Sequence[Job]]:
    """A life under version 1: one job of every kind, one of them running."""

    async def live() -> tuple[Lease, Sequence[Job]]:
        store = SqliteStore(old)
        await store.jobs.enqueue_many([NewJob(task="t", queue="q", key=f"k{n}", delay=60.0 * n) for n in range(2)])
        done = await store.jobs.enqueue(NewJob(task="done"))
        (claim,) = await store.claim(request(tasks=("done",)))
        await store.settle([(claim.lease, COMPLETED)])
        assert done.id == claim.lease.job_id
        (running,) = await store.claim(request(tasks=("t",)))
        jobs = await store.inspect.list(JobFilter(states=tuple(State)))
        await store.close()
        return running.lease, jobs

    with monkeypatch.context() as version_1:
        version_1.setattr(schema, "VERSION", 1)
        version_1.setattr(claim, "_paused", lambda connection: set())  # nothing was paused then, and no table of it
        lease, jobs = run(live())
    return old, lease, jobs


def test_an_older_file_is_refused_with_the_command_to_run(old: Path, run: Run) -> None:
    async def refused() -> None:
        store = SqliteStore(old)
        for attempt in (store.open, lambda: store.jobs.enqueue(NewJob(task="t")), store.timetable.known_items):
            with pytest.raises(
                SchemaOutdated, match=f"its schema is 1, this package needs {schema.VERSION}: run `stowhand migrate`"
            ):
                await attempt()
        assert "stowhand_ticks" in await store.schema.plan()
        assert "stowhand_flow_jobs" in await store.schema.plan()
        assert "stowhand_paused" in await store.schema.plan()
        assert "CREATE TABLE stowhand_jobs" not in await store.schema.plan()
        await store.close()

    run(refused())


def test_an_upgrade_keeps_every_job_and_every_lease(used: tuple[Path, Lease, Sequence[Job]], run: Run) -> None:
    path, lease, jobs = used

    async def upgrade() -> None:
        store = SqliteStore(path)
        status = await store.schema.install()
        assert (status.installed, status.expected, status.breaking) == (schema.VERSION, schema.VERSION, False)
        assert await store.schema.plan() == ""
        assert await store.inspect.list(JobFilter(states=tuple(State))) == jobs
        await store.operate.pause_queue("q")
        assert await store.settle([(lease, COMPLETED)]) == [Verdict.SETTLED]
        (waiting,) = await store.inspect.list(JobFilter())
        await store.admin.reschedule_jobs([waiting.id], Reschedule(run_at=wall_clock()))
        assert list(await store.claim(request())) == [], "what was there before obeys a pause"
        await store.operate.resume_queue("q")
        (claim,) = await store.claim(request())
        assert claim.lease.job_id == waiting.id
        at = wall_clock().replace(second=0, microsecond=0)
        (entered,) = await store.timetable.schedule([Tick(identifier="i", at=at, job=NewJob(task="t"), spec="s")])
        assert entered.mine
        await store.close()

    run(upgrade())


def test_many_upgrades_at_once_make_one(used: tuple[Path, Lease, Sequence[Job]], run: Run) -> None:
    path, _, jobs = used

    async def upgrade() -> None:
        stores = [SqliteStore(path) for _ in range(6)]
        statuses = await asyncio.gather(*(store.schema.install() for store in stores))
        assert {status.installed for status in statuses} == {schema.VERSION}
        assert await stores[0].inspect.list(JobFilter(states=tuple(State))) == jobs
        for store in stores:
            await store.close()

    run(upgrade())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version, breaking FROM stowhand_schema ORDER BY 1").fetchall() == [
            (1, 0),
            (2, 0),
            (3, 0),
            (4, 0),
            (5, 0),
            (6, 0),
            (7, 0),
            (8, 1),
            (9, 0),
        ]


def test_uninstalling_takes_the_crontab_and_the_ledger_along(path: Path, run: Run) -> None:
    async def uninstall() -> None:
        store = SqliteStore(path)
        await store.timetable.register([("i", "s")])
        await store.schema.uninstall()
        await store.close()

    run(uninstall())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'stowhand%'").fetchall() == []
