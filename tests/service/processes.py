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
from tests.support import forked
from tests.support.fork_server import FORKS_TOO, SERVES

T = TypeVar("T")
QUICK = Timings(
    same_signal=0.05,
    thread_ends=0.2,
    suspects_every=0.2,
    unable=0.1,
    report_every=0.1,
    answer_fresh=0.1,
    counts_fresh=0.2,
)
"""Pauses at a tenth and less. What a slow machine needs is as usual: patience with the store, the end of a process."""
BETWEEN = 0.1
"""Seconds between two signals that are to count as two."""
COUNTING = ("tests.service.counting",)
"""The program, which writes "request N" when it counts a request to stop: a test waits for that."""
LIVE = (State.QUEUED, State.PROCESSING, State.ERRORED)


class Workers:
    """``stowhand worker`` on one store, started and stopped by tests; nothing is left behind."""

    def __init__(self, url: str, folder: Path, *what: str) -> None:
        """``what``: the options that say which tasks."""
        self.url, self._folder, self._what = url, folder, what or ("--app", "tests.service.work:app")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *options: str, program: Sequence[str] = ("stowhand.cli",), timings: Timings = QUICK, fork: bool = True
    ) -> subprocess.Popen[bytes]:
        """One more ``stowhand worker``; what it says goes to a file.

        ``fork=False``: it and all that it starts are new interpreters, as a user's are.
        """
        command = [sys.executable, "-m", *program, "worker", "-c", self.url, *self._what]
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        if fork:
            environment[FORKS_TOO] = "1"
        environment[TIMINGS_VARIABLE] = msgspec.json.encode(timings).decode()
        with self._log(len(self.processes)).open("wb") as log:
            popen = forked.Popen if fork else subprocess.Popen
            process = popen([*command, *options], stdout=log, stderr=log, env=environment, start_new_session=True)
        self.processes.append(process)
        return process

    def said(self, number: int = 0) -> str:
        """What a worker has written so far."""
        return self._log(number).read_text(errors="replace")

    def wait_for(self, words: str, number: int = 0, seconds: float = 60.0, times: int = 1) -> None:
        """Until a worker has said that, so many times: each of its processes, for example."""
        deadline = time.monotonic() + seconds
        while self.said(number).count(words) < times:
            assert time.monotonic() < deadline, f"never said {words!r}:\n{self.said(number)}"
            time.sleep(0.02)

    def destroy(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"


def children_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Those that it has started."""
    return [child for child in psutil.Process(process.pid).children() if child.name() != SERVES]


def left_within(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Its exit code. Counted are looks of a twentieth of a second: what the machine takes from everybody is not."""
    for _ in range(round(seconds * 20)):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.05)
    raise AssertionError(f"it has not left within {seconds:g} s")


def signal_until(process: subprocess.Popen[bytes], number: int, heard: Callable[[], bool]) -> None:
    """Once a second until it is heard.

    What comes while a process is frozen may be taken by a thread of it that does not wake the one that is blocked.
    """
    for _ in range(60):
        process.send_signal(number)
        for _ in range(50):
            if heard():
                return
            time.sleep(0.02)
    raise AssertionError(f"signal {number} was never heard")


def with_store(url: str, use: Callable[[QueueStore], Awaitable[T]]) -> T:
    """Open the store (installed if need be), use it, close it."""

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
    """Enqueue one; its id."""

    async def enqueue(store: QueueStore) -> int:
        return (await store.jobs.enqueue(NewJob(task=task, payload=payload))).id

    return with_store(url, enqueue)


def job_of(url: str, job_id: int) -> Job:
    """As it is now; it must be there."""
    job = with_store(url, lambda store: store.jobs.get(job_id))
    assert job is not None
    return job


def wait_until_done(url: str, seconds: float) -> dict[State, int]:
    """Until nothing is live; gives the counts by state."""

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
    """A job under which two workers have died."""

    async def enqueue(store: QueueStore) -> int:
        job_id = (await store.jobs.enqueue(job)).id
        await make_suspect(store)
        return job_id

    return with_store(url, enqueue)


async def make_suspect(store: QueueStore) -> None:
    """Of the only job that is to be had."""
    heartbeats = store.heartbeats()
    for _ in range(2):
        (claim,) = await store.claim(ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=30))
        (reset,) = await heartbeats.reset_lease(claim.lease)
        assert reset.state is State.QUEUED
    await heartbeats.close()
