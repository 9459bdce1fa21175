"""Suspects run in child processes; a child that cannot start counts no reset."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.events import Events
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Complete
from stowhand.protocols.attempt import Attempt, Progress
from stowhand.protocols.handler import handler
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest
from stowhand.protocols.workflows import proof_keeper
from stowhand.remote import HttpStore
from stowhand.service.quarantine import STARTED_LINE, AttemptReply, Quarantine, read_answer
from stowhand.service.quarantine_child import AnswerPipe
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.service.processes import QUICK, Workers, children_of, enqueue_suspect, job_of, make_suspect, with_store
from tests.support.shared_server import SharedServer

LEASE = Lease(1, "token", 1)


def test_a_job_whose_child_cannot_start_it_is_released_until_a_child_can(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unloadable = tmp_path / "unloadable"
    monkeypatch.setenv("UNLOADABLE", str(unloadable))
    unloadable.touch()
    url = sqlite_workers.url
    job_id = enqueue_suspect(url, NewJob(task="innocent", max_resets=2))
    process = sqlite_workers.start("--app", "tests.service.fickle_work:app", "--log-level", "debug")
    sqlite_workers.wait_for("The process for suspects could not start: SystemExit: not now")
    sqlite_workers.wait_for("its child process could not start")
    unloadable.unlink()
    sqlite_workers.wait_for(f"Completed task {job_id} (innocent)")
    process.terminate()
    assert process.wait(60) == 0
    job = job_of(url, job_id)
    assert (job.state, job.attempts) == (State.COMPLETED, 1), "with two resets of two a death would have failed it"
    assert "Fatal Python error" not in sqlite_workers.output()


def test_a_job_that_kills_its_child_after_its_start_counts_a_reset(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNLOADABLE", str(tmp_path / "unloadable"))
    job_id = enqueue_suspect(sqlite_workers.url, NewJob(task="leaver", max_attempts=1, max_resets=2))
    process = sqlite_workers.start("--app", "tests.service.fickle_work:app", "--once")
    assert process.wait(60) == 0
    job = job_of(sqlite_workers.url, job_id)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert "could not begin" not in sqlite_workers.output()


def test_suspects_share_a_child_until_one_kills_it_without_affecting_the_others(sqlite_workers: Workers) -> None:
    url = sqlite_workers.url
    before = [enqueue_suspect(url, NewJob(task="who_am_i")) for _ in range(3)]
    killer = enqueue_suspect(url, NewJob(task="killer", max_resets=2))
    after = [enqueue_suspect(url, NewJob(task="who_am_i")) for _ in range(3)]
    process = sqlite_workers.start("--once")
    assert process.wait(60) == 0
    jobs = [job_of(url, job_id) for job_id in (*before, *after)]
    assert {(job.state, job.attempts) for job in jobs} == {(State.COMPLETED, 1)}
    assert job_of(url, killer).last_error == "its worker died 3 times while running it"
    assert "Reset task" not in sqlite_workers.output(), "nothing else was reset"
    pids = [job.result["pid"] for job in jobs]
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert len({process.pid, *pids}) == 3


async def nothing(attempt: Attempt[Job], record: Job) -> None:
    """The worker's own handler, which runs programs."""


def test_a_child_that_dies_between_two_jobs_does_not_affect_the_next_one(sqlite_workers: Workers) -> None:
    url = sqlite_workers.url
    settings = WorkerSettings(
        store=StoreSettings(connection=ResolvedStore(url, "test")), app="tests.service.work:app", timings=QUICK
    )

    async def story(store: QueueStore) -> list[int]:
        quarantine = Quarantine(settings, "w", lambda task: False, handler(nothing), Events())
        pids = []
        for _ in range(3):
            await store.jobs.enqueue(NewJob(task="who_am_i"))
            (claim,) = await store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30))
            outcome = await quarantine.run(Attempt(claim, 0.0))
            assert isinstance(outcome, Complete)
            pids.append(msgspec.json.decode(msgspec.json.encode(outcome.result))["pid"])
            if len(pids) == 2:
                os.kill(pids[-1], signal.SIGKILL)
        await quarantine.close()
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
        return pids

    first, second, third = with_store(url, story)
    assert first == second != third


def test_a_suspect_of_a_lent_store_records_its_steps(run: Run) -> None:
    store = MemoryStore()

    async def story(url: str) -> None:
        settings = WorkerSettings(
            store=StoreSettings(connection=ResolvedStore(url, "test")), app="tests.service.work:app", timings=QUICK
        )
        async with HttpStore(url) as remote:
            proofs = proof_keeper(remote.workflows)
            quarantine = Quarantine(settings, "w", lambda task: False, handler(nothing), Events(), proofs)
            (claim,) = await remote.claim(
                ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30, suspects=True)
            )
            outcome = await quarantine.run(Attempt(claim, 0.0))
            await quarantine.close()
            assert isinstance(outcome, Complete), outcome
            (step,) = await remote.workflows.read(claim.lease.job_id)
            assert (step.name, step.value) == ("charge", "7")

    async def prepare() -> None:
        await store.jobs.enqueue(NewJob(task="recorder", payload='{"number": -7}'))
        await make_suspect(store)

    with SharedServer() as server:
        url = server.lend(store)
        server.do(prepare())
        run(story(url))


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


def test_progress_of_a_suspect_is_recorded_with_its_job(sqlite_workers: Workers, tmp_path: Path) -> None:
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


def test_progress_is_dropped_while_the_pipe_is_full_and_after_the_answer() -> None:
    reading, writing = os.pipe()
    pipe = AnswerPipe(writing)
    pipe.start(LEASE)
    assert os.read(reading, 100) == STARTED_LINE
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65536)
    pipe.note(Progress(LEASE, 0.5, "half"))
    os.set_blocking(reading, False)
    answering = threading.Thread(target=pipe.answer, args=(Lease(7, "answer", 1),))
    answering.start()
    received = b""
    while not received.endswith(b"\n"):
        received += _read(reading)
    answering.join(60)
    *progress, last = received.lstrip(b"x").splitlines(keepends=True)
    assert last == b'{"job_id":7,"token":"answer","epoch":1}\n', "the answer waits for its reader"
    assert progress in ([], [b'progress [0.5,"half"]\n'])
    pipe.note(Progress(LEASE, 1.0, "after the answer"))
    assert pipe._newest is None
    os.close(reading)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(("keeps", "said"), [(True, [Progress(LEASE, 0.4, "so far")]), (False, [])])
def test_progress_is_read_before_the_answer(keeps: bool, said: list[Progress]) -> None:
    lines = [
        STARTED_LINE,
        b'progress [0.4,"so far"]\n',
        b"progress [4,null]\n",
        b"progress {\n",
        b'{"kind":"complete"}\n',
        b"more\n",
    ]

    async def scenario() -> tuple[AttemptReply, list[Progress]]:
        stream, answer, heard = asyncio.StreamReader(), AttemptReply(), list[Progress]()
        stream.feed_data(b"".join(lines))
        await read_answer(stream, answer, LEASE, heard.append if keeps else None)
        return answer, heard

    answer, heard = asyncio.run(scenario())
    assert (answer.has_started, answer.line, heard) == (True, b'{"kind":"complete"}\n', said)
