"""Programs of other processes in these tests: ``python -m tests.stores.sqlite.programs <name> <file> …``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from stowhand.clock import SystemClock
from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.queue_store import Tick
from stowhand.protocols.store import ClaimRequest
from stowhand.stores.sqlite.queue import SqliteStore

ROOT = Path(__file__).parents[3]


def start(name: str, *arguments: object) -> subprocess.Popen[str]:
    """Start one of the programs below in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.sqlite.programs", name, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def send_line(process: subprocess.Popen[str], line: str = "") -> None:
    """Send a line to the program."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    """Wait until the program is ready."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def request(limit: int = 1, worker: str = "w", **fields: object) -> ClaimRequest:
    """Return a claim request with a new token."""
    fields = {"lease": 30.0, **fields}
    return ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=limit, **fields)  # type: ignore[arg-type]


def _print_line(*words: object) -> None:
    """Print a line for the test, without buffering."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def drain(store: SqliteStore) -> None:
    """Claim and complete all jobs. After the first claim, wait for the other processes. Print every claimed id."""
    claimed: list[int] = []
    while claims := await store.claim(request(7, worker=str(os.getpid()))):
        if not claimed:
            _print_line("ready")
            sys.stdin.readline()
        claimed += [claim.lease.job_id for claim in claims]
        await store.settle([(claim.lease, COMPLETED) for claim in claims])
    _print_line(*claimed)


async def enqueue(store: SqliteStore) -> None:
    """Enqueue for ever. Print each id after its commit."""
    while True:
        _print_line((await store.jobs.enqueue(NewJob(task="t", payload=f'"{"x" * 500}"'))).id)


async def churn(store: SqliteStore) -> None:
    """Make every kind of write, from every thread that writes, without pauses."""
    heartbeats = store.heartbeats()
    for _ in range(60):
        await store.jobs.enqueue_many([NewJob(task="t") for _ in range(5)])
        claims = await store.claim(request(5))
        leases = [claim.lease for claim in claims]
        beat = heartbeats.beat(leases, 30.0)
        await asyncio.gather(beat, store.settle([(lease, COMPLETED) for lease in leases]))
    _print_line("done")


async def enqueue_on_request(store: SqliteStore) -> None:
    """Enqueue one job for each line of input. Print the time of each commit."""
    _print_line("ready")
    for _ in iter(sys.stdin.readline, ""):
        await store.jobs.enqueue(NewJob(task="t"))
        _print_line(SystemClock().monotonic())


STRIDE = 20
"""Minutes that a scheduler schedules between two lines of the test."""


async def schedule(store: SqliteStore) -> None:
    """Schedule the same ticks as the other processes, in the order of the input, in step. Print the ids of own jobs."""
    latest, order = sys.stdin.readline().split()
    minutes = list(range(120) if order == "backwards" else reversed(range(120)))
    own_job_ids: list[int | None] = []
    for position, back in enumerate(minutes):
        if position % STRIDE == 0:
            _print_line("ready")
            sys.stdin.readline()
        at = datetime.fromisoformat(latest) - timedelta(minutes=back)
        ticks = [
            Tick(identifier=name, at=at, job=NewJob(task="t", payload=f'"{name}{back}"'), spec="s") for name in "abc"
        ]
        entries = await store.timetable.schedule(ticks[::-1] if order == "backwards" else ticks)
        own_job_ids += [entry.job_id for entry in entries if entry.is_own]
    _print_line(*own_job_ids)


async def _main(name: str, path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await {
        "drain": drain,
        "enqueue": enqueue,
        "churn": churn,
        "enqueue_on_request": enqueue_on_request,
        "schedule": schedule,
    }[name](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
