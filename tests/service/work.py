"""Tasks for the tests of processes: innocent ones, one that kills its worker, one that will not stop."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from stowhand.app.app import App
from stowhand.retry import constant
from stowhand.tasks.context import Context

app = App()


@app.task(name="innocent")
async def innocent(number: int, pause: float = 0.0) -> int:
    """Do no harm."""
    await asyncio.sleep(pause)
    return number


@app.task(name="killer", backoff=constant(0.0))
async def killer() -> None:
    """What a crash in a C extension does to a process."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="leaver")
async def leaver(code: int) -> None:
    """End the process as if it had done its work, or could not."""
    os._exit(code)


@app.task(name="who_am_i")
async def who_am_i(context: Context) -> dict[str, int]:
    """Where it ran."""
    return {"pid": os.getpid(), "attempt": context.attempt}


@app.task(name="recorder")
async def recorder(context: Context, number: int) -> int:
    """Record a step."""
    return await context.step("charge", abs, number)


@app.task(name="stubborn")
async def stubborn(seconds: float) -> None:
    """Ignore every wish to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue


@app.task(name="slow_thread")
def slow_thread(seconds: float) -> None:
    """A thread that cannot be stopped."""
    time.sleep(seconds)


@app.task(name="obeying_thread")
def obeying_thread(context: Context, file: str) -> None:
    """Say in which process it runs. Look now and then whether it is canceled, and end half a second later."""
    tell(file, str(os.getpid()))
    while not context.canceled:
        time.sleep(0.02)
    time.sleep(0.5)


@app.task(name="hung_thread", timeout=0.2)
def hung_thread(gate: str) -> None:
    """A thread that outlives its timeout, until that file is there."""
    while not Path(gate).exists():
        time.sleep(0.02)


@app.task(name="blocker")
async def blocker(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@app.task(name="jam")
async def jam(gate: str) -> None:
    """Block the event loop until that file is there."""
    while not Path(gate).exists():  # noqa: ASYNC240 - that is the point
        time.sleep(0.02)  # noqa: ASYNC251


@app.task(name="gated")
async def gated(gate: str, file: str = "") -> None:
    """Say in which process it runs, and end when that file is there."""
    if file:
        tell(file, str(os.getpid()))
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - a test's task
        await asyncio.sleep(0.02)


@app.task(name="teller")
async def teller(gate: str, context: Context) -> None:
    """Say how far it is, and end when that file is there."""
    for page in range(101):
        context.progress(page / 100, f"page {page} of 100")
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - a test's task
        await asyncio.sleep(0.02)


@app.task(name="linger")
async def linger(file: str, seconds: float) -> None:
    """Say in which process it runs, then take a while."""
    tell(file, str(os.getpid()))
    await asyncio.sleep(seconds)


@app.task(name="forker")
async def forker(seconds: float) -> None:
    """Die, and leave a process behind that holds whatever was open."""
    if os.fork() == 0:
        time.sleep(seconds)  # noqa: ASYNC251 - the fork has no loop
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="in_turn")
async def in_turn(context: Context, ledger: str, serial: str, number: int) -> None:
    """Write when it begins and ends; a line is one write."""
    note(ledger, f"began {serial} {number} {os.getpid()}")
    await asyncio.sleep(0.01)
    note(ledger, f"ended {serial} {number} {os.getpid()}")


def tell(file: str, words: str) -> None:
    """Whoever sees the file finds all of them in it."""
    new = Path(f"{file}.new")
    new.write_text(words)
    new.rename(file)


def note(ledger: str, line: str) -> None:
    """Append a line with a single write, so that it is whole even if the process is killed."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
