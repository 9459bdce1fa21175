"""The process groups of programs that run for this process, and the guardian that ends them if this process dies.

A program is in a session of its own, so what kills its worker leaves it running while its job starts again elsewhere. A
signal at the parent's death would have to be requested between fork and exec, where a process with threads may run no
Python; it would reach the program alone, and not what that has started; and not every system has it. So a guardian runs
beside this process. It starts with the first program, and ends when a worker has ended and no program runs.
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
"""Seconds that a guardian has to end when it is dismissed."""


class ProgramGroups:
    """The process groups of this process's programs, and their guardian. One per process; from any thread."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        call_in_children(self)

    def forked(self) -> None:
        """Forget the parent's programs, and close the pipe: its end tells the guardian that the parent is gone."""
        self._lock = threading.Lock()
        self._groups.clear()
        guardian, self._guardian = self._guardian, None
        if guardian is not None and guardian.stdin is not None:
            guardian.stdin.close()
            guardian.poll()  # of a process that is no child of this one Popen notes that it has ended, and is silent

    def prepare(self) -> None:
        """Start the guardian. Called before a program is started."""
        with self._lock:
            self._start()

    def add(self, group: int) -> None:
        """Note that a program runs in this process group."""
        with self._lock:
            self._groups.add(group)
            self._send(f"+{group}")

    def discard(self, group: int) -> None:
        """Note that the program has ended."""
        with self._lock:
            self._groups.discard(group)
            self._send(f"-{group}")

    def kill(self) -> None:
        """Kill all programs: this process is about to end at once."""
        for group in tuple(self._groups):
            with suppress(ProcessLookupError, PermissionError):  # gone, or of another user since a setuid
                os.killpg(group, signal.SIGKILL)

    def dismiss(self) -> None:
        """End the guardian, unless there is something to guard."""
        with self._lock:
            guardian = self._guardian
            if guardian is None or self._groups:
                return
            self._guardian = None
            _end_guardian(guardian)

    def _start(self) -> None:
        """Start the guardian, again after it was killed. An embedded Python cannot say how to start one."""
        if not sys.executable:
            return
        if self._guardian is not None:
            if self._guardian.poll() is None:
                return
            _end_guardian(self._guardian)
        # A service manager may signal all processes of a service; the guardian is to outlive this one. A signal that is
        # blocked here is blocked there from its first moment.
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
        os.set_blocking(self._guardian.stdin.fileno(), False)  # a guardian that hangs must not block this process
        for group in self._groups:
            self._send(f"+{group}")

    def _send(self, line: str) -> None:
        guardian = self._guardian
        if guardian is not None and guardian.stdin is not None:
            with suppress(OSError):  # it was killed: the next program gets another
                os.write(guardian.stdin.fileno(), f"{line}\n".encode())


def guard() -> None:
    """Run as the guardian process. Its input says ``+GROUP`` when a program starts, and ``-GROUP`` when it has ended.

    The end of the input means that the worker is gone, or dismisses the guardian: the groups that are left are killed.
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
        with suppress(OSError):  # gone, or of another user now
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
