"""Real worker processes on a real store, for the tests of this folder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import ClaimRequest, StoreOptions
from stowhand.stores.url import open_store
from stowhand.worker.host import TIMINGS_VARIABLE, Timings
from tests.support import subprocesses
from tests.support.fork_server import FORKS_TOO, SERVES

T = TypeVar("T")
QUICK = Timings(
    same_signal_window=0.05,
    thread_end_timeout=0.2,
    suspect_poll_interval=0.2,
    failed_start_delay=0.1,
    report_interval=0.1,
    max_probe_age=0.1,
    max_count_age=0.2,
)
"""Short pauses. Time limits that a slow machine needs are unchanged: those of the store and of the end of a process."""
SIGNAL_SPACING_SECONDS = 0.1
"""Time between two signals that count as two requests."""
COUNTING_PROGRAM = ("tests.service.counting",)
"""Program that writes "request N" when it counts a request to stop, so that a test can wait for that."""
LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED)


class Workers:
    """Processes of ``stowhand worker`` on one store. ``destroy`` ends all of them."""

    def __init__(self, url: str, folder: Path, *task_options: str) -> None:
        """``task_options``: the options that name the tasks."""
        self.url, self._folder = url, folder
        self._task_options = task_options or ("--app", "tests.service.work:app")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *options: str, program: Sequence[str] = ("stowhand.cli",), timings: Timings = QUICK, fork: bool = True
    ) -> subprocess.Popen[bytes]:
        """Start another ``stowhand worker``, which writes its output to a file.

        ``fork=False``: start new interpreters, as for a user, instead of forked processes.
        """
        command = [sys.executable, "-m", *program, "worker", "-c", self.url, *self._task_options]
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        if fork:
            environment[FORKS_TOO] = "1"
        environment[TIMINGS_VARIABLE] = msgspec.json.encode(timings).decode()
        with self._log(len(self.processes)).open("wb") as log:
            popen = subprocesses.Popen if fork else subprocess.Popen
            process = popen([*command, *options], stdout=log, stderr=log, env=environment, start_new_session=True)
        self.processes.append(process)
        return process

    def output(self, number: int = 0) -> str:
        """Return the output of a worker so far."""
        return self._log(number).read_text(errors="replace")

    def wait_for(self, text: str, number: int = 0, seconds: float = 60.0, times: int = 1) -> None:
        """Wait until the output of a worker contains the text ``times`` times, such as once for each process."""
        deadline = time.monotonic() + seconds
        while self.output(number).count(text) < times:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.output(number)}"
            time.sleep(0.02)

    def destroy(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"


def children_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the children of a process, without its fork server."""
    return [child for child in psutil.Process(process.pid).children() if child.name() != SERVES]


def exit_code_within(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Return the exit code. It counts waits of a twentieth of a second, so pauses of the machine do not count."""
    for _ in range(round(seconds * 20)):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.05)
    raise AssertionError(f"it has not exited within {seconds:g} s")


def signal_until(process: subprocess.Popen[bytes], number: int, was_handled: Callable[[], bool]) -> None:
    """Send the signal once a second until it was handled.

    A signal to a frozen process may be received by a thread that does not wake the blocked one.
    """
    for _ in range(60):
        process.send_signal(number)
        for _ in range(50):
            if was_handled():
                return
            time.sleep(0.02)
    raise AssertionError(f"signal {number} was not handled")


def with_store(url: str, use: Callable[[QueueStore], Awaitable[T]]) -> T:
    """Open the store, install it if necessary, use it, and close it."""

    async def go() -> T:
        store = open_store(url, StoreOptions(history=3600.0))
        try:
            await store.schema.install()
            await store.open()
            return await asyncio.wait_for(use(store), 150)
        finally:
            await store.close()

    return asyncio.run(go())


def add(url: str, task: str, payload: str) -> int:
    """Enqueue a job, and return its id."""

    async def enqueue(store: QueueStore) -> int:
        return (await store.jobs.enqueue(NewJob(task=task, payload=payload))).id

    return with_store(url, enqueue)


def job_of(url: str, job_id: int) -> Job:
    """Return the job, which must exist."""
    job = with_store(url, lambda store: store.jobs.get(job_id))
    assert job is not None
    return job


def wait_until_done(url: str, seconds: float) -> dict[State, int]:
    """Wait until no job is live, and return the counts by state."""

    async def count(store: QueueStore) -> dict[State, int]:
        deadline = time.monotonic() + seconds
        while True:
            counts = await store.inspect.counts()
            if not sum(counts[state] for state in LIVE):
                return counts
            assert time.monotonic() < deadline, f"not done after {seconds} s: {counts}"
            await asyncio.sleep(0.1)

    return with_store(url, count)


def enqueue_suspect(url: str, job: NewJob) -> int:
    """Enqueue a job that has been reset twice, and return its id."""

    async def enqueue(store: QueueStore) -> int:
        job_id = (await store.jobs.enqueue(job)).id
        await make_suspect(store)
        return job_id

    return with_store(url, enqueue)


async def make_suspect(store: QueueStore) -> None:
    """Claim the only job and reset it, twice."""
    heartbeats = store.heartbeats()
    for _ in range(2):
        (claim,) = await store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30))
        (reset,) = await heartbeats.reset_lease(claim.lease)
        assert reset.state is State.QUEUED
    await heartbeats.close()
