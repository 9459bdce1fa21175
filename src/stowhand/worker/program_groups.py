"""Process groups of the programs that this process runs, and the guardian that kills them if this process dies.

A program runs in its own session. If its worker is killed, the program would go on while its job starts again
elsewhere. A parent-death signal is not a solution: a process with threads may run no Python between fork and exec, the
signal would not reach the program's children, and not every system has it. So a guardian process runs beside this one.
It starts with the first program, and ends when a worker has ended and no program runs.
"""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from stowhand.fork import call_in_children

DISMISSAL_TIMEOUT_SECONDS = 1.0
"""Time that a dismissed guardian has to end."""


class ProgramGroups:
    """Registry of the process groups of running programs, with their guardian. One per process; thread-safe."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        call_in_children(self)

    def forked(self) -> None:
        """Forget the parent's programs and close the pipe, so that the guardian notices the parent's death."""
        self._lock = threading.Lock()
        self._groups.clear()
        guardian, self._guardian = self._guardian, None
        if guardian is not None and guardian.stdin is not None:
            guardian.stdin.close()
            guardian.poll()  # lets Popen note the end of a process that is not a child of this one, without a warning

    def prepare(self) -> None:
        """Start the guardian. Called before a program is started."""
        with self._lock:
            self._start()

    def add(self, group: int) -> None:
        """Add the process group of a program that runs."""
        with self._lock:
            self._groups.add(group)
            self._send(f"+{group}")

    def discard(self, group: int) -> None:
        """Remove the process group of a program that has ended."""
        with self._lock:
            self._groups.discard(group)
            self._send(f"-{group}")

    def kill(self) -> None:
        """Kill all programs, because this process is about to exit."""
        for group in tuple(self._groups):
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or runs as another user after setuid
                os.killpg(group, signal.SIGKILL)

    def dismiss(self) -> None:
        """End the guardian unless a program runs."""
        with self._lock:
            guardian = self._guardian
            if guardian is None or self._groups:
                return
            self._guardian = None
            _end_guardian(guardian)

    def _start(self) -> None:
        """Start the guardian if none runs. An embedded Python has no executable to start one."""
        if not sys.executable:
            return
        if self._guardian is not None:
            if self._guardian.poll() is None:
                return
            _end_guardian(self._guardian)
        # A service manager may signal all processes of a service, but the guardian must outlive this process. A signal
        # that is blocked here is blocked in the guardian from its start.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", f"{inspect.getsource(guard)}\nguard()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert self._guardian.stdin is not None
        os.set_blocking(self._guardian.stdin.fileno(), False)  # a hanging guardian must not block this process
        for group in self._groups:
            self._send(f"+{group}")

    def _send(self, line: str) -> None:
        guardian = self._guardian
        if guardian is not None and guardian.stdin is not None:
            with suppress(OSError):  # it was killed: the next program starts another
                os.write(guardian.stdin.fileno(), f"{line}\n".encode())


def guard() -> None:
    """Run as the guardian process. It reads ``+GROUP`` when a program starts, and ``-GROUP`` when it has ended.

    The input ends when the worker has died or dismisses the guardian. The remaining groups are then killed.
    """
    import os
    import signal
    import sys
    from contextlib import suppress

    groups: set[int] = set()
    for line in sys.stdin.buffer:
        change = groups.add if line.startswith(b"+") else groups.discard
        change(int(line[1:]))
    for group in groups:
        with suppress(OSError):  # it has ended, or the number belongs to another user now
            os.killpg(group, signal.SIGKILL)


def _end_guardian(guardian: subprocess.Popen[bytes]) -> None:
    assert guardian.stdin is not None
    guardian.stdin.close()
    try:
        guardian.wait(DISMISSAL_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        guardian.kill()
        guardian.wait()


PROGRAM_GROUPS = ProgramGroups()
atexit.register(PROGRAM_GROUPS.dismiss)
