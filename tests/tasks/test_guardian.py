"""Programs end with the process that they run for, however that dies; and nothing is left when a worker has stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from stowhand.tasks.program import LineSplitter, ProgramProtocol, run_program
from stowhand.worker.program_groups import PROGRAM_GROUPS, ProgramGroups
from tests.conftest import Run
from tests.support import subprocesses

PATIENCE = 20
# A program of two processes, which tells their ids and its worker's, and runs until it is killed.
PROGRAM = 'trap "" TERM HUP INT; sleep 600 & echo $$ $!; wait'
WORKER = f"""
import asyncio, os, sys
from stowhand.tasks.program import ProgramProtocol, LineSplitter, run_program
talk = ProgramProtocol(LineSplitter(lambda line: print(line, flush=True)))
asyncio.run(run_program(["/bin/sh", "-c", {PROGRAM!r}], None, os.environ, talk, lambda: 1.0))
"""
FORKING_WORKER = f"""
import asyncio, os, time
from stowhand.tasks.program import ProgramProtocol, LineSplitter, run_program
from stowhand.worker.program_groups import PROGRAM_GROUPS

def fork(line):
    child = os.fork()
    if child == 0:
        PROGRAM_GROUPS.kill()
        time.sleep(600)
    print(line, child, flush=True)

talk = ProgramProtocol(LineSplitter(fork))
asyncio.run(run_program(["/bin/sh", "-c", {PROGRAM!r}], None, os.environ, talk, lambda: 1.0))
"""


@pytest.fixture
def guarded() -> Iterator[ProgramGroups]:
    yield PROGRAM_GROUPS
    PROGRAM_GROUPS.dismiss()


def processes_of_a_worker(program: str = WORKER) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    worker = subprocesses.Popen([subprocesses.PYTHON, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert worker.stdout is not None
    with worker.stdout:
        words = worker.stdout.readline().split()
    return worker, [psutil.Process(int(word)) for word in words]


def test_a_killed_process_takes_its_programs_with_it_and_what_they_have_started() -> None:
    worker, programs = processes_of_a_worker()
    worker.kill()
    worker.wait()
    _, alive = psutil.wait_procs(programs, timeout=PATIENCE)
    assert not alive


def test_a_forked_process_does_not_affect_the_programs_of_its_parent() -> None:
    worker, (*programs, child) = processes_of_a_worker(FORKING_WORKER)
    _, alive = psutil.wait_procs(programs, timeout=0.2)
    assert set(alive) == set(programs), "the child has no programs to kill"
    worker.kill()
    worker.wait()
    _, alive = psutil.wait_procs(programs, timeout=PATIENCE)
    assert not alive
    assert child.is_running()
    child.kill()


def test_a_signal_to_the_whole_group_of_a_worker_does_not_reach_the_guardian_first() -> None:
    worker, programs = processes_of_a_worker()
    (guardian,) = (one for one in psutil.Process(worker.pid).children() if one not in programs)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guardian.send_signal(number)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    _, alive = psutil.wait_procs([*programs, guardian], timeout=PATIENCE)
    assert not alive


async def sleeper(guarded: ProgramGroups) -> tuple[asyncio.Task[int], int]:
    output: asyncio.Queue[str] = asyncio.Queue()
    talk = ProgramProtocol(LineSplitter(output.put_nowait))
    argv = ["/bin/sh", "-c", "echo $$; exec sleep 600"]
    running = asyncio.ensure_future(run_program(argv, None, os.environ, talk, lambda: 0.0))
    group = int(await output.get())
    assert group in guarded._groups
    return running, group


def test_a_killed_guardian_is_replaced_and_receives_the_running_programs(guarded: ProgramGroups, run: Run) -> None:
    async def story() -> None:
        first, _ = await sleeper(guarded)
        killed = guarded._guardian
        assert killed is not None
        killed.kill()
        await asyncio.to_thread(killed.wait)
        second, _ = await sleeper(guarded)
        assert guarded._guardian is not killed
        guardian, guarded._guardian = guarded._guardian, None
        assert guardian is not None
        assert guardian.stdin is not None
        guardian.stdin.close()  # as this process would by dying
        assert [await first, await second] == [-signal.SIGKILL] * 2
        await asyncio.to_thread(guardian.wait)

    run(story())


def test_a_program_that_has_ended_is_guarded_no_more_and_the_guardian_is_dismissed(
    guarded: ProgramGroups, run: Run
) -> None:
    async def story() -> None:
        running, group = await sleeper(guarded)
        guarded.dismiss()
        assert guarded._guardian is not None, "something runs"
        os.killpg(group, signal.SIGTERM)
        assert await running == -signal.SIGTERM

    run(story())
    guardian = guarded._guardian
    guarded.dismiss()
    assert guardian is not None
    assert guardian.returncode == 0
    assert guarded._guardian is None
    assert not guarded._groups
