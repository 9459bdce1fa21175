"""Signals to a process. While it works they request a stop; afterwards they cannot change its exit code."""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from stowhand.clock import stopwatch
from stowhand.worker.host import DEFAULT_TIMINGS

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class StopRequests:
    """Counter of requests to stop a process. Signals in quick succession are one request."""

    def __init__(self, same_signal_seconds: float = DEFAULT_TIMINGS.same_signal_window) -> None:
        self.count = 0
        self._same_signal_seconds = same_signal_seconds
        self._last_request_at = float("-inf")

    def add(self) -> bool:
        """Count a request. Return False if it belongs to the previous one."""
        now = stopwatch()
        if now - self._last_request_at < self._same_signal_seconds:
            return False
        self._last_request_at = now
        self.count += 1
        return True


def handle_signals(
    stop: Callable[[], object], reload: Callable[[], object] = lambda: None, quiet: Callable[[], object] = lambda: None
) -> None:
    """Let TERM, INT, QUIT and a terminal's HUP call ``stop``. Without a terminal, HUP calls ``reload``.

    USR1 prints the stack of each thread to stderr, even while the loop is blocked. USR2 calls ``quiet``.
    """
    _show_stacks_on_usr1()
    terminal = has_terminal()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, quiet)
    # One handler of the loop is enough for any signal to wake it. A handler of the signal module runs even while the
    # loop is blocked. Replacing one by the other could lose a signal, so TERM and INT never have one of the loop.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, (lambda: None) if terminal else reload)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: stop())
    if terminal:
        signal.signal(signal.SIGHUP, lambda *_: stop())


def _show_stacks_on_usr1() -> None:
    with suppress(AttributeError, ValueError, OSError):  # stderr is closed or no file: then USR1 has no effect
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


async def run_until_exit(work: Coroutine[Any, Any, int]) -> int:
    """Run the work and return its exit code. A later signal ends the process at once, with that code.

    The loop removes its handlers when it closes. Without others, a late signal would kill the process.
    """
    code = await work
    loop = asyncio.get_running_loop()
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, lambda *_: os._exit(code))
        loop.remove_signal_handler(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    _exit_codes.append(code)
    return code


def _ignore_late_signals() -> None:
    """Ignore late signals. The interpreter removes its handlers at exit, but an ignored signal stays ignored."""
    if _exit_codes:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


_exit_codes: list[int] = []
"""Exit code of a process whose work has ended."""
atexit.register(_ignore_late_signals)  # registered early, so that it is called late


def has_terminal() -> bool:
    """Return whether a terminal may send HUP to this process."""
    try:
        return os.isatty(0)
    except OSError:
        return False
