"""The work that the chaos test has done: each job writes what it did into a ledger outside the queue.

One line is one ``write`` to a file opened for appending: whole or not at all, whoever is killed when.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from stowhand.app.app import App
from stowhand.clock import wall_clock
from stowhand.limits import Concurrency, Rate, RateLimited
from stowhand.retry import constant
from stowhand.stores.sqlite.queue import moment
from stowhand.tasks.context import Context

app = App()
LEDGER = os.environ.get("CHAOS_LEDGER", os.devnull)
CLOCK = os.environ.get("CHAOS_CLOCK")
"""A file with the seconds by which the wall clock of an SQLite store is set."""
FAILS_FIRST = 20
"""Every so-manieth job fails the first time."""
IS_REFUSED_FIRST = 30
"""Every so-manieth job of a task with limits raises RateLimited the first time."""

LIMITS: dict[str, Sequence[Concurrency | Rate]] = {
    "step": (),
    "serial": (),
    "at_once": (Concurrency(3),),
    "customer": (Concurrency(2, key="key"),),
    "paced": (Rate(20, per="1s", burst=3),),
    "paced_customer": (Rate(5, per="1s", burst=2, key="key"),),
}


async def work(context: Context, number: int, pause: float, key: str = "") -> int:
    """Say that it began, take some time, say that it ended."""
    _write("began", context, number, key)
    try:
        await asyncio.sleep(pause)
    except BaseException:
        _write("canceled", context, number, key)
        raise
    if number % FAILS_FIRST == 0 and context.attempt == 1:
        _write("failed", context, number, key)
        raise RuntimeError("the first attempt of this one fails")
    if LIMITS[context.job.task] and number % IS_REFUSED_FIRST == 1 and context.lease.epoch == 1:
        _write("refused", context, number, key)
        raise RateLimited(for_=0.2)
    _write("ended", context, number, key)
    return number


for name, limits in LIMITS.items():
    app.task(name=name, limits=limits, backoff=constant(0.2), max_attempts=25)(work)


def _write(what: str, context: Context, number: int, key: str) -> None:
    lease = context.lease
    # A job whose worker has died runs in a child of its worker.
    pids = f"{os.getpid()} {os.getppid()}"
    words = (what, number, lease.job_id, lease.epoch, lease.token, pids, time.time(), context.job.task, key)
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, ("\t".join(map(str, words)) + "\n").encode())
    finally:
        os.close(descriptor)


def _stepped_clock() -> datetime:
    """Return the time of a clock that the test sets. The ledger has the true time."""
    file = Path(CLOCK or os.devnull)
    shift = float(file.read_text() or 0) if file.exists() else 0.0
    return wall_clock() + timedelta(seconds=shift)


if CLOCK is not None:
    vars(moment)["wall_clock"] = _stepped_clock
