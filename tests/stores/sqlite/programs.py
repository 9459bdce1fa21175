"""What the other processes of these tests run: ``python -m tests.stores.sqlite.programs <what> <file> …``."""

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


def start(what: str, *arguments: object) -> subprocess.Popen[str]:
    """One of the programs below, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.sqlite.programs", what, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(process: subprocess.Popen[str], line: str = "") -> None:
    """A line to it."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear_ready(process: subprocess.Popen[str]) -> None:
    """Wait until it is."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def request(limit: int = 1, worker: str = "w", **asked: object) -> ClaimRequest:
    """A claim with a new token."""
    given = {"lease": 30.0, **asked}
    return ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=limit, **given)  # type: ignore[arg-type]


def _say(*words: object) -> None:
    """To the test, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def drain(store: SqliteStore) -> None:
    """Claim and complete until nothing is left; after the first claim, wait for the others. Prints every id claimed."""
    claimed: list[int] = []
    while claims := await store.claim(request(7, worker=str(os.getpid()))):
        if not claimed:
            _say("ready")
            sys.stdin.readline()
        claimed += [claim.lease.job_id for claim in claims]
        await store.settle([(claim.lease, COMPLETED) for claim in claims])
    _say(*claimed)


async def enqueue(store: SqliteStore) -> None:
    """Enqueue for ever; prints an id when it is committed."""
    while True:
        _say((await store.jobs.enqueue(NewJob(task="t", payload=f'"{"x" * 500}"'))).id)


async def churn(store: SqliteStore) -> None:
    """Every kind of write, from every thread that writes, in a hurry."""
    heartbeats = store.heartbeats()
    for _ in range(60):
        await store.jobs.enqueue_many([NewJob(task="t") for _ in range(5)])
        claims = await store.claim(request(5))
        leases = [claim.lease for claim in claims]
        beat = heartbeats.beat(leases, 30.0)
        await asyncio.gather(beat, store.settle([(lease, COMPLETED) for lease in leases]))
    _say("done")


async def tell(store: SqliteStore) -> None:
    """Enqueue one job for each line that is read; prints when it was committed."""
    _say("ready")
    for _ in iter(sys.stdin.readline, ""):
        await store.jobs.enqueue(NewJob(task="t"))
        _say(SystemClock().monotonic())


STRIDE = 20
"""Minutes that a scheduler enters between two words of the test."""


async def schedule(store: SqliteStore) -> None:
    """Enter the same ticks as everybody else, in the order told, keeping step with them; prints those won."""
    latest, order = sys.stdin.readline().split()
    minutes = list(range(120) if order == "backwards" else reversed(range(120)))
    won: list[int | None] = []
    for place, back in enumerate(minutes):
        if place % STRIDE == 0:
            _say("ready")
            sys.stdin.readline()
        at = datetime.fromisoformat(latest) - timedelta(minutes=back)
        ticks = [
            Tick(identifier=name, at=at, job=NewJob(task="t", payload=f'"{name}{back}"'), spec="s") for name in "abc"
        ]
        entered = await store.timetable.schedule(ticks[::-1] if order == "backwards" else ticks)
        won += [one.job_id for one in entered if one.is_own]
    _say(*won)


async def _main(what: str, path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await {"drain": drain, "enqueue": enqueue, "churn": churn, "tell": tell, "schedule": schedule}[what](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
