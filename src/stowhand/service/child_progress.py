"""What a job in a process of its own says of its progress: lines before the answer, through the same pipe.

The worker notes them as it notes those of its own handlers: one write a second, guarded by the lease.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress

import msgspec

from stowhand.clock import sleep_blocking
from stowhand.errors import ConfigurationError
from stowhand.jobs.lease import Lease
from stowhand.protocols.progress import Progress, Report, read_progress

MARK = b"progress "
"""Begins such a line; an answer begins with a brace."""
EVERY = 0.25
"""Seconds between two lines, at least."""


class ProgressPipe:
    """The child's end. ``note`` is called from any thread and waits for nobody: of what comes sooner than it may be
    sent the newest is, and what finds the pipe full is dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._newest: Progress | None = None
        self._noted = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def note(self, progress: Progress) -> None:
        """To be sent at once, or a quarter of a second after the one before."""
        self._newest = progress
        self._noted.set()
        if self._thread is None:
            with self._writing:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send, name="stowhand progress", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """From now on the pipe is the answer's; it waits for its reader again."""
        with self._writing:
            self._closed = True
            os.set_blocking(self._descriptor, True)

    def _send(self) -> None:
        while True:
            self._noted.wait()
            self._noted.clear()
            with self._writing:
                if self._closed:
                    return
                if (newest := self._newest) is not None:
                    # A line is shorter than PIPE_BUF: written whole or not at all.
                    os.set_blocking(self._descriptor, False)
                    with suppress(OSError):
                        os.write(self._descriptor, MARK + msgspec.json.encode((newest.done, newest.text)) + b"\n")
            sleep_blocking(EVERY)


async def read_answer(stream: asyncio.StreamReader, lease: Lease, report: Report | None) -> bytes:
    """The worker's end: the first line that is none of progress. The others are reported, under the worker's lease."""
    while (line := await stream.readline()).startswith(MARK):
        with suppress(msgspec.MsgspecError, ConfigurationError):
            done, text = msgspec.json.decode(line[len(MARK) :], type=tuple[float, str | None])
            if report is not None:
                report(read_progress(lease, done, text))
    return line
