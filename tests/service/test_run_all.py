"""The supervisor of background routines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta
from typing import Any, cast

import pytest

from stowhand.errors import ConfigurationError
from stowhand.events import Events, HookFailed, WorkerStarted
from stowhand.protocols.options import WorkerOptions
from stowhand.service.run_all import run_all
from stowhand.testing import MemoryStore
from stowhand.worker.resetter import Resetter
from stowhand.worker.worker import Worker
from tests.support import subprocesses


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


def test_the_first_error_stops_all_routines_and_is_raised() -> None:
    async def story() -> None:
        other, failing = Routine(), Routine(ends=0.01, error=ValueError("broken"))
        with pytest.raises(ValueError, match="broken"):
            await run_all(other, failing)
        assert other.stopped == [False]

    asyncio.run(asyncio.wait_for(story(), 15))


def test_a_routine_that_ignores_a_stop_is_cancelled_in_time() -> None:
    async def story() -> Routine:
        deaf = Routine(deaf=True)
        with pytest.raises(ValueError, match="broken"):
            await run_all(deaf, Routine(ends=0.01, error=ValueError("broken")), grace=0.05)
        return deaf

    assert asyncio.run(asyncio.wait_for(story(), 15)).cancelled


def test_a_routine_without_options_may_have_a_grace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEFAULT_GRACE_SECONDS", "EXIT_MARGIN_SECONDS"):
        monkeypatch.setattr(f"stowhand.service.run_all.{name}", 0.01)

    class Flow(Routine):
        grace = 5.0

    async def story() -> Routine:
        slow = Flow(deaf=True, ends=0.1)
        with pytest.raises(ValueError, match="broken"):
            await run_all(slow, Routine(ends=0.01, error=ValueError("broken")))
        return slow

    assert not asyncio.run(asyncio.wait_for(story(), 15)).cancelled


def test_it_ends_with_the_workers_and_stops_the_resetter() -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.schema.install()

        async def nothing(ctx: object, record: object) -> None: ...

        await run_all(Worker(store, nothing, WorkerOptions(once=True)), Resetter(store))

    asyncio.run(asyncio.wait_for(story(), 15))


def test_its_cancellation_stops_all_routines_at_once_and_waits_for_them() -> None:
    async def story() -> Routine:
        routine = Routine()
        supervising = asyncio.ensure_future(run_all(routine))
        await asyncio.sleep(0.01)
        supervising.cancel()
        with pytest.raises(asyncio.CancelledError):
            await supervising
        return routine

    routine = asyncio.run(asyncio.wait_for(story(), 15))
    assert (routine.stopped, routine.cancelled) == ([True], False)


def test_a_routine_that_ends_by_itself_does_not_end_the_others() -> None:
    async def story() -> None:
        short, long = Routine(ends=0.01), Routine(ends=0.05)
        await run_all(short, long)
        assert long.stopped == []

    asyncio.run(asyncio.wait_for(story(), 15))


def test_the_first_of_several_errors_is_raised() -> None:
    class Sulks(Routine):
        async def run(self) -> None:
            await super().run()
            raise KeyError("at the end")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(asyncio.wait_for(run_all(Sulks(), Routine(ends=0.01, error=ValueError("broken"))), 15))


class Rude(Routine):
    """Its ``stop`` knows nothing of ``now``."""

    def stop(self) -> None:  # type: ignore[override]
        raise AssertionError("never called")


class Sudden(Routine):
    """Its ``run`` is not a coroutine, and raises at once."""

    def run(self) -> None:  # type: ignore[override]
        raise ValueError("broken")


def test_a_routine_whose_stop_raises_is_cancelled_and_the_others_are_stopped() -> None:
    async def story() -> tuple[Routine, Routine]:
        rude, other = Rude(), Routine()
        with pytest.raises(ValueError, match="broken"):
            await run_all(*cast("list[Routine]", [rude, other, Sudden()]))
        return rude, other

    rude, other = asyncio.run(asyncio.wait_for(story(), 15))
    assert (rude.cancelled, other.stopped) == (True, [False])


def test_a_routine_that_ignores_its_cancellation_does_not_block_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stowhand.service.run_all.EXIT_MARGIN_SECONDS", 0.05)

    class Immortal(Routine):
        async def run(self) -> None:
            while not self.over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.over.wait()

    async def story() -> None:
        immortal = Immortal(deaf=True)
        with pytest.raises(ValueError, match="broken"):
            await run_all(immortal, Routine(ends=0.01, error=ValueError("broken")), grace=timedelta(milliseconds=50))
        immortal.over.set()

    asyncio.run(asyncio.wait_for(story(), 15))


def test_outside_the_main_thread_it_runs_without_signals() -> None:
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(asyncio.run(run_all(Routine(ends=0.01))) is None))
    thread.start()
    thread.join(60)
    assert ended == [True]


def test_signal_handlers_are_restored() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        asyncio.run(run_all(Routine(ends=0.01)))
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("wrong", [None, 7, Routine, asyncio.sleep])
def test_an_object_that_is_no_routine_is_refused_before_any_starts(wrong: Any) -> None:
    first = Routine()
    with pytest.raises(ConfigurationError, match="is not a routine"):
        asyncio.run(run_all(first, wrong))
    with pytest.raises(ConfigurationError, match="twice"):
        asyncio.run(run_all(first, first))


@pytest.mark.parametrize("wrong", [-1, "five", True, float("nan"), timedelta(seconds=-1)])
def test_an_invalid_grace_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="grace"):
        asyncio.run(run_all(Routine(), grace=wrong))


def test_log_lines_are_written_once_and_only_without_another_listener() -> None:
    async def listeners(*given: Events) -> list[int]:
        async def nothing(ctx: object, record: object) -> None: ...

        store = MemoryStore()
        await store.schema.install()
        await run_all(*(Worker(store, nothing, WorkerOptions(once=True), events=events) for events in given))
        return [len(events._listeners.get(HookFailed, [])) for events in given]

    shared, heard = Events(), Events()
    heard.on(WorkerStarted, lambda event: None)
    assert asyncio.run(asyncio.wait_for(listeners(shared, shared, heard), 15)) == [1, 1, 0]


def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        asyncio.run(run_all())


PROGRAM = """
    import asyncio, sys
    from stowhand import Worker, WorkerOptions, NewJob, run_all
    from stowhand.table import Resetter
    from stowhand.events import WorkerStopping
    from stowhand.testing import MemoryStore

    async def handle(ctx, record):
        print("begun", flush=True)
        await asyncio.sleep(float(sys.argv[1]))
        print("ended", flush=True)

    async def main():
        store = MemoryStore()
        await store.schema.install()
        await store.jobs.enqueue(NewJob(task="t"))
        worker = Worker(store, handle, WorkerOptions(grace=300))
        worker.events.on(WorkerStopping, lambda event: print("stopping", flush=True))
        await run_all(worker, Resetter(store))
        print((await store.inspect.counts())["queued"], "queued", flush=True)

    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("seconds", "signals", "says"), [("0.3", 20, ["ended", "0 queued"]), ("300", 40, ["1 queued"])]
)
def test_a_first_signal_lets_jobs_end_and_a_second_returns_them(seconds: str, signals: int, says: list[str]) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), seconds]
    with subprocesses.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        for number in range(signals):
            if number == 20:
                assert program.stdout.readline() == "stopping\n"
                with pytest.raises(subprocess.TimeoutExpired):  # signals close together count as one
                    program.wait(0.6)
            os.kill(program.pid, (signal.SIGTERM, signal.SIGINT)[number % 2])
        rest = program.stdout.read().split("\n")
        assert program.wait(60) == 0
    assert [line for line in rest if line not in ("", "stopping")] == says
