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
from stowhand.job import NewJob
from stowhand.lifecycle import COMPLETED
from stowhand.queue_store import Tick
from stowhand.store import ClaimRequest
from stowhand.stores.sqlite import SqliteStore

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


def request(limit: int = 1, worker: str = "w", **asked: object) -> ClaimRequest:
    """A claim with a new token."""
    given = {"lease": 30.0, **asked}
    return ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=limit, **given)  # type: ignore[arg-type]


def _say(*words: object) -> None:
    """To the test, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def drain(store: SqliteStore) -> None:
    """Claim and complete until nothing is left; prints every id claimed."""
    _say("ready")
    sys.stdin.readline()
    while claims := await store.claim(request(7, worker=str(os.getpid()))):
        _say(*(claim.lease.job_id for claim in claims))
        await store.settle([(claim.lease, COMPLETED) for claim in claims])


async def enqueue(store: SqliteStore) -> None:
    """Enqueue for ever; prints an id when it is committed."""
    while True:
        _say((await store.enqueue(NewJob(task="t", payload=f'"{"x" * 500}"'))).id)


async def churn(store: SqliteStore) -> None:
    """Every kind of write, from every thread that writes, in a hurry."""
    heart = store.heart()
    for _ in range(60):
        await store.enqueue_many([NewJob(task="t") for _ in range(5)])
        claims = await store.claim(request(5))
        leases = [claim.lease for claim in claims]
        beat = asyncio.to_thread(heart.beat, leases, 30.0)
        await asyncio.gather(beat, store.settle([(lease, COMPLETED) for lease in leases]))
    _say("done")


async def tell(store: SqliteStore) -> None:
    """Enqueue one job for each line that is read; prints when it was committed."""
    _say("ready")
    for _ in iter(sys.stdin.readline, ""):
        await store.enqueue(NewJob(task="t"))
        _say(SystemClock().monotonic())


async def schedule(store: SqliteStore) -> None:
    """Enter the same ticks as everybody else, those up to the minute told, in the order told; prints those won."""
    _say("ready")
    latest, order = sys.stdin.readline().split()
    for back in range(120) if order == "backwards" else reversed(range(120)):
        at = datetime.fromisoformat(latest) - timedelta(minutes=back)
        ticks = [
            Tick(identifier=name, at=at, job=NewJob(task="t", payload=f'"{name}{back}"'), spec="s") for name in "abc"
        ]
        entered = await store.schedule(ticks[::-1] if order == "backwards" else ticks)
        _say(*(one.job_id for one in entered if one.mine))


async def _main(what: str, path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await {"drain": drain, "enqueue": enqueue, "churn": churn, "tell": tell, "schedule": schedule}[what](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
