"""The process groups of programs that run for this process, and the guardian that ends them if this process dies.

The guardian (guardian.py) is started with the first program, and dismissed when a worker has ended and none runs.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.resources import files

DISMISSED_WITHIN = 1.0
"""Seconds in which a guardian that is not wanted any more has ended."""


class Guarded:
    """One of these per process. From any thread."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._of = 0
        """The process that the guardian watches: a fork of it has none."""
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """A program is about to be started."""
        with self._lock:
            self._start()

    def add(self, group: int) -> None:
        """It runs."""
        with self._lock:
            self._groups.add(group)
            self._tell(f"+{group}")

    def discard(self, group: int) -> None:
        """It is over."""
        with self._lock:
            self._groups.discard(group)
            self._tell(f"-{group}")

    def kill(self) -> None:
        """Kill them all: this process is about to leave without a word."""
        for group in tuple(self._groups):
            with suppress(ProcessLookupError, PermissionError):  # gone, or become somebody else by setuid
                os.killpg(group, signal.SIGKILL)

    def dismiss(self) -> None:
        """Let the guardian end, unless there is something to guard."""
        with self._lock:
            guardian = self._guardian
            if guardian is None or self._of != os.getpid() or self._groups:
                return
            self._guardian = None
            _end(guardian)

    def _start(self) -> None:
        """Anew after somebody has killed it, and in a fork. A Python that is embedded cannot say how to start it."""
        if not sys.executable:
            return
        if self._of != os.getpid():
            self._groups.clear()
        elif self._guardian is not None:
            if self._guardian.poll() is None:
                return
            _end(self._guardian)
        source = (files("stowhand.worker") / "guardian.py").read_text("utf-8")
        self._of = os.getpid()
        # Whoever stops a service may signal all of its processes; the guardian is to outlive ours. What is blocked here
        # is blocked there from its first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", source, str(self._of)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._guardian.stdin is not None
        os.set_blocking(self._guardian.stdin.fileno(), False)  # one that stands still must not hold us
        for group in self._groups:
            self._tell(f"+{group}")

    def _tell(self, line: str) -> None:
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
