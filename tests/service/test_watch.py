"""``--watch``: the folder of tasks changes while a worker works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, TasksReloaded
from stowhand.jobs.job import Job, NewJob, State
from stowhand.observe.job_logger import job_logger
from stowhand.protocols.queue_store import QueueStore
from stowhand.service import file_watch
from stowhand.service import reloader as reloader_module
from stowhand.service.file_watch import WatchedPath, take_snapshot, watch_paths
from stowhand.service.task_loader import load_tasks
from stowhand.tasks.context import JobLogger
from stowhand.tasks.discovery import load_folder
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.registry import Registry
from stowhand.testing import MemoryStore
from stowhand.worker.host import Timings
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.service.processes import QUICK, Workers, wait_until_done, with_store
from tests.tasks.test_dispatch import attempt_of

LOADED = "Reloaded the tasks"


class Watching(Workers):
    """Workers of a folder, which is watched."""

    def __init__(self, url: str, folder: Path) -> None:
        self.tasks = folder / "tasks"
        super().__init__(url, folder, "--tasks", str(self.tasks), "-w")
        self.tasks.mkdir()

    def start(
        self, *options: str, program: Sequence[str] = ("stowhand.cli",), timings: Timings = QUICK, fork: bool = True
    ) -> subprocess.Popen[bytes]:
        process = super().start(*options, program=program, timings=timings, fork=fork)
        self.wait_for("looking for jobs")
        return process

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        """As an editor does it: a new file in the old one's place."""
        new = self.tasks / f".{name}.new"
        new.write_text(text)
        new.chmod(mode)
        new.rename(self.tasks / name)

    def add(self, *tasks: str) -> None:
        async def enqueue(store: QueueStore) -> None:
            for task in tasks:
                await store.jobs.enqueue(NewJob(task=task))

        with_store(self.url, enqueue)

    def results(self) -> list[str]:
        """Return the output of the tasks so far."""
        return [line.split("SAID ")[1] for line in self.output().splitlines() if "SAID " in line]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Changes on disk, which do not depend on the store."""
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Any:
    started = Watching(url, tmp_path)
    yield started
    started.destroy()


def saying(words: str) -> str:
    return f"async def task(payload, helpers): helpers.logger.info('SAID {words}')\n"


def test_new_jobs_get_the_new_code_and_the_worker_goes_on(workers: Watching) -> None:
    workers.write("hello.py", saying("one"))
    process = workers.start()
    workers.add("hello")
    workers.wait_for("SAID one")
    workers.write("hello.py", saying("two"))
    workers.wait_for(LOADED)
    workers.add("hello")
    workers.wait_for("SAID two")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not list(workers.tasks.rglob("*.pyc"))


def test_jobs_of_an_added_task_are_claimed_and_those_of_a_removed_task_wait(workers: Watching) -> None:
    workers.write("stays.py", saying("stays"))
    workers.write("goes.py", saying("goes"))
    workers.start()
    workers.add("added")
    (workers.tasks / "goes.py").unlink()
    workers.write("added.sh", "#!/bin/sh\necho SAID added\n", 0o755)
    workers.wait_for("SAID added")
    workers.add("goes", "stays")
    workers.wait_for("SAID stays")
    assert "SAID goes" not in workers.output()
    workers.write("goes.py", saying("back"))
    workers.wait_for("SAID back")
    wait_until_done(workers.url, 10)


def test_a_broken_file_keeps_the_old_tasks_and_says_why(workers: Watching) -> None:
    workers.write("hello.py", saying("one"))
    workers.start()
    workers.write("hello.py", "async def task(payload, helpers:\n")
    workers.wait_for("Cannot reload tasks; keeping the loaded ones")
    workers.wait_for("hello.py: SyntaxError")
    workers.add("hello")
    workers.wait_for("SAID one")
    workers.write("hello.py", saying("two"))
    workers.wait_for(LOADED)
    workers.add("hello")
    workers.wait_for("SAID two")


def test_a_running_job_ends_with_the_code_it_began_with(workers: Watching, tmp_path: Path) -> None:
    go = tmp_path / "go"
    workers.write(
        "hello.py",
        f"import asyncio, os\nWORDS = 'one'\nasync def task(payload, helpers):\n    helpers.logger.info('SAID began')\n"
        f"    while not os.path.exists({str(go)!r}): await asyncio.sleep(0.02)\n"
        "    helpers.logger.info('SAID ' + WORDS)\n",
    )
    workers.start()
    workers.add("hello")
    workers.wait_for("SAID began")
    workers.write("hello.py", saying("two"))
    workers.wait_for(LOADED)
    go.touch()
    workers.wait_for("SAID one")
    counts = wait_until_done(workers.url, 10)
    assert counts[State.COMPLETED] == 1


def test_every_process_of_a_supervisor_reloads_and_the_crontab_is_read_again(workers: Watching, tmp_path: Path) -> None:
    workers.write("hello.py", saying("one"))
    crontab = tmp_path / "crontab"
    crontab.write_text("0 4 1 1 * hello ?id=first\n")
    process = workers.start("--processes", "2")
    workers.wait_for("'first'")
    _wait_for_twice(workers, "looking for jobs")
    workers.write("hello.py", saying("two"))
    crontab.write_text("0 4 1 1 * hello ?id=second\n")
    _wait_for_twice(workers, LOADED)
    workers.wait_for("'second'")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def _wait_for_twice(workers: Watching, words: str) -> None:
    deadline = time.monotonic() + 60
    while workers.output().count(words) < 2:
        assert time.monotonic() < deadline, workers.output()
        time.sleep(0.02)


def test_a_single_process_reads_the_crontab_again_too(workers: Watching, tmp_path: Path) -> None:
    workers.write("hello.py", saying("one"))
    crontab = tmp_path / "crontab"
    crontab.write_text("0 4 1 1 * hello ?id=first\n")
    workers.start()
    workers.wait_for("'first'")
    crontab.write_text("0 4 1 1 * hello ?id=second\n")
    workers.wait_for("'second'")


# -- what cannot be watched ------------------------------------------------------------------------


def settings(**details: Any) -> WorkerSettings:
    return WorkerSettings(store=StoreSettings(connection=ResolvedStore("sqlite:///x.db", "test")), **details)


def test_an_app_is_not_watched() -> None:
    with pytest.raises(ConfigurationError, match="--watch reloads a folder of tasks"):
        reloader_module.WatchedFiles(settings(watch=True, app="tests.service.work:app"))
    reloader_module.WatchedFiles(settings(app="tests.service.work:app"))


# -- looking ---------------------------------------------------------------------------------------


def test_a_snapshot_contains_only_relevant_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    before = take_snapshot(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / ".swp").write_text("x")
    assert take_snapshot(tmp_path) == before
    dangling, nowhere = tmp_path / "dangling", tmp_path / "nowhere"
    changes: list[Callable[[], object]] = [
        lambda: file.chmod(0o755),
        lambda: os.utime(file, ns=(1, 1)),
        lambda: (tmp_path / "b").mkdir(),
        lambda: (tmp_path / "b" / "c.py").write_text("1"),
        lambda: (tmp_path / "b" / "c.py").unlink(),
        lambda: (dangling.symlink_to(nowhere), nowhere.write_text("1")),  # type: ignore[func-returns-value]
    ]
    for change in changes:
        change()
        after = take_snapshot(tmp_path)
        assert after != before
        before = after
    assert take_snapshot(tmp_path / "missing") == {}
    assert list(take_snapshot(file)) == [""]


def test_a_change_between_the_first_load_and_the_first_check_is_noticed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "POLL_INTERVAL_SECONDS", 0.05)
    watched, seen = WatchedPath(tmp_path), []
    (tmp_path / "a.py").write_text("1")

    async def story() -> None:
        async with asyncio.timeout(25), watch_paths({watched: lambda names: seen.append(True)}):
            while not seen:
                await SystemClock().sleep(0.01)

    run(story())


def test_watching_ends_soon_and_leaves_nothing_behind(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "POLL_INTERVAL_SECONDS", 300.0)

    async def story() -> None:
        async with watch_paths({WatchedPath(tmp_path): lambda names: None}):
            await SystemClock().sleep(0.3)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(story())


def test_a_folder_that_is_moved_away_and_created_again_is_loaded(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "POLL_INTERVAL_SECONDS", 0.1)
    root = tmp_path / "tasks"
    folder_of(root, hello=giving("one"))
    value = settings(tasks=str(root), watch=True)
    changes, reloader = reloader_module.WatchedFiles(value), make_reloader(value)
    events: list[str | None] = []
    reloader._events.on(TasksReloaded, lambda event: events.append(event.problem))

    async def story() -> None:
        async with changes.reloading(reloader.reload), asyncio.timeout(25):
            root.rename(tmp_path / "old")
            while not any("no such folder of tasks" in (problem or "") for problem in events):
                await SystemClock().sleep(0.01)
            for words in ("two", "three", "four"):  # each is heard of, not only the first
                folder_of(root, hello=giving(words))
                while await reloader._handler.handle(attempt_of("hello"), attempt_of("hello").record) != words:
                    await SystemClock().sleep(0.01)

    run(story())
    reloader._handler.close()


# -- replacing -------------------------------------------------------------------------------------


def giving(words: str) -> str:
    return f"async def task(payload): return {words!r}"


def silent(job: Job) -> JobLogger:
    return job_logger("w", job.task, job.id)


def folder_of(root: Path, **files: str) -> Registry:
    root.mkdir(exist_ok=True)
    for file in root.iterdir():
        file.unlink()
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    registry = Registry()
    load_folder(root, registry)
    return registry


def test_a_job_of_a_removed_task_still_runs_with_its_old_code(tmp_path: Path) -> None:
    giving = "def task(payload): return {!r}"
    root = tmp_path / "tasks"
    handler = TaskHandler(
        folder_of(root, a=giving.format("a1"), b=giving.format("b1")),
        enqueue=MemoryStore().jobs.enqueue,
        logger_factory=silent,
    )

    def call(task: str) -> object:
        return asyncio.run(handler.handle(attempt_of(task), attempt_of(task).record))

    try:
        assert call("a") == "a1"
        handler.replace(folder_of(root, a=giving.format("a2")))
        assert (call("a"), call("b")) == ("a2", "b1"), "b was never called before it went"
        handler.replace(folder_of(root, b=giving.format("b3"), c=giving.format("c3")))
        assert (call("a"), call("b"), call("c")) == ("a2", "b3", "c3")
    finally:
        handler.close()


def test_old_modules_are_removed(tmp_path: Path) -> None:
    def loaded() -> set[str]:
        return {name for name in sys.modules if name.startswith("stowhand_tasks_")}

    (tmp_path / "a.py").write_text("def task(): ...")
    (tmp_path / "b.py").write_text("def task(): ...")
    before = loaded()
    value = settings(tasks=str(tmp_path))
    reloader = make_reloader(value)
    for number in range(8):
        (tmp_path / "a.py").write_text(f"def task(): {'1/0' if number else ...}")
        asyncio.run(reloader.reload())
        (tmp_path / "a.py").write_text("1/0")
        asyncio.run(reloader.reload())
    assert len(loaded() - before) == 4, "of this load and the one before it; nothing of those that failed"


def test_the_claimed_tasks_are_updated_with_a_reload(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("def task(): ...")
    value = msgspec.structs.replace(settings(tasks=str(tmp_path)), exclude_tasks=("a", "jobs:purge_completed"))
    events, reloads = Events(), list[TasksReloaded]()
    events.on(TasksReloaded, reloads.append)
    worker = Worker(MemoryStore(), TaskHandler(Registry(), enqueue=MemoryStore().jobs.enqueue, logger_factory=silent))
    reloader = make_reloader(value, events, worker)
    (tmp_path / "c.py").write_text("def task(): ...")
    asyncio.run(reloader.reload())
    assert worker._state.tasks == ("b", "c")
    (tmp_path / "a.py").unlink()
    asyncio.run(reloader.reload())
    assert worker._state.tasks == ("b", "c"), "a list that names what is gone changes nothing"
    (fine, refused) = reloads
    assert fine.problem is None
    assert "--exclude-task: no task 'a'" in str(refused.problem)


def make_reloader(
    given: WorkerSettings, events: Events | None = None, worker: Worker | None = None
) -> reloader_module.Reloader:
    loaded, store = load_tasks(given), MemoryStore()
    handler = TaskHandler(loaded.registry, enqueue=store.jobs.enqueue, logger_factory=silent)
    return reloader_module.Reloader(given, loaded, handler, worker or Worker(store, handler), events or Events())


def test_shared_modules_of_the_folder_are_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "_shared_words.py").write_text("WORDS = 'one'")
    (tmp_path / "a.py").write_text("import _shared_words\ndef task(payload): return _shared_words.WORDS")
    reloader = make_reloader(settings(tasks=str(tmp_path)))
    (tmp_path / "_shared_words.py").write_text("WORDS = 'number two'")
    asyncio.run(reloader.reload())
    assert asyncio.run(reloader._handler.handle(attempt_of("a"), attempt_of("a").record)) == "number two"
    reloader._handler.close()


SHARING = """
from contextlib import contextmanager
from stowhand import resource

@contextmanager
def words():
    {opening}
    yield "{words}"

def task(payload, helpers, *, got=resource(words)): return got
"""


def test_resources_of_new_code_are_opened_before_it_runs(tmp_path: Path) -> None:
    def write(words: str, opening: str = "") -> None:
        (tmp_path / "a.py").write_text(SHARING.format(words=words, opening=opening))

    write("one")
    reloader = make_reloader(settings(tasks=str(tmp_path)))
    handler, said = reloader._handler, list[TasksReloaded]()
    reloader._events.on(TasksReloaded, said.append)

    async def call() -> object:
        return await handler.handle(attempt_of("a"), attempt_of("a").record)

    async def story() -> None:
        resources = handler.resources
        assert resources is not None
        await resources.open(None, lambda error: None)
        assert await call() == "one"
        write("number two")
        await reloader.reload()
        assert await call() == "number two"
        write("number three", "1 / 0")
        await reloader.reload()
        assert await call() == "number two", "the old tasks stay"
        assert await resources.close(lambda: 60.0) == []
        handler.close()

    asyncio.run(story())
    assert [event.problem is None for event in said] == [True, False]
    assert "words could not be opened: ZeroDivisionError" in (said[1].problem or "")


def test_the_first_resource_of_a_worker_requires_a_restart(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def task(payload): return 'as before'")
    reloader = make_reloader(settings(tasks=str(tmp_path)))
    lines = list[TasksReloaded]()
    reloader._events.on(TasksReloaded, lines.append)
    (tmp_path / "a.py").write_text(SHARING.format(words="one", opening=""))
    asyncio.run(reloader.reload())
    assert "words is the first resource of this worker; restart the worker" in (lines[0].problem or "")
    assert asyncio.run(reloader._handler.handle(attempt_of("a"), attempt_of("a").record)) == "as before"
    reloader._handler.close()
