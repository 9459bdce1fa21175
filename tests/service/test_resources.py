"""What tasks ask for, in real processes: opened once in each, and only what is needed in that of a suspect."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.app.start import open_installed
from stowhand.errors import ResourceUnavailable
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import ClaimRequest
from stowhand.service import quarantine_child
from stowhand.service.quarantine import Assignment, ChildAnswer, ChildSetup
from stowhand.service.store_opener import store_of
from stowhand.service.task_loader import load_tasks, make_handler
from tests.service.processes import Workers, enqueue_suspect, job_of, with_store

APP = ("--app", "tests.service.resourceful_work:app")


class Place:
    def __init__(self, folder: Path) -> None:
        self.notes, self.unopenable = folder / "notes", folder / "unopenable"

    @property
    def said(self) -> list[str]:
        return self.notes.read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    place.notes.touch()
    monkeypatch.setenv("NOTES", str(place.notes))
    monkeypatch.setenv("UNOPENABLE", str(place.unopenable))
    return place


def enqueue(url: str, *jobs: NewJob) -> list[int]:
    async def add(store: QueueStore) -> list[int]:
        return await store.jobs.enqueue_many(jobs)

    return with_store(url, add)


def test_the_child_of_a_suspect_opens_only_the_resources_of_its_job(sqlite_workers: Workers, place: Place) -> None:
    job_id = enqueue_suspect(sqlite_workers.url, NewJob(task="judge"))
    assert sqlite_workers.start(*APP, "--once").wait(60) == 0
    assert job_of(sqlite_workers.url, job_id).state is State.COMPLETED
    child = [words.partition(" ")[2] for words in place.said if words.startswith("quarantine_child")]
    assert child == ["opens model", "handle", "judges with model", "closes model"], "hooks run beside the worker"
    worker = [words.partition(" ")[2] for words in place.said if words.startswith("worker")]
    assert worker == [
        *("opens client", "opens model", "pre_handle", "post_handle"),
        *("pre_handle", "handle", "fetches with client", "post_handle", "closes model", "closes client"),
    ]

    async def followers(store: QueueStore) -> list[int]:
        return [one.priority for one in await store.inspect.list(JobFilter(task="fetch", states=tuple(State)))]

    assert with_store(sqlite_workers.url, followers) == [1], "on_enqueue, in the child"


def test_a_child_that_cannot_open_a_resource_starts_no_job(tmp_path: Path, place: Place) -> None:
    """What is raised before there is an answer gives the job back: test_quarantine.py."""
    place.unopenable.write_text("worker")
    settings = WorkerSettings(
        store=StoreSettings(connection=ResolvedStore(f"sqlite:///{tmp_path}/x.db", "test")),
        app="tests.service.resourceful_work:app",
    )

    async def story() -> None:
        store = store_of(settings.store)
        await open_installed(store)
        await store.jobs.enqueue(NewJob(task="judge"))
        (claim,) = await store.claim(ClaimRequest(worker="w", token="0" * 32, limit=1, lease=30))
        await store.close()
        assignment = Assignment(claim.record, claim.lease, None, None, keeps_progress=False)
        loaded = load_tasks(settings)
        handler = make_handler(loaded, settings, store, "w")
        server = quarantine_child._JobRunner(ChildSetup(settings.to_json(), "w", writing), settings)
        with pytest.raises(ResourceUnavailable, match="no model") as caught:
            await server._attempt(assignment, handler, handler.resources, None)
        server.report_unable(caught.value)

    reading, writing = os.pipe()
    asyncio.run(story())
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        (line,) = pipe.readlines()
    assert msgspec.json.decode(line, type=ChildAnswer).kind == "unable", "nothing has begun"


def test_a_middlewares_not_retryable_error_is_final_in_a_child_too(sqlite_workers: Workers, place: Place) -> None:
    job_id = enqueue_suspect(sqlite_workers.url, NewJob(task="hopeless"))
    assert sqlite_workers.start(*APP, "--once").wait(60) == 0
    assert job_of(sqlite_workers.url, job_id).state is State.FAILED


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_ends_at_the_start_with_the_resource_that_could_not_be_opened(
    sqlite_workers: Workers, place: Place, processes: str
) -> None:
    place.unopenable.write_text("worker")
    (job_id,) = enqueue(sqlite_workers.url, NewJob(task="judge"))
    process = sqlite_workers.start(*APP, "--processes", processes)
    assert process.wait(60) == 1
    assert "error: resource open_model could not be opened: ConnectionError: no model" in sqlite_workers.output()
    job = job_of(sqlite_workers.url, job_id)
    assert (job.state, job.attempts) == (State.QUEUED, 0)
    assert "worker closes client" in place.said


def test_each_child_of_a_supervisor_opens_its_own(sqlite_workers: Workers, place: Place) -> None:
    enqueue(sqlite_workers.url, NewJob(task="judge"))
    assert sqlite_workers.start(*APP, "--processes", "2", "--once").wait(60) == 0
    for words in ("opens model", "opens client", "closes model", "closes client"):
        assert place.said.count(f"worker {words}") == 2
