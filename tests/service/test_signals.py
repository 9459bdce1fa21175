"""Signals that come too soon, too often, or to everybody at once: to a worker, a supervisor, a quarantined child."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.events import Events
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.service import exit_codes
from stowhand.service.supervisor import Supervisor
from stowhand.stores.url import open_store
from stowhand.worker.host import Timings
from tests.conftest import Run
from tests.service.processes import (
    COUNTING_PROGRAM,
    QUICK,
    SIGNAL_SPACING_SECONDS,
    Workers,
    enqueue_suspect,
    signal_until,
    with_store,
)

PATIENT = replace(QUICK, exit_timeout=120.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Effects of signals, which do not depend on the store."""
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_two_signals_that_come_close_together_count_once(
    url: str, workers: Workers, tmp_path: Path, processes: str
) -> None:
    gate = tmp_path / "gate"
    job_id = _enqueue(url, NewJob(task="gated", payload=f'{{"gate": "{gate}"}}'))
    process = workers.start(
        "--log-level", "debug", "--processes", processes, timings=replace(QUICK, same_signal_window=60.0)
    )
    workers.wait_for("Started task")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    workers.wait_for("Stopping; waiting for 1 running job")
    gate.touch()
    assert process.wait(60) == 0
    assert "Stopping now" not in workers.output()
    assert _job(url, job_id).state is State.COMPLETED, "it had its grace"


def test_a_third_signal_ends_the_process_within_seconds_without_using_attempts(url: str, workers: Workers) -> None:
    job_id = _enqueue(url, NewJob(task="stubborn", payload='{"seconds": 120}', max_attempts=1))
    process = workers.start("--log-level", "debug", program=COUNTING_PROGRAM, timings=PATIENT)
    workers.wait_for("Started task")
    _signal_three_times(process, workers)
    job = _job(url, job_id)
    assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0), "a single attempt is not lost by leaving"


def test_a_third_signal_ends_a_process_whose_loop_is_blocked(url: str, workers: Workers) -> None:
    job_id = _enqueue(url, NewJob(task="blocker", payload='{"seconds": 120}'))
    process = workers.start("--log-level", "debug", program=COUNTING_PROGRAM, timings=PATIENT)
    workers.wait_for("Started task")
    _signal_three_times(process, workers)
    assert _job(url, job_id).state is State.QUEUED


def test_a_third_signal_ends_a_supervisor_within_seconds(url: str, workers: Workers) -> None:
    _enqueue(url, NewJob(task="stubborn", payload='{"seconds": 120}'))
    process = workers.start("--log-level", "debug", "--processes", "2", program=COUNTING_PROGRAM, timings=PATIENT)
    workers.wait_for("Started task")
    children = psutil.Process(process.pid).children(recursive=True)
    _signal_three_times(process, workers)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert "was killed by SIGKILL" in workers.output(), "nobody was waited for"


def test_a_stop_requested_while_children_start_reaches_them(run: Run, url: str) -> None:
    settings = WorkerSettings(
        store=_store_settings(url), app="tests.service.work:app", processes=2, worker=WorkerOptions(grace=30.0)
    )

    async def scenario() -> int:
        store = open_store(url, settings.store.options)
        await store.schema.install()
        supervisor = Supervisor(settings, store.heartbeats, Events())
        running = asyncio.create_task(supervisor.run())
        await _until(lambda: bool(supervisor._names[1]))
        assert supervisor.children.slots[1].child is None, "too late to show anything"
        supervisor.request_stop()
        code = await running
        await store.close()
        return code

    assert run(scenario(), 90) == exit_codes.OK


def test_a_supervisor_that_pauses_before_a_restart_stops_at_once(run: Run, url: str) -> None:
    timings, options = Timings(max_restart_delay=300.0), WorkerOptions(grace=30.0)
    settings = WorkerSettings(
        store=_store_settings(url), app="tests.service.work:app", processes=2, worker=options, timings=timings
    )

    async def scenario() -> None:
        store = open_store(url, settings.store.options)
        await store.schema.install()
        supervisor = Supervisor(settings, store.heartbeats, Events())
        slot = supervisor.children.slots[0]
        slot.quick_deaths = 20
        running = asyncio.create_task(supervisor.run())
        await _until(lambda: slot.is_running)
        assert slot.child is not None
        slot.child.kill()
        await _until(lambda: slot.quick_deaths > 20)
        supervisor.request_stop()
        await running
        await store.close()

    run(scenario(), 90)


def test_a_quarantined_child_does_not_outlive_its_worker(url: str, workers: Workers, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    enqueue_suspect(url, NewJob(task="linger", payload=f'{{"file": "{pid_file}", "seconds": 120}}'))
    process = workers.start()
    child = psutil.Process(_read_pid(pid_file))
    assert child.pid != process.pid
    process.kill()
    _, alive = psutil.wait_procs([child], timeout=30)
    assert not alive, "its job is taken back now, and would run twice"


def test_a_signal_to_the_whole_service_leaves_a_quarantined_job_its_grace(
    url: str, workers: Workers, tmp_path: Path
) -> None:
    pid_file, gate = tmp_path / "pid", tmp_path / "gate"
    job_id = enqueue_suspect(url, NewJob(task="gated", payload=f'{{"gate": "{gate}", "file": "{pid_file}"}}'))
    process = workers.start()
    child = psutil.Process(_read_pid(pid_file))
    child.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    workers.wait_for("Stopping; waiting for 1 running job")
    gate.touch()
    assert process.wait(60) == 0
    job = _job(url, job_id)
    assert (job.state, job.resets) == (State.COMPLETED, 0)


def test_a_process_left_by_a_dead_child_hides_neither_its_death_nor_the_end_of_the_worker(
    url: str, workers: Workers
) -> None:
    job_id = enqueue_suspect(url, NewJob(task="forker", payload='{"seconds": 90}', max_resets=2))
    process = workers.start("--once")
    assert process.wait(60) == 0
    assert _job(url, job_id).state is State.FAILED


async def _until(reached: Callable[[], bool]) -> None:
    """Looks at every turn of the loop: the moments meant here are short."""
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, "never happened"
        await asyncio.sleep(0)


def _signal_three_times(process: subprocess.Popen[bytes], workers: Workers) -> None:
    """To a patient program: it leaves because of the third, or not for minutes."""
    signal_until(process, signal.SIGTERM, lambda: "request 1" in workers.output())
    time.sleep(SIGNAL_SPACING_SECONDS)
    signal_until(process, signal.SIGINT, lambda: "request 2" in workers.output())
    time.sleep(SIGNAL_SPACING_SECONDS)
    signal_until(process, signal.SIGTERM, lambda: process.poll() is not None)
    assert process.returncode == exit_codes.FAILURE


def _store_settings(url: str) -> StoreSettings:
    return StoreSettings(connection=ResolvedStore(url, "a test"))


def _enqueue(url: str, job: NewJob) -> int:
    async def enqueue(store: QueueStore) -> int:
        return (await store.jobs.enqueue(job)).id

    return with_store(url, enqueue)


def _job(url: str, job_id: int) -> Job:
    job = with_store(url, lambda store: store.jobs.get(job_id))
    assert job is not None
    return job


def _read_pid(file: Path) -> int:
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline, "the job never ran"
        time.sleep(0.02)
    return int(file.read_text())


def test_quit_stops_a_worker_as_term_does_and_usr1_prints_its_stacks(sqlite_workers: Workers) -> None:
    process = sqlite_workers.start()
    sqlite_workers.wait_for("Worker connected")
    signal_until(process, signal.SIGUSR1, lambda: "most recent call first" in sqlite_workers.output())
    assert process.poll() is None
    process.send_signal(signal.SIGQUIT)
    assert process.wait(60) == 0
    assert "Stopped" in sqlite_workers.output()
