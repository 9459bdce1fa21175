"""A backup that is put in the place of the file beneath a worker: noticed, said, and worked on, or left alone."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from stowhand.app.start import report_listening
from stowhand.errors import SchemaError, SchemaMissing
from stowhand.events import Events, JobEnded, StoreCallFailed, StoreWarning
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.stores.sqlite.queue import SqliteStore
from stowhand.worker.worker import Worker
from tests.conftest import Run

PATIENCE = 10


def backed_up(path: Path) -> Path:
    """A sound copy of what the file holds now."""
    copy = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
    return copy


def remove_logs(path: Path) -> None:
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def content(path: Path) -> bytes:
    return path.read_bytes()


def restore(copy: Path, path: Path) -> None:
    remove_logs(path)
    copy.replace(path)


class AtWork:
    """A worker on the file, and what it says."""

    def __init__(self, path: Path) -> None:
        self.store, events = SqliteStore(path), Events()
        self.done: asyncio.Queue[int | str] = asyncio.Queue()
        self.warned: list[StoreWarning] = []
        self.trouble: asyncio.Queue[str] = asyncio.Queue()
        events.on(JobEnded, lambda event: self.done.put_nowait(event.job_id))
        events.on(StoreWarning, self.warned.append)
        events.on(StoreCallFailed, lambda event: self.trouble.put_nowait(event.error))
        self.worker = Worker(self.store, _nothing, WorkerOptions(poll_interval=60), events=events)
        report_listening(self.store, events, self.worker.id)


async def _nothing(ctx: Attempt[Job], job: Job) -> None:
    """Ends well."""


@asynccontextmanager
async def at_work(path: Path) -> AsyncIterator[AtWork]:
    stage = AtWork(path)
    await stage.store.open()
    running = asyncio.create_task(stage.worker.run())
    try:
        # All its connections are open: one that came between the two steps of `restore` would begin another -wal.
        while not await stage.store.inspect.workers():  # noqa: ASYNC110 - of a thread of its own
            await asyncio.sleep(0.01)
        yield stage
    finally:
        stage.worker.stop(now=True)
        await asyncio.wait([running])
        await stage.store.close()


def test_a_worker_continues_in_a_restored_file_and_reports_it_once(path: Path, run: Run) -> None:
    async def story() -> None:
        async with at_work(path) as stage:
            await stage.store.jobs.enqueue(NewJob(task="t"))
            await asyncio.wait_for(stage.done.get(), PATIENCE)
            restore(backed_up(path), path)
            others = SqliteStore(path)
            job = await others.jobs.enqueue(NewJob(task="t"))
            assert await asyncio.wait_for(stage.done.get(), PATIENCE) == job.id
            result = await others.jobs.get(job.id)
            assert result is not None
            assert result.state is State.COMPLETED
            await others.close()
            assert await stage.store.inspect.counts() == await SqliteStore(path).inspect.counts()
        (warned,) = stage.warned
        assert warned.store == f"sqlite:///{path}"
        assert "another file has replaced it" in warned.warning

    run(story())


def test_jobs_of_a_restored_backup_run_without_a_new_commit(path: Path, run: Run) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue(NewJob(task="t"))
        copy = backed_up(path)
        async with at_work(path) as stage:
            await asyncio.wait_for(stage.done.get(), PATIENCE)
            restore(copy, path)
            await asyncio.wait_for(stage.done.get(), PATIENCE)
            assert (await store.inspect.counts())[State.COMPLETED] == 1
        await store.close()

    run(story())


def test_a_file_with_the_log_of_a_replaced_file_is_not_opened(path: Path, run: Run) -> None:
    """SQLite would write the old log into the new file."""

    async def story() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue(NewJob(task="t"))
        copy = backed_up(path)
        before = content(copy)
        copy.replace(path)
        for use in (
            store.inspect.counts,
            lambda: store.jobs.enqueue(NewJob(task="t")),
            SqliteStore(path).inspect.counts,
        ):
            with pytest.raises(SchemaError, match="-wal of the old one"):
                await use()
        with pytest.raises(SchemaError, match="-wal of the old one"):
            await store.heartbeats().reset_stalled(0.0)
        assert content(path) == before
        remove_logs(path)
        assert (await store.inspect.counts())[State.QUEUED] == 1
        await store.close()

    run(story())


def test_a_deleted_file_is_noticed_at_once(path: Path, run: Run) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue(NewJob(task="t"))
        restore(path, path.with_name("elsewhere.db"))
        with pytest.raises(SchemaMissing, match="does not exist"):
            await store.inspect.counts()
        await store.close()

    run(story())
