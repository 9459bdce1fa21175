"""Suspects run in processes of their own; one whose process cannot begin has killed nobody."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.protocols.progress import Progress
from stowhand.service.child_progress import ProgressPipe, read_answer
from tests.service.processes import Workers, children_of, enqueue_suspect, job_of

LEASE = Lease(1, "token", 1)


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


def test_what_a_suspect_says_of_its_progress_is_kept_with_its_job(sqlite_workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = enqueue_suspect(sqlite_workers.url, NewJob(task="teller", payload=f'{{"gate": "{gate}"}}'))
    process = sqlite_workers.start("--once")
    deadline = time.monotonic() + 60
    while (job := job_of(sqlite_workers.url, job_id)).progress != 1.0:
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    assert (job.state, job.progress_text) == (State.PROCESSING, "page 100 of 100")
    gate.touch()
    assert process.wait(60) == 0
    job = job_of(sqlite_workers.url, job_id)
    assert (job.state, job.progress) == (State.COMPLETED, None)


def test_a_line_of_progress_is_dropped_where_the_worker_does_not_read() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    pipe = ProgressPipe(writing)
    pipe.note(Progress(LEASE, 0.5, "half"))
    pipe.close()
    assert os.get_blocking(writing), "the answer waits for its reader"
    os.set_blocking(reading, False)
    assert set(b"".join(iter(lambda: _read(reading), b""))) == set(b"x")
    pipe.note(Progress(LEASE, 1.0, "after the answer has begun"))
    for thread in threading.enumerate():
        if thread.name == "stowhand progress":
            thread.join(60)
    assert _read(reading) == b""
    os.close(reading)
    os.close(writing)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(("keeps", "said"), [(True, [Progress(LEASE, 0.4, "so far")]), (False, [])])
def test_progress_is_read_before_the_answer(keeps: bool, said: list[Progress]) -> None:
    lines = [b'progress [0.4,"so far"]\n', b"progress [4,null]\n", b"progress {\n", b'{"kind":"complete"}\n', b"more\n"]

    async def scenario() -> tuple[bytes, list[Progress]]:
        stream, heard = asyncio.StreamReader(), list[Progress]()
        stream.feed_data(b"".join(lines))
        return await read_answer(stream, LEASE, heard.append if keeps else None), heard

    assert asyncio.run(scenario()) == (b'{"kind":"complete"}\n', said)
