"""Suspects run in processes of their own; one whose process cannot begin has killed nobody."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from stowhand.jobs.job import NewJob, State
from tests.service.processes import Workers, children_of, enqueue_suspect, job_of


def test_a_job_whose_child_cannot_begin_goes_back_as_it_was_until_one_can(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unloadable = tmp_path / "unloadable"
    monkeypatch.setenv("UNLOADABLE", str(unloadable))
    unloadable.touch()
    url = sqlite_workers.url
    job_id = enqueue_suspect(url, NewJob(task="innocent", max_resets=2))
    process = sqlite_workers.start("--app", "tests.service.fickle_work:app", "--log-level", "debug")
    sqlite_workers.wait_for("the process of its own could not begin: SystemExit: not now")
    sqlite_workers.wait_for("its child process could not begin")
    unloadable.unlink()
    sqlite_workers.wait_for(f"Completed task {job_id} (innocent)")
    process.terminate()
    assert process.wait(60) == 0
    job = job_of(url, job_id)
    assert (job.state, job.attempts) == (State.COMPLETED, 1), "with two resets of two a death would have failed it"
    assert "Fatal Python error" not in sqlite_workers.said()


def test_a_job_that_ends_its_child_after_it_has_begun_does_not_go_back_as_it_was(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNLOADABLE", str(tmp_path / "unloadable"))
    job_id = enqueue_suspect(sqlite_workers.url, NewJob(task="leaver", max_attempts=1, max_resets=2))
    process = sqlite_workers.start("--app", "tests.service.fickle_work:app", "--once")
    assert process.wait(60) == 0
    job = job_of(sqlite_workers.url, job_id)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert "could not begin" not in sqlite_workers.said()


def test_a_new_interpreter_has_its_job_and_the_pipe_for_its_answer(sqlite_workers: Workers, tmp_path: Path) -> None:
    """The other tests fork it, which proves nothing of its command line and its descriptors."""
    gate = tmp_path / "gate"
    job_id = enqueue_suspect(sqlite_workers.url, NewJob(task="gated", payload=f'{{"gate": "{gate}"}}'))
    process = sqlite_workers.start("--once", "--log-level", "debug", fork=False)
    sqlite_workers.wait_for("Started task")
    wanted = [sys.executable, "-m", "stowhand.service.quarantine_child"]
    deadline = time.monotonic() + 60
    while (commands := [child.cmdline() for child in children_of(process)]) != [wanted]:
        assert time.monotonic() < deadline, commands
        time.sleep(0.02)
    gate.touch()
    assert process.wait(60) == 0
    assert job_of(sqlite_workers.url, job_id).state is State.COMPLETED
