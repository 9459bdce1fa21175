"""A schema of another time: of before the first release, or upgraded or taken away while a worker runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand import App, Worker, WorkerOptions
from stowhand.errors import SchemaError, SchemaMissing, SchemaOutdated, SchemaTooNew, StoreError
from stowhand.jobs.job import Job
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.queue_store import QueueStore
from stowhand.runner import make_worker_utils, quick_add_job, run_migrations
from stowhand.runner.options import RunnerOptions
from stowhand.worker import claims, resetter
from stowhand.worker.host import Host, Timings
from tests.conftest import Run
from tests.support.made_up import NUMBER, is_sqlite, one_more, schema_of


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """A statement on the database; {ledger}: the table of migrations, with the column {number}."""
    if is_sqlite(url):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            return file.execute(statement.format(ledger="stowhand_schema", number="version")).fetchall()
    with psycopg.connect(url) as connection:
        done = connection.execute(statement.format(ledger="stowhand.applied_migrations", number="id").encode())
        return done.fetchall() if done.description else []


async def apply_a_newer_migration(url: str, folder: Path, *, breaking: bool) -> None:
    text = "-- breaking\n" * breaking + "ALTER TABLE {live} ADD COLUMN made_up TEXT;\n"
    async with schema_of(url, one_more(url, folder, text)) as newer:
        assert (await newer.install()).installed == NUMBER


async def until_empty(store: QueueStore) -> None:
    for _ in range(1000):
        if not await store.inspect.list():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the job did not run")


def new_app(url: str) -> App:
    app = App(url)

    @app.task
    async def idle() -> None:
        pass

    return app


def test_a_worker_exits_after_a_newer_version_has_made_a_breaking_change(
    url: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resetter, "CHECK_INTERVAL_SECONDS", 0.0)

    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        worker = app.worker(sweep_interval=0.05)
        await apply_a_newer_migration(url, tmp_path / "newer", breaking=True)
        with pytest.raises(SchemaTooNew, match="101"):
            await worker.run()
        await app.close()

    run(story())


def test_a_worker_continues_beside_a_newer_version_without_breaking_changes(url: str, tmp_path: Path, run: Run) -> None:
    async def story() -> None:
        app = new_app(url)
        store = await app.open(install=True)
        worker = app.worker(poll_interval=0.05)
        running = asyncio.create_task(worker.run())
        await apply_a_newer_migration(url, tmp_path / "newer", breaking=False)
        heartbeats = store.heartbeats()
        await heartbeats.check()
        await heartbeats.close()
        await quick_add_job({"connection_string": url}, "idle")
        await until_empty(store)
        worker.stop()
        await running
        later = new_app(url)
        status = await (await later.open(install=True)).schema.status()
        assert (status.installed, status.expected, status.breaking) == (NUMBER, NUMBER - 1, False)
        await later.close()
        await app.close()

    run(story())


def test_a_worker_whose_schema_was_removed_ends_with_a_message(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIMS_WITHOUT_SCHEMA", 2)

    async def idle(attempt: Attempt[Job], job: Job) -> None: ...

    async def story() -> None:
        app = new_app(url)
        store = await app.open(install=True)
        worker = Worker(store, idle, WorkerOptions(poll_interval=0.05), host=Host(timings=Timings(final_timeout=0.1)))
        await store.schema.uninstall()
        with pytest.raises(SchemaMissing):
            await worker.run()
        await app.close()

    run(story())


def test_a_newer_breaking_schema_is_neither_installed_over_nor_enqueued_into(
    url: str, tmp_path: Path, run: Run
) -> None:
    async def story() -> None:
        app = new_app(url)
        store = await app.open(install=True)
        await apply_a_newer_migration(url, tmp_path / "newer", breaking=True)
        options: RunnerOptions = {"connection_string": url}
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            store.schema.install,
            store.schema.plan,
            partial(run_migrations, **options),
            partial(make_worker_utils, **options),
            partial(quick_add_job, options, "idle"),
        )
        for call in calls:
            with pytest.raises(SchemaTooNew, match="101"):
                await call()
        assert list(await store.inspect.list()) == []
        await app.close()

    run(story())


def test_utils_made_before_a_newer_breaking_schema_do_not_migrate_it(url: str, tmp_path: Path, run: Run) -> None:
    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        async with await make_worker_utils(connection_string=url) as utils:
            await apply_a_newer_migration(url, tmp_path / "newer", breaking=True)
            with pytest.raises(SchemaTooNew, match="101"):
                await utils.migrate()
        await app.close()

    run(story())


BEFORE = {
    "an earlier number": "UPDATE {ledger} SET {number} = 35",
    "no fingerprint": "ALTER TABLE {ledger} DROP COLUMN fingerprint",
    "another baseline": "UPDATE {ledger} SET fingerprint = 'another'",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_schema_from_before_the_first_release_is_refused_by_every_command(url: str, before: str, run: Run) -> None:
    async def story() -> None:
        app = new_app(url)
        store = await app.open(install=True)
        await app.close()
        execute(url, before)
        app = new_app(url)
        store = app.any_store()
        options: RunnerOptions = {"connection_string": url}
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            store.open,
            store.schema.install,
            store.schema.plan,
            store.schema.status,
            partial(app.open, install=True),
            partial(run_migrations, **options),
            partial(make_worker_utils, **options),
            partial(quick_add_job, options, "idle"),
        )
        for call in calls:
            with pytest.raises(SchemaError, match=r"before the first release.*then run `stowhand migrate`") as refused:
                await call()
            assert type(refused.value) is SchemaError, "the others say that `stowhand migrate` is enough, or install"
            assert str(refused.value).count(". ") == 0
        await store.schema.uninstall()
        await store.schema.install()
        await store.open()
        await store.close()

    run(story())


def test_a_migration_that_is_interrupted_half_way_leaves_nothing_and_is_repeated(
    url: str, tmp_path: Path, run: Run
) -> None:
    first = "ALTER TABLE {live} ADD COLUMN made_up TEXT;\n"

    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        broken = one_more(
            url, tmp_path / "broken", first + "CREATE INDEX made_up ON {live} (there_is_no_such_column);\n"
        )
        async with schema_of(url, broken) as schema:
            with pytest.raises(StoreError):
                await schema.install()
            assert (await schema.status()).installed == NUMBER - 1
        whole = one_more(url, tmp_path / "whole", first + "CREATE INDEX made_up ON {live} (made_up);\n")
        async with schema_of(url, whole) as schema:
            assert "made_up" in await schema.plan()
            assert (await schema.install()).installed == NUMBER
            assert await schema.plan() == ""
            assert await schema.foreign_changes() == []
        await app.close()

    run(story())


def test_two_programs_may_apply_one_migration_at_once(url: str, tmp_path: Path, run: Run) -> None:
    more = one_more(url, tmp_path / "more", "ALTER TABLE {live} ADD COLUMN made_up TEXT;\n")

    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        async with schema_of(url, more) as one, schema_of(url, more) as other:
            statuses = await asyncio.gather(*(schema.install() for schema in (one, other) * 4))
        assert {status.installed for status in statuses} == {NUMBER}
        assert execute(url, "SELECT {number} FROM {ledger} ORDER BY 1") == [(NUMBER - 1,), (NUMBER,)]
        await app.close()

    run(story())


def test_a_program_that_needs_a_later_migration_names_the_command(url: str, tmp_path: Path, run: Run) -> None:
    more = one_more(url, tmp_path / "more", "ALTER TABLE {live} ADD COLUMN made_up TEXT;\n")

    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        async with schema_of(url, more) as schema:
            status = await schema.status()
        assert (status.installed, status.expected) == (NUMBER - 1, NUMBER)
        with pytest.raises(SchemaOutdated, match="has number 100, this version needs 101: run `stowhand migrate`"):
            more.check(status, "the schema")
        await app.close()

    run(story())
