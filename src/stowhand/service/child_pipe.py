"""The pipe between a child process that runs suspects and its worker: lines.

begun            the handler starts: from now on the death of the child counts as a death of the job
progress [...]   noted by the worker as it notes those of its own handlers, under its lease
{...}            the answer
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
from stowhand.protocols.attempt import Progress, Report, read_progress

BEGUN = b"begun\n"
MARK = b"progress "
"""Begins a line of progress; an answer begins with a brace."""
EVERY = 0.25
"""Seconds between two lines of progress, at least."""


class AnswerPipe:
    """The child's end. Its methods may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lease: Lease | None = None
        """Of the job that runs."""
        self._newest: Progress | None = None
        self._noted = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, lease: Lease) -> None:
        """The handler of this job starts."""
        with self._writing:
            self._lease = lease
            self._write(BEGUN)

    def answer(self, answer: msgspec.Struct) -> None:
        """The job is over. Progress that has not been sent is dropped."""
        with self._writing:
            self._lease = self._newest = None
            self._write(msgspec.json.encode(answer) + b"\n")

    def note(self, progress: Progress) -> None:
        """Send progress at once, or a quarter of a second after the line before. Of what comes sooner the newest is
        sent; what finds the pipe full is dropped."""
        if progress.lease != self._lease:
            return  # of a job that is over
        self._newest = progress
        self._noted.set()
        if self._thread is None:
            with self._writing:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send, name="stowhand progress", daemon=True)
                    self._thread.start()

    def _write(self, line: bytes) -> None:
        os.set_blocking(self._descriptor, True)
        left = memoryview(line)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def _send(self) -> None:
        while True:
            self._noted.wait()
            self._noted.clear()
            with self._writing:
                newest = self._newest
                if newest is not None and newest.lease == self._lease:
                    # A line is shorter than PIPE_BUF: written whole or not at all.
                    os.set_blocking(self._descriptor, False)
                    with suppress(OSError):
                        os.write(self._descriptor, MARK + msgspec.json.encode((newest.done, newest.text)) + b"\n")
            sleep_blocking(EVERY)


class Answer:
    """What the worker has read of one attempt."""

    def __init__(self) -> None:
        self.begun = False
        self.line: bytes | None = None
        """``None``: there is no whole answer."""


async def read_answer(stream: asyncio.StreamReader, answer: Answer, lease: Lease, report: Report | None) -> None:
    """The worker's end: read until there is an answer, or the pipe has ended. Progress is reported on the way."""
    while (line := await stream.readline()).endswith(b"\n"):
        if line == BEGUN:
            answer.begun = True
        elif not line.startswith(MARK):
            answer.line = line
            return
        elif report is not None:
            with suppress(msgspec.MsgspecError, ConfigurationError):
                done, text = msgspec.json.decode(line[len(MARK) :], type=tuple[float, str | None])
                report(read_progress(lease, done, text))
