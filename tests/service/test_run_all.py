"""The supervisor of background routines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from stowhand.errors import ConfigurationError
from stowhand.options import WorkerOptions
from stowhand.resetter import Resetter
from stowhand.service.run_all import run_all
from stowhand.testing import MemoryStore
from stowhand.worker import Worker


class Routine:
    def __init__(self, *, ends: float | None = None, error: Exception | None = None, deaf: bool = False) -> None:
        self.ends, self.error, self.deaf = ends, error, deaf
        self.stopped: list[bool] = []
        self.over = asyncio.Event()
        self.cancelled = False

    async def run(self) -> None:
        try:
            await asyncio.wait_for(self.over.wait(), self.ends)
        except TimeoutError:
            if self.error is not None:
                raise self.error from None
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def stop(self, *, now: bool = False) -> None:
        self.stopped.append(now)
        if not self.deaf:
            self.over.set()


def test_the_first_that_fails_stops_all_and_is_raised() -> None:
    async def story() -> None:
        other, failing = Routine(), Routine(ends=0.01, error=ValueError("broken"))
        with pytest.raises(ValueError, match="broken"):
            await run_all(other, failing)
        assert other.stopped == [False]

    asyncio.run(asyncio.wait_for(story(), 5))


def test_one_that_ignores_its_end_is_cancelled_in_time() -> None:
    async def story() -> Routine:
        deaf = Routine(deaf=True)
        with pytest.raises(ValueError, match="broken"):
            await run_all(deaf, Routine(ends=0.01, error=ValueError("broken")), grace=0.05)
        return deaf

    assert asyncio.run(asyncio.wait_for(story(), 5)).cancelled


def test_it_ends_when_the_workers_have_and_takes_the_resetter_along() -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.install()

        async def nothing(ctx: object, record: object) -> None: ...

        await run_all(Worker(store, nothing, WorkerOptions(once=True)), Resetter(store))

    asyncio.run(asyncio.wait_for(story(), 5))


def test_a_routine_that_ends_by_itself_does_not_end_the_others() -> None:
    async def story() -> None:
        short, long = Routine(ends=0.01), Routine(ends=0.05)
        await run_all(short, long)
        assert long.stopped == []

    asyncio.run(asyncio.wait_for(story(), 5))


def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        asyncio.run(run_all())


PROGRAM = """
    import asyncio, sys
    from stowhand import Worker, WorkerOptions, Resetter, NewJob, run_all
    from stowhand.testing import MemoryStore

    async def handle(ctx, record):
        print("begun", flush=True)
        await asyncio.sleep(float(sys.argv[1]))
        print("ended", flush=True)

    async def main():
        store = MemoryStore()
        await store.install()
        await store.enqueue(NewJob(task="t"))
        await run_all(Worker(store, handle, WorkerOptions(grace=20)), Resetter(store))
        print((await store.counts())["queued"], "queued", flush=True)

    asyncio.run(main())
"""


@pytest.mark.parametrize(("seconds", "signals", "says"), [("0.3", 1, ["ended", "0 queued"]), ("60", 2, ["1 queued"])])
def test_a_signal_lets_jobs_end_and_a_second_hands_them_back(seconds: str, signals: int, says: list[str]) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), seconds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        for number in range(signals):
            if number:
                with pytest.raises(subprocess.TimeoutExpired):  # signals close together count as one
                    program.wait(0.6)
            os.kill(program.pid, signal.SIGTERM)
        rest = program.stdout.read().split("\n")
        assert program.wait(10) == 0
    assert [line for line in rest if line] == says
