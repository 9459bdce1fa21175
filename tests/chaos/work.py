"""The work that the chaos test has done: each job writes what it did into a ledger outside the queue.

One line is one ``write`` to a file opened for appending: whole or not at all, whoever is killed when.
"""

from __future__ import annotations

import asyncio
import os

from stowhand.app.app import App
from stowhand.retry import constant
from stowhand.tasks.context import Context

app = App()
LEDGER = os.environ.get("CHAOS_LEDGER", os.devnull)
FAILS_FIRST = 20
"""Every so-manieth job fails the first time."""


@app.task(name="step", backoff=constant(0.2), max_attempts=25)
async def step(context: Context, number: int, pause: float) -> int:
    """Say that it began, take some time, say that it ended."""
    _write("began", context, number)
    await asyncio.sleep(pause)
    if number % FAILS_FIRST == 0 and context.attempt == 1:
        _write("failed", context, number)
        raise RuntimeError("the first attempt of this one fails")
    _write("ended", context, number)
    return number


def _write(what: str, context: Context, number: int) -> None:
    lease = context.lease
    line = f"{what} {number} {lease.job_id} {lease.epoch} {lease.token} {os.getpid()}\n"
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
