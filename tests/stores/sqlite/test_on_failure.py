"""Jobs that failed by the hand of a program that does not know ``on_failure`` are told of by the next sweep."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import Fail, settle
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import Verdict
from stowhand.stores.sqlite.queue import SqliteStore
from tests.conftest import Run
from tests.stores.sqlite.programs import request

JOB = NewJob(task="t", on_failure=NewJob(task="told"))
FAILED = settle(Fail("no"), attempts=1, max_attempts=1, backoff=lambda attempt: 0.0)


def test_the_next_sweep_reports_jobs_that_foreign_statements_failed(path: Path, run: Run) -> None:
    async def live() -> None:
        store = SqliteStore(path)
        await store.schema.install()
        job, gone = [await store.jobs.enqueue(JOB) for _ in range(2)]
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE stowhand_jobs SET state = 'failed', finished_at = 0, last_error = 'by hand'")
            connection.execute("DELETE FROM stowhand_jobs WHERE id = ?", (gone.id,))
            connection.commit()
        assert await store.inspect.list(JobFilter(task="told")) == []
        heartbeats = store.heartbeats()
        for _ in range(2):
            await heartbeats.reset_stalled(1.0)
            (told,) = await store.inspect.list(JobFilter(task="told"))
            assert told.payload == {
                "job_id": job.id,
                "task": "t",
                "arguments": {},
                "error_class": None,
                "error": "by hand",
            }
        await heartbeats.close()
        await store.close()

    run(live())


def test_a_trigger_that_refuses_the_report_does_not_undo_the_failure(path: Path, run: Run) -> None:
    async def live() -> None:
        store = SqliteStore(path)
        await store.schema.install()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "CREATE TRIGGER mine BEFORE INSERT ON stowhand_jobs WHEN NEW.task = 'told'"
                " BEGIN SELECT RAISE(ABORT, 'nobody is to be told'); END"
            )
        job = await store.jobs.enqueue(JOB)
        (claim,) = await store.claim(request())
        assert await store.settle([(claim.lease, FAILED)]) == [Verdict.SETTLED]
        failed = await store.jobs.get(job.id)
        assert failed is not None
        assert failed.state is State.FAILED
        assert str(failed.last_error).startswith("no\non_failure could not be enqueued: ")
        assert "nobody is to be told" in str(failed.last_error)
        await store.close()

    run(live())
