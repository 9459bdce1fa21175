"""Running a program for a job: its input, its output line by line, and its end.

The program gets a session of its own. To stop it, its process group gets TERM, and KILL after a pause; processes that
it leaves behind when it ends, and that hold its pipes, are killed, for they would run on unseen. When this process is
killed, a guardian kills its programs (worker/program_groups.py).
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from stowhand.worker.program_groups import PROGRAM_GROUPS

LINE_LIMIT = 16 * 1024
"""Bytes of one line; the rest of a longer one is dropped."""
LAST_WORDS = 1.0
"""Seconds within which the last output of a program must have arrived, once it has ended."""
_LAST_BYTES = 0.2
"""The same for one that was stopped."""


class OutputReader(Protocol):
    """Reader of the output of a program."""

    def feed(self, data: bytes) -> None:
        """More output."""

    def end(self) -> None:
        """The output has ended."""


class Lines:
    """Splits bytes into lines of text."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._line = bytearray()

    def feed(self, data: bytes) -> None:
        """More output."""
        *ended, begun = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            self.end()
        self._add(begun)

    def end(self) -> None:
        """Report the line that has begun, unless it is blank."""
        cut = len(self._line) > LINE_LIMIT
        text = self._line[:LINE_LIMIT].decode("utf-8", "replace").rstrip() + "…" * cut
        self._line.clear()
        if text:
            self._on_line(text)

    def _add(self, piece: bytes) -> None:
        self._line += piece[: LINE_LIMIT + 1 - len(self._line)]


class Conversation(asyncio.SubprocessProtocol):
    """The pipes and the end of one program."""

    def __init__(self, output: OutputReader, errors: OutputReader | None = None) -> None:
        self._readers = {1: output} if errors is None else {1: output, 2: errors}
        self.merged = errors is None
        """Both outputs are one pipe, so that their lines stay in order."""
        self.ended = asyncio.Event()
        """The process is gone, although others may still hold its pipes."""
        self.silent = asyncio.Event()
        """All its outputs have ended."""
        self.code: int | None = None
        """Its exit code once it is gone, negative for a signal."""
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The program has started."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        PROGRAM_GROUPS.add(self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Read at once, so that no program waits with a full pipe."""
        self._readers[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note the end of an output. A program may close its input unread: that is no error."""
        reader = self._readers.pop(fd, None)  # none: its input
        if reader is not None:
            reader.end()
        if not self._readers:
            self.silent.set()

    def process_exited(self) -> None:
        """Note the exit code of the process, which has been reaped."""
        assert self._transport is not None
        self.code = self._transport.get_returncode()
        self.ended.set()


async def run_program(
    argv: Sequence[str],
    given: bytes | None,
    environment: Mapping[str, str],
    talk: Conversation,
    patience: Callable[[], float],
    cwd: str | None = None,
    *,
    may_leave: bool = True,
) -> int:
    """Run it with ``given`` on its input (``None``: it has none); its exit code, negative for a signal.

    ``may_leave``: what it leaves running in its group goes on when it ends, unless that holds its pipes.

    Cancelled, it ends the program first: KILL comes ``patience()`` seconds after TERM. Raises OSError or ValueError
    when it cannot be started.
    """
    loop = asyncio.get_running_loop()
    PROGRAM_GROUPS.prepare()
    transport, disturbed = await _started(
        loop.subprocess_exec(
            lambda: talk,
            *argv,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stderr=subprocess.STDOUT if talk.merged else subprocess.PIPE,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    )
    group = transport.get_pid()
    stdin = cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0))
    try:
        if disturbed is not None:
            raise disturbed
        if stdin is not None:
            stdin.write(given or b"")
            stdin.close()  # once it is written
        await talk.ended.wait()
        # What it started and left behind may hold its pipes, and would hold them for ever.
        if not await _within(talk.silent, LAST_WORDS) or not may_leave:
            _signal(group, signal.SIGKILL)
        assert talk.code is not None
        return talk.code
    except asyncio.CancelledError:
        await _end(group, talk, patience())
        raise
    finally:
        PROGRAM_GROUPS.discard(group)
        transport.close()
        if stdin is not None and stdin.get_write_buffer_size():
            stdin.abort()  # what it left behind may hold it, and would never read


async def _started(
    starting: Coroutine[Any, Any, tuple[asyncio.SubprocessTransport, Conversation]],
) -> tuple[asyncio.SubprocessTransport, asyncio.CancelledError | None]:
    """Return the started program, and the cancellation that came meanwhile.

    asyncio would kill the program alone, and not what it has started.
    """
    task = asyncio.ensure_future(starting)
    disturbed: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            disturbed = error
    if disturbed is not None and task.exception() is not None:
        raise disturbed
    return task.result()[0], disturbed


def how_it_ended(code: int) -> str:
    """``exited with code 3``, ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def why_not_started(file: str, error: OSError | ValueError) -> str:
    """Explain why a program file could not be started."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ENOEXEC:
        return f"{error.strerror}; a script begins with a line such as #!/bin/sh"
    if isinstance(error, FileNotFoundError) and (interpreter := _interpreter(file)):
        return f"its first line names {interpreter}, which is not on this machine"
    return error.strerror or str(error)


def _interpreter(file: str) -> str | None:
    try:
        with Path(file).open("rb") as opened:
            first = opened.readline(256).decode("utf-8", "replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    return words[0] if first.startswith("#!") and words else None


def kill_programs() -> None:
    """Kill every program that runs for this process, which is about to exit. From any thread."""
    PROGRAM_GROUPS.kill()


async def _end(group: int, talk: Conversation, patience: float) -> None:
    """TERM, a pause, KILL. Cancelled once more, the pause is over; the process is waited for all the same."""
    try:
        if not talk.ended.is_set():
            _signal(group, signal.SIGTERM)
            await _within(talk.ended, patience)
    finally:
        _signal(group, signal.SIGKILL)
        await _within(talk.ended, LAST_WORDS)
        await _within(talk.silent, _LAST_BYTES)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or of another user by setuid
        os.killpg(group, number)
