"""A schema that changes under a running worker: taken away, or upgraded beyond what the worker knows."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial

import psycopg
import pytest

from stowhand import App, Worker, WorkerOptions
from stowhand.errors import SchemaMissing, SchemaTooNew
from stowhand.jobs.job import Job
from stowhand.protocols.handler import Attempt
from stowhand.runner import make_worker_utils, quick_add_job, run_migrations
from stowhand.runner.options import WorkerUtilsOptions
from stowhand.worker import claims, sweeper
from stowhand.worker.internals import Host
from stowhand.worker.timings import Timings
from tests.conftest import Run


def apply_a_newer_migration(url: str, *, breaking: bool) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute("INSERT INTO stowhand_schema (version, breaking, applied_at) VALUES (999, ?, 0)", (breaking,))
    else:
        with psycopg.connect(url) as connection:
            connection.execute("insert into stowhand.applied_migrations (id, breaking) values (999, %s)", (breaking,))


def new_app(url: str) -> App:
    app = App(url)

    @app.task
    async def idle() -> None:
        pass

    return app


def test_a_worker_leaves_when_a_newer_version_has_broken_with_it(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "CHECK_EVERY", 0.0)

    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        worker = app.worker(sweep_interval=0.05)
        apply_a_newer_migration(url, breaking=True)
        with pytest.raises(SchemaTooNew, match="999"):
            await worker.run()
        await app.close()

    run(story())


def test_a_newer_version_that_breaks_nothing_is_no_reason_to_leave(url: str, run: Run) -> None:
    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        apply_a_newer_migration(url, breaking=False)
        heartbeats = (await app.open()).heartbeats()
        await heartbeats.check()
        await heartbeats.close()
        await app.close()

    run(story())


def test_a_worker_whose_schema_was_taken_away_ends_and_says_so(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "SCHEMA_PATIENCE", 2)

    async def idle(attempt: Attempt[Job], job: Job) -> None: ...

    async def story() -> None:
        app = new_app(url)
        store = await app.open(install=True)
        worker = Worker(store, idle, WorkerOptions(poll_interval=0.05), host=Host(timings=Timings(last_pause=0.1)))
        await store.schema.uninstall()
        with pytest.raises(SchemaMissing):
            await worker.run()
        await app.close()

    run(story())


def test_a_newer_breaking_schema_is_neither_installed_over_nor_enqueued_into(url: str, run: Run) -> None:
    async def story() -> None:
        app = new_app(url)
        store = await app.open(install=True)
        apply_a_newer_migration(url, breaking=True)
        options: WorkerUtilsOptions = {"connection_string": url}
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            store.schema.install,
            store.schema.plan,
            partial(run_migrations, **options),
            partial(make_worker_utils, **options),
            partial(quick_add_job, options, "idle"),
        )
        for call in calls:
            with pytest.raises(SchemaTooNew, match="999"):
                await call()
        assert list(await store.inspect.list()) == []
        await app.close()

    run(story())


def test_utils_made_before_a_newer_breaking_schema_do_not_migrate_it(url: str, run: Run) -> None:
    async def story() -> None:
        app = new_app(url)
        await app.open(install=True)
        async with await make_worker_utils(connection_string=url) as utils:
            apply_a_newer_migration(url, breaking=True)
            with pytest.raises(SchemaTooNew, match="999"):
                await utils.migrate()
        await app.close()

    run(story())
