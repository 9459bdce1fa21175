"""The queue of a job that an App enqueues: what the call says, else what the task declares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stowhand import App, Context, NewJob
from tests.conftest import Run


@pytest.fixture
def app() -> Iterator[App]:
    app = App("memory://")

    @app.task(queue="mail")
    def send() -> None: ...

    @app.task
    def plain() -> None: ...

    @app.task
    def parent(ctx: Context) -> None:
        ctx.enqueue_after(NewJob(task="send"))

    app.sync.install()
    yield app
    app.sync.close()


def test_a_job_by_the_name_of_a_task_is_in_the_queue_of_the_task(app: App) -> None:
    sync = app.sync
    jobs = [
        sync.enqueue(NewJob(task="send")),
        *sync.add_jobs([NewJob(task="send")]),
        sync.get(sync.enqueue_many([NewJob(task="send")])[0]),
        sync.add_job("send"),
    ]
    assert [job.queue for job in jobs if job is not None] == ["mail"] * len(jobs)
    assert sync.enqueue(NewJob(task="plain")).queue == "default"
    assert sync.enqueue(NewJob(task="send", queue="bulk")).queue == "bulk"
    assert sync.enqueue(NewJob(task="of another program")).queue == "default"


def test_a_job_that_a_task_enqueues_is_in_the_queue_of_its_task(app: App, run: Run) -> None:
    async def scenario() -> None:
        await app.enqueue(NewJob(task="parent"))
        await app.worker(once=True, tasks=["parent"]).run()
        (job,) = await app.list()
        assert (job.task, job.queue) == ("send", "mail")

    run(scenario())
