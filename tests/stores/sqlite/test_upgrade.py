"""A file of version 1 is refused until it is upgraded; then its jobs, its leases and its history are all there."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
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
from stowhand.stores.sqlite.queue import SqliteStore, moment, schema
from stowhand.stores.sqlite.queue.rows import to_job
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


LIFE = """
INSERT INTO stowhand_jobs (task, payload, queue, priority, run_at, max_attempts, key, created_at, updated_at) VALUES
    ('t', '{}', 'q', 0, :now, 25, 'k0', :now, :now),
    ('t', '{}', 'q', 0, :now + 60000000, 25, 'k1', :now, :now),
    ('done', '{}', NULL, 0, :now, 25, NULL, :now, :now);
UPDATE stowhand_jobs
SET state = 'processing', attempts = 1, epoch = 1, token = :token, worker = 'w', started_at = :now, lease_boot = :boot,
    lease_until = :ticks + 30000000
WHERE id = 1;
INSERT INTO stowhand_history
    (id, task, payload, state, priority, run_at, attempts, max_attempts, resets, revision, created_at, updated_at,
    started_at, finished_at, cancel_requested, epoch)
SELECT id, task, payload, 'completed', priority, run_at, 1, max_attempts, 0, 0, created_at, updated_at, :now, :now, 0, 1
FROM stowhand_jobs WHERE id = 3;
DELETE FROM stowhand_jobs WHERE id = 3
"""


@pytest.fixture
def used(old: Path) -> tuple[Path, Lease, Sequence[Job]]:
    """A life under version 1: one job of every kind, one of them running."""
    now, token = moment.clock(None)(), str(uuid.uuid4())
    given = {"now": now.wall, "boot": now.boot, "ticks": now.ticks, "token": token}
    with closing(sqlite3.connect(old)) as connection:
        for statement in LIFE.split(";\n"):
            connection.execute(statement, given)
        connection.commit()
        shown = "SELECT * FROM stowhand_live UNION ALL SELECT * FROM stowhand_past ORDER BY id"
        jobs = [to_job((*row, row[19], None, None)) for row in connection.execute(shown)]
    return old, Lease(1, token, 1), jobs


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
            (version, int(version == 8)) for version in schema.VERSIONS
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
