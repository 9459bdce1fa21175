"""Probes: small mapped files that worker processes write, so that reading them costs the workers nothing.

    first, last    when the first and the last handler began: seconds of the monotonic clock, which the processes of one
                   machine share
    count          handlers begun
    delays         from the enqueueing of a job to the beginning of its handler, for jobs that carry the moment

Programs in other languages can write the same file: two doubles and an int64, then doubles, all little-endian.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stowhand.clock import SystemClock

FOLDER = "STOWHAND_BENCH_PROBE"
"""The environment variable that names the folder of these files."""
_HEAD = struct.Struct("<ddq")
_DELAY = struct.Struct("<d")
_MOST_DELAYS = 2000
_SIZE = _HEAD.size + _DELAY.size * _MOST_DELAYS


class Probe:
    """Probe file of this process."""

    def __init__(self, folder: Path) -> None:
        path = folder / str(os.getpid())
        with path.open("w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._now = SystemClock().monotonic
        self._first = 0.0
        self._count = 0

    def hit(self, sent: float = 0.0) -> None:
        """Record the start of a handler. ``sent``: time before the enqueue of its job; 0 if not measured."""
        now = self._now()
        if not self._count:
            self._first = now
        if sent and self._count < _MOST_DELAYS:
            _DELAY.pack_into(self._map, _HEAD.size + _DELAY.size * self._count, now - sent)
        self._count += 1
        _HEAD.pack_into(self._map, 0, self._first, now, self._count)


@functools.cache
def own_probe() -> Probe:
    """Return the probe of this process, in the folder that its environment names."""
    return Probe(Path(os.environ[FOLDER]))


class Seen(msgspec.Struct, frozen=True):
    """Sum of all files of a folder."""

    count: int
    first: float
    """0.0 when nothing has begun."""
    delays: list[float]


def look(folder: Path) -> Seen:
    """Read all files. A file that is still being created does not count."""
    files = [read for path in folder.iterdir() if len(read := path.read_bytes()) >= _HEAD.size]
    heads = [head for file in files if (head := _HEAD.unpack_from(file))[2]]
    return Seen(
        count=sum(head[2] for head in heads),
        first=min((head[0] for head in heads), default=0.0),
        delays=[delay for file in files for delay in _delays(file)],
    )


def _delays(file: bytes) -> Iterator[float]:
    count = min(_HEAD.unpack_from(file)[2], (len(file) - _HEAD.size) // _DELAY.size)
    for number in range(count):
        (delay,) = _DELAY.unpack_from(file, _HEAD.size + _DELAY.size * number)
        if delay > 0:
            yield delay
