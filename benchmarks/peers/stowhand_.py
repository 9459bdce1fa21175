"""Stowhand itself, driven as an application drives it."""

from __future__ import annotations

import os
import sys

HISTORY = os.environ.get("STOWHAND_HISTORY")
if sys.argv[1] == "worker":  # before the imports: a worker's start does not pay for those of another program
    command = ["-m", "stowhand.cli", "worker", "--app", "benchmarks.noop:app", "--jobs", "24"]
    command += ["--history", "1d" if HISTORY else "none", "--log-level", "error"]
    os.execv(sys.executable, [sys.executable, *command])

import asyncio  # noqa: E402

import probe  # noqa: E402

from benchmarks.noop import app, noop  # noqa: E402
from stowhand.app.app import use_worker_store  # noqa: E402
from stowhand.app.own_store import ResolvedStore  # noqa: E402
from stowhand.app.settings.settings import StoreSettings  # noqa: E402
from stowhand.protocols.store import SECONDS_PER_DAY, StoreOptions  # noqa: E402
from stowhand.stores.url import open_store  # noqa: E402

STORE = StoreSettings(
    connection=ResolvedStore(os.environ["STOWHAND_CONNECTION"], "the benchmark"),
    options=StoreOptions(
        history=SECONDS_PER_DAY if HISTORY else None, synchronous=os.environ.get("STOWHAND_SYNCHRONOUS", "FULL")
    ),
)


async def setup() -> None:
    """Empty tables, as just installed."""
    store = open_store(STORE.url, STORE.options)
    try:
        await store.schema.uninstall()
        await store.schema.install()
    finally:
        await store.close()


async def one(count: int) -> None:
    """Enqueue one by one."""
    for number in range(count):
        await noop.enqueue(number=number)


async def many(count: int) -> None:
    """Enqueue in one call."""
    await app.enqueue_many(noop.new_job(number=number) for number in range(count))


async def main(verb: str, count: int) -> None:
    """Do it, and say how long it took."""
    if verb == "setup":
        await setup()
        return
    use_worker_store(app, STORE.url, STORE.options)
    async with app:
        if verb == "slowly":
            await probe.send_slowly(count, lambda number, sent: noop.enqueue(number=number, sent=sent))
        else:
            with probe.timed(count):
                await {"one": one, "many": many}[verb](count)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
