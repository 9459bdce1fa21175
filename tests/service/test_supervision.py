"""Processes under a supervisor: dead ones are replaced, their jobs are reset, and a job that kills them fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from tests.service.pages import Pages
from tests.service.processes import QUICK, Workers, add, children_of, job_of, wait_until_done, with_store

INNOCENT = 1000
FORKED_OR_NOT = pytest.mark.parametrize(
    ("url", "fork"),
    [
        pytest.param("sqlite", True, id="sqlite"),
        pytest.param("postgres", True, id="postgres"),
        pytest.param("sqlite", False, id="sqlite-new-interpreters"),
    ],
    indirect=["url"],
)
"""Most tests fork the processes. New interpreters prove their arguments, descriptors and environment."""


@pytest.mark.timeout(180)
def test_a_job_that_kills_its_worker_each_time_ends_as_failed_and_a_thousand_innocent_ones_complete(
    url: str, workers: Workers
) -> None:
    async def enqueue(store: QueueStore) -> int:
        innocent = [NewJob(task="innocent", payload=f'{{"number": {n}, "pause": 0.02}}') for n in range(INNOCENT)]
        ids = await store.jobs.enqueue_many([*innocent[:100], NewJob(task="killer"), *innocent[100:]])
        return ids[100]

    killer = with_store(url, enqueue)
    process = workers.start("--processes", "2", "--lease", "30", "-j", "4")
    counts = wait_until_done(url, 120)
    assert counts[State.COMPLETED] == INNOCENT
    assert counts[State.FAILED] == 1
    job = with_store(url, lambda store: store.jobs.get(killer))
    assert job is not None
    assert "its worker died 6 times while running it" in (job.last_error or "")
    assert job.resets == 6
    process.terminate()
    assert process.wait(60) == 0


@FORKED_OR_NOT
def test_killed_children_are_replaced_and_their_job_comes_back_long_before_its_lease_ends(
    url: str, workers: Workers, tmp_path: Path, fork: bool
) -> None:
    gate = tmp_path / "gate"
    job_id = add(url, "gated", f'{{"gate": "{gate}"}}')
    process = workers.start("--processes", "2", "--lease", "300", fork=fork)
    _wait_for_holder(url, job_id)
    one, another = _wait_for_children(process, 2)
    if not fork:
        workers.wait_for("looking for jobs", times=2)
        _are_new_interpreters(process, one, another)
    one.kill()
    another.send_signal(signal.SIGRTMIN + 2)  # a signal without a name
    gate.touch()
    counts = wait_until_done(url, 60)
    assert counts[State.COMPLETED] == 1
    replacements = _wait_for_children(process, 2, others_than=(one, another))
    enrolled = with_store(url, lambda store: store.inspect.workers())
    assert {row.description.pid for row in enrolled}.isdisjoint({one.pid, another.pid}), "dead workers are not listed"
    job = with_store(url, lambda store: store.jobs.get(job_id))
    assert isinstance(job, Job)
    assert (job.attempts, job.resets) == (1, 0), "a reset uses no attempt, and completion clears the resets"
    process.terminate()
    assert process.wait(60) == 0
    assert not [child for child in replacements if child.is_running()]


@FORKED_OR_NOT
def test_children_end_when_their_supervisor_is_killed(workers: Workers, fork: bool) -> None:
    process = workers.start("--processes", "2", fork=fork)
    children = _wait_for_children(process, 2)
    workers.wait_for("looking for jobs", times=2)
    if not fork:
        _are_new_interpreters(process, *children)
    process.kill()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert len(gone) == 2


def test_wrong_settings_are_reported_once_and_end_all_processes(tmp_path: object, workers: Workers) -> None:
    process = workers.start("--processes", "2", "--app", "tests.service.work:nothing")
    assert process.wait(60) == 2
    assert workers.output().count("error:") == 1


def _are_new_interpreters(process: subprocess.Popen[bytes], *children: psutil.Process) -> None:
    """Check the command line: a forked child would have that of the process that forked it."""
    for child in children:
        assert child.cmdline() == [sys.executable, "-m", "stowhand.service.child"]
        assert child.environ().items() >= psutil.Process(process.pid).environ().items()


def _wait_for_holder(url: str, job_id: int) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        job = with_store(url, lambda store: store.jobs.get(job_id))
        if job is not None and job.worker:
            return job.worker
        time.sleep(0.05)
    raise AssertionError("no worker has claimed it")


def _wait_for_children(
    process: subprocess.Popen[bytes], count: int, others_than: Sequence[psutil.Process] = ()
) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = children_of(process)
        if len(children) == count and not set(children) & set(others_than):
            return children
        time.sleep(0.05)
    raise AssertionError("the children did not start")


def test_a_handler_that_exits_its_process_with_any_code_affects_no_other_job(tmp_path: Path) -> None:
    """These are exit codes of the worker: drained, wrong settings, unsuitable schema."""
    url, workers = f"sqlite:///{tmp_path}/queue.db", Workers(f"sqlite:///{tmp_path}/queue.db", tmp_path)
    leavers = [NewJob(task="leaver", payload=f'{{"code": {code}}}', max_resets=0) for code in (0, 2, 4)]

    async def enqueue(store: QueueStore) -> None:
        await store.jobs.enqueue_many([*leavers, NewJob(task="innocent", payload='{"number": 1}')])

    with_store(url, enqueue)
    try:
        process = workers.start("--processes", "2", "-j", "1", "--lease", "60", "--once")
        assert process.wait(60) == 0
    finally:
        workers.destroy()
    counts = with_store(url, lambda store: store.inspect.counts())
    assert {state: number for state, number in counts.items() if number} == {State.COMPLETED: 1, State.FAILED: 3}


def _add_two_hung_threads(url: str, gate: Path) -> None:
    job = NewJob(task="hung_thread", payload=f'{{"gate": "{gate}"}}', max_attempts=1)
    with_store(url, lambda store: store.jobs.enqueue_many([job, job]))


def test_a_process_whose_threads_are_used_up_is_not_ready_and_ends_with_code_5(
    sqlite_workers: Workers, tmp_path: Path
) -> None:
    gate, start_file = tmp_path / "gate", tmp_path / "started"
    add(sqlite_workers.url, "gated", f'{{"gate": "{gate}", "file": "{start_file}"}}')
    process = sqlite_workers.start("-j", "2", "--http", "0", "--grace", "300")
    pages = Pages(sqlite_workers)
    # The process exits as soon as two threads are hung and no other job runs. So this job must run before them.
    _wait_for_files([start_file], sqlite_workers)
    _add_two_hung_threads(sqlite_workers.url, tmp_path / "never")
    reason = "threads: 2 outlived their timeouts and still run, as many as jobs may run at once"
    pages.wait(lambda pages: reason in pages.json("/readyz")[1].get("reasons", ()))
    assert "stowhand_worker_abandoned_threads 2.0" in pages.get("/metrics")[1].decode()
    gate.touch()
    assert process.wait(60) == 5
    assert "Stopped" in sqlite_workers.output()


def test_a_process_whose_threads_end_soon_after_their_cancellation_continues(
    sqlite_workers: Workers, tmp_path: Path
) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    ids = [add(sqlite_workers.url, "obeying_thread", f'{{"file": "{file}"}}') for file in files]
    process = sqlite_workers.start("-j", "2", timings=replace(QUICK, thread_end_timeout=5.0))
    _wait_for_files(files, sqlite_workers)
    with_store(sqlite_workers.url, lambda store: store.admin.cancel_jobs(ids))
    innocent = add(sqlite_workers.url, "innocent", '{"number": 1}')
    sqlite_workers.wait_for(f"Completed task {innocent}")
    process.terminate()
    assert process.wait(60) == 0
    output = sqlite_workers.output()
    assert "its thread cannot be stopped" not in output
    assert [job_of(sqlite_workers.url, job_id).state for job_id in ids] == [State.COMPLETED] * 2


def _wait_for_files(files: Sequence[Path], workers: Workers) -> None:
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline, (workers.processes[0].poll(), workers.output())
        time.sleep(0.02)


def test_a_child_whose_threads_are_used_up_is_replaced(sqlite_workers: Workers, tmp_path: Path) -> None:
    _add_two_hung_threads(sqlite_workers.url, tmp_path / "never")
    process = sqlite_workers.start("-j", "1", "--processes", "2", "--http", "0")
    sqlite_workers.wait_for("exited with code 5: too many threads outlived their timeouts", times=2)
    job_id = add(sqlite_workers.url, "innocent", '{"number": 1}')
    sqlite_workers.wait_for(f"Completed task {job_id}")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def _pids_of(url: str, jobs: int) -> list[int]:
    """Return the ids of the processes that ran the jobs, in order."""
    wait_until_done(url, 60)
    completed = with_store(url, lambda store: store.inspect.list(JobFilter(states=(State.COMPLETED,), limit=jobs)))
    return [job.result["pid"] for job in sorted(completed, key=lambda job: job.id)]


@pytest.mark.parametrize(("limit", "name"), [("--max-jobs=2", "max_jobs"), ("--max-memory=16MiB", "max_memory")])
def test_a_process_that_has_reached_its_limit_exits_in_order_and_is_replaced(
    sqlite_workers: Workers, limit: str, name: str
) -> None:
    url = sqlite_workers.url
    with_store(url, lambda store: store.jobs.enqueue_many([NewJob(task="who_am_i")] * 6))
    process = sqlite_workers.start("--processes", "2", "-j", "1", "--http", "0", limit)
    sqlite_workers.wait_for("reached a limit and exited; starting another", times=2 if name == "max_jobs" else 1)
    add(url, "who_am_i", "{}")
    pids = _pids_of(url, 7)
    assert len(set(pids)) >= 4 or name == "max_memory", "seven jobs, and two for each process"
    assert max(map(pids.count, pids)) <= 2 or name == "max_memory"
    pages = Pages(sqlite_workers)
    pages.wait_until_ready()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    output = sqlite_workers.output()
    assert "exited unexpectedly" not in output
    assert f"Claiming nothing new: {name}" in output


def test_a_single_process_that_has_reached_its_limit_exits_with_0(sqlite_workers: Workers) -> None:
    with_store(sqlite_workers.url, lambda store: store.jobs.enqueue_many([NewJob(task="who_am_i")] * 3))
    process = sqlite_workers.start("--max-jobs", "2")
    assert process.wait(60) == 0
    counts = with_store(sqlite_workers.url, lambda store: store.inspect.counts())
    assert (counts[State.COMPLETED], counts[State.QUEUED]) == (2, 1)


def _add_a_jam(url: str, tmp_path: Path) -> int:
    job = NewJob(task="jam", payload=f'{{"gate": "{tmp_path}/never"}}', max_resets=0)
    return with_store(url, lambda store: store.jobs.enqueue(job)).id


def test_a_process_whose_loop_is_blocked_too_long_exits_at_once_and_only_the_blocking_job_counts_a_reset(
    url: str, workers: Workers, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    innocent = NewJob(task="gated", payload=f'{{"gate": "{gate}"}}', max_resets=0)
    innocent_id = with_store(url, lambda store: store.jobs.enqueue(innocent)).id
    jam_id = _add_a_jam(url, tmp_path)
    process = workers.start("-j", "2", "--lease", "1", "--timeout", "2s", "--grace", "300")
    assert process.wait(60) == 1
    assert "the worker counts as hung" in workers.output()
    jam, other = job_of(url, jam_id), job_of(url, innocent_id)
    assert (jam.state, "its worker died" in (jam.last_error or "")) == (State.FAILED, True)
    assert (other.state, other.attempts, other.resets) == (State.QUEUED, 0, 0)


def test_a_child_whose_loop_is_blocked_too_long_is_replaced_and_reported_as_hung(
    sqlite_workers: Workers, tmp_path: Path
) -> None:
    jam_id = _add_a_jam(sqlite_workers.url, tmp_path)
    options = ("--processes", "2", "-j", "1", "--lease", "1", "--timeout", "0.5s", "--grace", "300")
    process = sqlite_workers.start(*options)
    sqlite_workers.wait_for("exited unexpectedly (hung: a handler blocked its event loop)")
    assert job_of(sqlite_workers.url, jam_id).state is State.FAILED
    sqlite_workers.wait_for("Worker connected", times=3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
