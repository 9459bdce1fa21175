"""Serial keys served by three processes that are killed again and again: one job at a time, in order, none lost."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import QueueStore
from tests.service.processes import Workers, children_of, wait_until_done, with_store
from tests.service.work import note

QUEUES, JOBS, KILLS = 5, 100, 6


@pytest.mark.timeout(180)
def test_jobs_of_a_queue_run_one_after_the_other_in_order_while_workers_are_killed(
    url: str, workers: Workers, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch()

    async def enqueue(store: QueueStore) -> None:
        await store.jobs.enqueue_many(
            NewJob(
                task="in_turn",
                serial=f"q{n % QUEUES}",
                payload=f'{{"ledger": "{ledger}", "serial": "q{n % QUEUES}", "number": {n}}}',
            )
            for n in range(QUEUES * JOBS)
        )

    with_store(url, enqueue)
    process = workers.start("--processes", "3", "--lease", "30")
    for _ in range(KILLS):
        _wait_for_growth(ledger)
        _kill_one(children_of(process), ledger)
    counts = wait_until_done(url, 120)
    assert counts[State.COMPLETED] == QUEUES * JOBS
    lines = [line.split() for line in ledger.read_text().splitlines()]
    for number in range(QUEUES):
        _check(f"q{number}", lines)


def _check(serial: str, lines: list[list[str]]) -> None:
    running: tuple[str, str] | None = None
    begun: Counter[str] = Counter()
    firsts: list[int] = []
    for line in lines:
        match line:
            case ["killed", pid]:
                if running is not None and running[1] == pid:
                    running = None
            case ["began", name, number, pid] if name == serial:
                assert running is None, f"{serial}: {number} began in {pid} while {running} was running"
                running = (number, pid)
                begun[number] += 1
                if begun[number] == 1:
                    firsts.append(int(number))
            case ["ended", name, number, pid] if name == serial:
                assert running == (number, pid)
                running = None
    assert len(firsts) == JOBS
    # What died twice is quarantined, and does not hold up the others; it had begun in its turn before.
    assert firsts == sorted(firsts), f"{serial}: out of order"


def _kill_one(children: list[psutil.Process], ledger: Path) -> None:
    """Freeze a worker before killing it, so that the ledger is complete before another worker reacts."""
    child = random.choice(children)
    try:
        child.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while child.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    except psutil.NoSuchProcess:
        return
    note(str(ledger), f"killed {child.pid}")
    child.kill()


def _wait_for_growth(ledger: Path) -> None:
    """Wait until the ledger has grown, or all jobs are done: the workers may be faster than the test."""
    before = ledger.stat().st_size
    deadline = time.monotonic() + 60
    while ledger.stat().st_size < before + 1000 and ledger.read_text().count("ended") < QUEUES * JOBS:
        assert time.monotonic() < deadline, "nobody works"
        time.sleep(0.01)
