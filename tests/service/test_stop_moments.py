"""SIGTERM at any moment of a worker's life, and many of them: it is out in time, and holds nothing afterwards."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from msgspec.structs import replace

from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from tests.service.processes import QUICK, Workers, add, exit_code_within, with_store
from tests.support.proxy import Proxy

MOMENTS = (0.0, 0.25, 0.4, 0.55, 0.7, 0.9, 1.2)
"""Seconds after its start: while Python loads, while it connects, claims, runs, settles."""
GRACE = 1.0
SHORT_END = replace(QUICK, final_timeout=0.5, final_calls_time=0.2)
BY_ITSELF = (0, -signal.SIGTERM)
"""Its own end; or the signal's, as long as Python itself was still starting."""


def _enqueue(url: str, count: int, payload: str) -> list[int]:
    async def enqueue(store: QueueStore) -> list[int]:
        return await store.jobs.enqueue_many([NewJob(task="innocent", payload=payload)] * count)

    return with_store(url, enqueue)


def _jobs(url: str) -> list[Job]:
    async def look(store: QueueStore) -> list[Job]:
        return list(await store.inspect.list(JobFilter(states=tuple(State), limit=10_000)))

    return with_store(url, look)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0.0))


def test_a_signal_at_any_moment_ends_a_worker_in_time_and_leaves_nothing_in_processing(
    url: str, workers: Workers
) -> None:
    _enqueue(url, 2000, '{"number": 1, "pause": 0.001}')
    started = [(time.monotonic() + moment, workers.start("--grace", f"{GRACE}s")) for moment in MOMENTS]
    for moment, process in sorted(started, key=lambda pair: pair[0]):
        _sleep_until(moment)
        process.send_signal(signal.SIGTERM)
    for number, (_, process) in enumerate(started):
        assert exit_code_within(process, GRACE + 5) in BY_ITSELF, workers.output(number)
    jobs = _jobs(url)
    assert len(jobs) == 2000
    assert {job.state for job in jobs} <= {State.QUEUED, State.COMPLETED}
    assert all(job.attempts == (1 if job.state is State.COMPLETED else 0) and job.resets == 0 for job in jobs)


def test_twenty_signals_in_a_row_end_a_worker_without_using_attempts(url: str, workers: Workers) -> None:
    (job_id,) = _enqueue(url, 1, '{"number": 1, "pause": 300}')
    process = workers.start("--log-level", "debug", "--grace", "300")
    workers.wait_for("Started task")
    began = time.monotonic()
    while process.poll() is None:
        assert time.monotonic() - began < 60, workers.output()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process.wait() in (0, 1), workers.output()
    (job,) = _jobs(url)
    assert (job.id, job.state, job.attempts, job.resets) == (job_id, State.QUEUED, 0, 0)


def test_a_lost_database_delays_a_stopping_worker_by_seconds_only(postgres_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = add(postgres_url, "gated", f'{{"gate": "{gate}"}}')
    with Proxy(postgres_url) as proxy:
        workers = Workers(proxy.url, tmp_path)
        process = workers.start("--log-level", "debug", "--grace", "1s", "--lease", "60s", timings=SHORT_END)
        workers.wait_for("Started task")
    try:
        gate.touch()  # it ends, and nobody can be told
        process.send_signal(signal.SIGTERM)
        assert exit_code_within(process, 1 + 5 + 2) == 1, workers.output()
    finally:
        workers.destroy()
    assert f"Not recorded: task {job_id} (gated) succeeded" in workers.output(), workers.output()
    (job,) = _jobs(postgres_url)
    assert job.state is State.PROCESSING, "nobody could tell the database; its lease ends by itself"
