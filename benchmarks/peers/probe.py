"""What benchmarks/probe.py writes, for peers that run in an environment of their own. Safe with threads."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(os.environ["STOWHAND_BENCH_PROBE"])
HEAD, DELAY = struct.Struct("<ddq"), struct.Struct("<d")
MOST_DELAYS = 2000
SIZE = HEAD.size + DELAY.size * MOST_DELAYS


class Probe:
    """The file of this process, made with the first job."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._first, self._count = 0.0, 0
        self._lock = threading.Lock()

    def hit(self, sent: float = 0.0) -> None:
        """A handler begins."""
        now = time.monotonic()
        with self._lock:
            if self._map is None:
                self._map, self._first = _open(), now
            if sent and self._count < MOST_DELAYS:
                DELAY.pack_into(self._map, HEAD.size + DELAY.size * self._count, now - sent)
            self._count += 1
            HEAD.pack_into(self._map, 0, self._first, now, self._count)


hit = Probe().hit


def _open() -> mmap.mmap:
    with (FOLDER / str(os.getpid())).open("w+b") as file:
        file.truncate(SIZE)
        return mmap.mmap(file.fileno(), SIZE)


def total() -> int:
    """Handlers begun, in all processes."""
    files = (path.read_bytes() for path in FOLDER.iterdir())
    return sum(HEAD.unpack_from(file)[2] for file in files if len(file) >= HEAD.size)


async def send_slowly(count: int, enqueue: Callable[[int, float], Awaitable[object]]) -> None:
    """Enqueue one after another, each when the one before has begun and a pause has passed."""
    for number in range(count):
        await enqueue(number, time.monotonic())
        for pause in _until_begun(number):
            await asyncio.sleep(pause)


def send_slowly_blocking(count: int, enqueue: Callable[[int, float], object]) -> None:
    """The same for code without an event loop."""
    for number in range(count):
        enqueue(number, time.monotonic())
        for pause in _until_begun(number):
            time.sleep(pause)


def _until_begun(number: int) -> Iterator[float]:
    deadline = time.monotonic() + 30
    while total() <= number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {number} did not begin within 30 s")
        yield 0.002
    yield 0.004 + 0.020 * (number * 0.6180339887 % 1)


@contextmanager
def timed(count: int) -> Iterator[None]:
    """Print how long the block took, and the processor time of this process in it."""
    began, spent = time.perf_counter(), time.process_time()
    yield
    took = {"count": count, "seconds": time.perf_counter() - began, "processor": time.process_time() - spent}
    sys.stdout.write(json.dumps(took) + "\n")
