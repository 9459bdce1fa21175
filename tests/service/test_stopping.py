"""Signals: the first drains, the second returns jobs without an attempt, and the time of a stop is limited."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from stowhand.jobs.job import State
from tests.service.processes import QUICK, SIGNAL_SPACING_SECONDS, Workers, add, job_of

SHORT_END = replace(QUICK, final_timeout=0.5, final_calls_time=0.2)


def test_the_first_signal_lets_a_running_job_end(url: str, workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = add(url, "gated", f'{{"gate": "{gate}"}}')
    process = workers.start("--log-level", "debug", "--grace", "60")
    workers.wait_for("Started task")
    process.send_signal(signal.SIGTERM)
    workers.wait_for("Stopping; waiting for 1 running job")
    gate.touch()
    assert process.wait(60) == 0
    assert job_of(url, job_id).state is State.COMPLETED


def test_the_second_signal_returns_a_running_job_at_once_without_an_attempt(url: str, workers: Workers) -> None:
    job_id = add(url, "innocent", '{"number": 1, "pause": 300.0}')
    process = workers.start("--log-level", "debug", "--grace", "300")
    workers.wait_for("Started task")
    process.send_signal(signal.SIGINT)
    workers.wait_for("Stopping; waiting for 1 running job")
    time.sleep(SIGNAL_SPACING_SECONDS)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    job = job_of(url, job_id)
    assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)


def test_a_handler_that_ignores_everything_cannot_keep_the_process_alive(url: str, workers: Workers) -> None:
    job_id = add(url, "stubborn", '{"seconds": 120}')
    process = workers.start("--log-level", "debug", "--grace", "0.1", timings=SHORT_END)
    workers.wait_for("Started task")
    process.send_signal(signal.SIGTERM)
    assert process.wait(25) == 1
    job = job_of(url, job_id)
    assert (job.state, job.attempts) == (State.QUEUED, 0), "its lease went back as the last write"


def test_a_thread_that_cannot_be_stopped_cannot_keep_the_process_alive(url: str, workers: Workers) -> None:
    job_id = add(url, "slow_thread", '{"seconds": 120}')
    process = workers.start("--log-level", "debug", "--grace", "0.1", timings=SHORT_END)
    workers.wait_for("Started task")
    process.send_signal(signal.SIGTERM)
    assert process.wait(25) == 1
    assert job_of(url, job_id).state is State.QUEUED


def test_a_blocked_loop_is_named_with_its_stack_and_keeps_its_lease(url: str, workers: Workers) -> None:
    job_id = add(url, "blocker", '{"seconds": 1.5}')
    process = workers.start("--lease", "1", "--once", timings=replace(QUICK, blocked_threshold=0.2))
    assert process.wait(60) == 0
    output = workers.output()
    assert "blocker" in output
    assert "time.sleep" in output, "the stack says where"
    job = job_of(url, job_id)
    assert (job.state, job.attempts) == (State.COMPLETED, 1)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_pauses_claiming_and_another_resumes_it(sqlite_workers: Workers, processes: str) -> None:
    process = sqlite_workers.start("--processes", processes)
    sqlite_workers.wait_for("Worker connected", times=int(processes))
    process.send_signal(signal.SIGUSR2)
    sqlite_workers.wait_for("Quiet: claiming nothing new", times=int(processes))
    job_id = add(sqlite_workers.url, "innocent", '{"number": 1}')
    process.send_signal(signal.SIGUSR2)
    sqlite_workers.wait_for("Completed task")
    output = sqlite_workers.output()
    assert output.index("Claiming jobs again") < output.index("Completed task")
    assert job_of(sqlite_workers.url, job_id).state is State.COMPLETED
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
