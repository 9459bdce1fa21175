"""Running a program for a job: its input, what it says line by line, and its end, whichever way that comes.

The program gets a session of its own. Told to stop, its process group gets TERM, and KILL after a pause; what it leaves
behind when it ends is killed, for nobody would ever hear of it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

LINE_LIMIT = 16 * 1024
"""Bytes of one line; the rest of a longer one is dropped."""
LAST_WORDS = 1.0
"""Seconds in which what a program said last must have come, once it has ended."""
_groups: set[int] = set()
"""Process groups that run for this process."""


class Lines:
    """Bytes in, lines of text out."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._line = bytearray()

    def feed(self, data: bytes) -> None:
        """Some more of it."""
        *ended, begun = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            self.end()
        self._add(begun)

    def end(self) -> None:
        """Tell of the line that has begun. Blank ones are nobody's business."""
        cut = len(self._line) > LINE_LIMIT
        text = self._line[:LINE_LIMIT].decode("utf-8", "replace").rstrip() + "…" * cut
        self._line.clear()
        if text:
            self._tell(text)

    def _add(self, piece: bytes) -> None:
        self._line += piece[: LINE_LIMIT + 1 - len(self._line)]


class Conversation(asyncio.SubprocessProtocol):
    """What is heard from one program."""

    def __init__(self, said: Lines, complained: Lines) -> None:
        self._lines = {1: said, 2: complained}
        self.ended = asyncio.Event()
        """The process is gone, whoever still holds its pipes."""
        self.silent = asyncio.Event()
        """Nobody can say anything more."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Read at once, so that no program waits for us with a full pipe."""
        self._lines[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """A program may close its input unread: that is not for us to judge."""
        lines = self._lines.pop(fd, None)
        if lines is not None:
            lines.end()
        if not self._lines:
            self.silent.set()

    def process_exited(self) -> None:
        """It was waited for, so it is no zombie."""
        self.ended.set()


async def run_program(
    file: str, given: bytes, environment: Mapping[str, str], talk: Conversation, patience: Callable[[], float]
) -> int:
    """Run it with ``given`` on its input; its exit code, negative for a signal.

    Cancelled, it ends the program first: KILL comes ``patience()`` seconds after TERM. Raises OSError or ValueError
    when it cannot be started.
    """
    loop = asyncio.get_running_loop()
    transport, _ = await loop.subprocess_exec(lambda: talk, file, env=environment, start_new_session=True)
    group = transport.get_pid()
    _groups.add(group)
    try:
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        stdin.write(given)
        stdin.close()  # once it is written
        await talk.ended.wait()
        if not await _within(talk.silent, LAST_WORDS):
            _signal(group, signal.SIGKILL)  # something it started holds its pipes, and would hold them for ever
        code = transport.get_returncode()
        assert code is not None
        return code
    except asyncio.CancelledError:
        await _end(group, talk, patience())
        raise
    finally:
        _groups.discard(group)
        transport.close()


def kill_programs() -> None:
    """Kill every program that runs for this process: it is about to leave without a word. From any thread."""
    for group in list(_groups):
        _signal(group, signal.SIGKILL)


async def _end(group: int, talk: Conversation, patience: float) -> None:
    """TERM, a pause, KILL. Cancelled once more, the pause is over; the process is waited for all the same."""
    try:
        if not talk.ended.is_set():
            _signal(group, signal.SIGTERM)
            await _within(talk.ended, patience)
    finally:
        _signal(group, signal.SIGKILL)
        await _within(talk.ended, LAST_WORDS)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or become somebody else by setuid
        os.killpg(group, number)
