"""A child process that runs a program for a job: its input, its output by line, and its exit.

The program gets its own session. To stop it, its process group gets TERM, and KILL after a delay. Processes that it
leaves behind and that hold its pipes are killed, because they would run on unnoticed. If this process is killed, a
guardian kills its programs (worker/program_groups.py).
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

MAX_LINE_BYTES = 16 * 1024
"""The rest of a longer line is dropped."""
OUTPUT_TIMEOUT_SECONDS = 1.0
"""Time to wait for the last output of a program after its exit."""
_STOPPED_OUTPUT_TIMEOUT_SECONDS = 0.2
"""The same for a program that was stopped."""


class OutputReader(Protocol):
    """Reader of the output of a program."""

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the output."""

    def end(self) -> None:
        """Process the end of the output."""


class LineSplitter:
    """Splits bytes into lines of text."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._line = bytearray()

    def feed(self, data: bytes) -> None:
        """Report the lines that these bytes complete."""
        *finished, unfinished = data.split(b"\n")
        for piece in finished:
            self._add(piece)
            self.end()
        self._add(unfinished)

    def end(self) -> None:
        """Report the unfinished line, unless it is blank."""
        is_cut = len(self._line) > MAX_LINE_BYTES
        text = self._line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
        if is_cut:
            text += "…"
        self._line.clear()
        if text:
            self._on_line(text)

    def _add(self, piece: bytes) -> None:
        self._line += piece[: MAX_LINE_BYTES + 1 - len(self._line)]


class ProgramProtocol(asyncio.SubprocessProtocol):
    """The pipes and the exit of one program."""

    def __init__(self, output: OutputReader, errors: OutputReader | None = None) -> None:
        self._readers = {1: output} if errors is None else {1: output, 2: errors}
        self.is_merged = errors is None
        """Whether both outputs share one pipe, which keeps their lines in order."""
        self.exited = asyncio.Event()
        """Set when the process has exited; other processes may still hold its pipes."""
        self.output_closed = asyncio.Event()
        """Set when all outputs have ended."""
        self.code: int | None = None
        """Exit code of the process, negative for a signal; ``None`` while it runs."""
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The program has started."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        PROGRAM_GROUPS.add(self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Read at once, so that no program blocks on a full pipe."""
        self._readers[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note the end of an output. A program may close its input unread, which is not an error."""
        reader = self._readers.pop(fd, None)  # the input has no reader
        if reader is not None:
            reader.end()
        if not self._readers:
            self.output_closed.set()

    def process_exited(self) -> None:
        """Note the exit code of the reaped process."""
        assert self._transport is not None
        self.code = self._transport.get_returncode()
        self.exited.set()


async def run_program(
    argv: Sequence[str],
    input_data: bytes | None,
    environment: Mapping[str, str],
    protocol: ProgramProtocol,
    kill_delay: Callable[[], float],
    cwd: str | None = None,
    *,
    may_leave: bool = True,
) -> int:
    """Run the program and return its exit code, negative for a signal. ``input_data``: its input, if any.

    ``may_leave``: processes of its group keep running when it ends, unless they hold its pipes.

    A cancellation stops the program first: KILL follows ``kill_delay()`` seconds after TERM. Raises OSError or
    ValueError when the program cannot be started.
    """
    loop = asyncio.get_running_loop()
    PROGRAM_GROUPS.prepare()
    transport, cancellation = await _start(
        loop.subprocess_exec(
            lambda: protocol,
            *argv,
            stdin=subprocess.DEVNULL if input_data is None else subprocess.PIPE,
            stderr=subprocess.STDOUT if protocol.is_merged else subprocess.PIPE,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    )
    group = transport.get_pid()
    stdin = cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0))
    try:
        if cancellation is not None:
            raise cancellation
        if stdin is not None:
            stdin.write(input_data or b"")
            stdin.close()  # asyncio writes the buffered data first
        await protocol.exited.wait()
        # Processes that it started and left behind may hold its pipes forever.
        if not await _wait_for(protocol.output_closed, OUTPUT_TIMEOUT_SECONDS) or not may_leave:
            _signal(group, signal.SIGKILL)
        assert protocol.code is not None
        return protocol.code
    except asyncio.CancelledError:
        await _end(group, protocol, kill_delay())
        raise
    finally:
        PROGRAM_GROUPS.discard(group)
        transport.close()
        if stdin is not None and stdin.get_write_buffer_size():
            stdin.abort()  # processes that it left behind may hold the pipe and never read it


async def _start(
    coroutine: Coroutine[Any, Any, tuple[asyncio.SubprocessTransport, ProgramProtocol]],
) -> tuple[asyncio.SubprocessTransport, asyncio.CancelledError | None]:
    """Return the started program, and a cancellation that arrived meanwhile.

    On a cancellation asyncio would kill only the program, and not the processes that it has started.
    """
    task = asyncio.ensure_future(coroutine)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None and task.exception() is not None:
        raise cancellation
    return task.result()[0], cancellation


def describe_exit(code: int) -> str:
    """Return ``exited with code 3`` or ``was killed by SIGKILL``."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def describe_start_error(file: str, error: OSError | ValueError) -> str:
    """Explain why a program file could not be started."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ENOEXEC:
        return f"{error.strerror}; a script begins with a line such as #!/bin/sh"
    if isinstance(error, FileNotFoundError) and (interpreter := _interpreter(file)):
        return f"its first line names {interpreter}, which is not installed on this machine"
    return error.strerror or str(error)


def _interpreter(file: str) -> str | None:
    try:
        with Path(file).open("rb") as stream:
            first_line = stream.readline(256).decode("utf-8", "replace")
    except OSError:
        return None
    words = first_line.removeprefix("#!").split()
    return words[0] if first_line.startswith("#!") and words else None


def kill_programs() -> None:
    """Kill all programs of this process, which is about to exit. From any thread."""
    PROGRAM_GROUPS.kill()


async def _end(group: int, protocol: ProgramProtocol, kill_delay: float) -> None:
    """Send TERM, wait, and send KILL. Another cancellation ends the delay, but not the wait for the exit."""
    try:
        if not protocol.exited.is_set():
            _signal(group, signal.SIGTERM)
            await _wait_for(protocol.exited, kill_delay)
    finally:
        _signal(group, signal.SIGKILL)
        await _wait_for(protocol.exited, OUTPUT_TIMEOUT_SECONDS)
        await _wait_for(protocol.output_closed, _STOPPED_OUTPUT_TIMEOUT_SECONDS)


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # exited, or of another user by setuid
        os.killpg(group, number)
