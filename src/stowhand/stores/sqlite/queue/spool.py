"""Collects the jobs of one transaction before it starts, without keeping all in memory.

A slow source must not hold the file's only write lock, and a hundred thousand jobs must not fill the memory. Jobs
beyond ``MAX_JOBS_IN_MEMORY`` are written to a temporary file and read back in chunks inside the transaction.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import IO

import msgspec

from stowhand.jobs.job import KeyMode, NewJob
from stowhand.jobs.limits import refuse_repeated_key

MAX_JOBS_PER_CHUNK = 2000
MAX_JOBS_IN_MEMORY = 5000
"""Jobs beyond this number go to a file."""
_LENGTH_PREFIX = struct.Struct("<I")


class Spool:
    """Spool of jobs: ``put`` each job, then read ``chunks``, again if a busy file restarts the transaction."""

    def __init__(self) -> None:
        self._jobs_in_memory: list[NewJob] = []
        self._file: IO[bytes] | None = None
        self._keys: dict[str, KeyMode] = {}
        self._encoder = msgspec.msgpack.Encoder()

    def put(self, job: NewJob) -> None:
        """Add a job. Raise InvalidJob for a repeated key."""
        refuse_repeated_key(job, self._keys)
        if len(self._jobs_in_memory) < MAX_JOBS_IN_MEMORY:
            self._jobs_in_memory.append(job)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        packed = self._encoder.encode(job)
        self._file.write(_LENGTH_PREFIX.pack(len(packed)))
        self._file.write(packed)

    def chunks(self) -> Iterator[list[NewJob]]:
        """Yield all jobs, in the order in which they were added."""
        for start in range(0, len(self._jobs_in_memory), MAX_JOBS_PER_CHUNK):
            yield self._jobs_in_memory[start : start + MAX_JOBS_PER_CHUNK]
        if self._file is not None:
            self._file.seek(0)
            yield from _read(self._file)

    def close(self) -> None:
        """Close the temporary file, which deletes it."""
        if self._file is not None:
            self._file.close()


def _read(file: IO[bytes]) -> Iterator[list[NewJob]]:
    decoder = msgspec.msgpack.Decoder(NewJob)
    chunk: list[NewJob] = []
    while head := file.read(_LENGTH_PREFIX.size):
        chunk.append(decoder.decode(file.read(_LENGTH_PREFIX.unpack(head)[0])))
        if len(chunk) == MAX_JOBS_PER_CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
