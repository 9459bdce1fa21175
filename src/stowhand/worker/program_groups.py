"""The process groups of programs that run for this process, and the guardian that ends them if this process dies.

The guardian (program_guardian.py) starts with the first program, and ends when a worker has ended and no program runs.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

DISMISSED_WITHIN = 1.0
"""Seconds that a guardian has to end when it is dismissed."""


class Guarded:
    """One of these per process. From any thread."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._guarded_pid = 0
        """The process that the guardian watches: a fork of that process has no guardian."""
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """A program is about to be started."""
        with self._lock:
            self._start()

    def add(self, group: int) -> None:
        """A program runs in this process group."""
        with self._lock:
            self._groups.add(group)
            self._send(f"+{group}")

    def discard(self, group: int) -> None:
        """It has ended."""
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
            if guardian is None or self._guarded_pid != os.getpid() or self._groups:
                return
            self._guardian = None
            _end(guardian)

    def _start(self) -> None:
        """Again after it was killed, and in a fork. An embedded Python cannot say how to start one."""
        if not sys.executable:
            return
        if self._guarded_pid != os.getpid():
            self._groups.clear()
        elif self._guardian is not None:
            if self._guardian.poll() is None:
                return
            _end(self._guardian)
        from importlib.resources import files

        source = (files("stowhand.worker") / "program_guardian.py").read_text("utf-8")
        self._guarded_pid = os.getpid()
        # A service manager may signal all processes of a service; the guardian is to outlive this one. A signal that is
        # blocked here is blocked there from its first moment.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", source, str(self._guarded_pid)],
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


def _end(guardian: subprocess.Popen[bytes]) -> None:
    assert guardian.stdin is not None
    guardian.stdin.close()
    try:
        guardian.wait(DISMISSED_WITHIN)
    except subprocess.TimeoutExpired:
        guardian.kill()
        guardian.wait()


GUARDED = Guarded()
atexit.register(GUARDED.dismiss)
