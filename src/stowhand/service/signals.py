"""Signals to a process: each is a request to stop while it works, and cannot change its exit code after that."""

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
    """Counts requests to stop a process: signals that come close together are one request."""

    def __init__(self, same_signal_seconds: float = DEFAULT_TIMINGS.same_signal) -> None:
        self.count = 0
        self._same_signal_seconds = same_signal_seconds
        self._last_request_at = float("-inf")

    def add(self) -> bool:
        """Count one more. False when it belongs to the one before."""
        now = stopwatch()
        if now - self._last_request_at < self._same_signal_seconds:
            return False
        self._last_request_at = now
        self.count += 1
        return True


def handle_signals(
    stop: Callable[[], object], reload: Callable[[], object] = lambda: None, quiet: Callable[[], object] = lambda: None
) -> None:
    """TERM, INT and QUIT call ``stop``; so does HUP of a terminal. Without a terminal HUP calls ``reload``.

    USR1 prints the stack of each thread to stderr, even while the loop is blocked. USR2 calls ``quiet``.
    """
    _show_stacks_on_usr1()
    terminal = has_terminal()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, quiet)
    # With one handler of its own the loop is woken by any signal; a handler of Python's runs even while the loop is
    # blocked. A signal while one is changed for the other would be lost, so TERM and INT never have one of the loop's.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, (lambda: None) if terminal else reload)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: stop())
    if terminal:
        signal.signal(signal.SIGHUP, lambda *_: stop())


def _show_stacks_on_usr1() -> None:
    with suppress(AttributeError, ValueError, OSError):  # stderr is closed, or no file: then USR1 stays without effect
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


async def run_until_exit(work: Coroutine[Any, Any, int]) -> int:
    """Run it; once it has ended with a code, a late signal ends the process at once, with that code.

    The loop's own handlers end with the loop, and a signal after that would seem to have killed the process.
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
    """The interpreter removes its handlers while it ends; a signal that is ignored stays ignored."""
    if _exit_codes:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


_exit_codes: list[int] = []
"""The code of a process whose work has ended."""
atexit.register(_ignore_late_signals)  # early, so that it is called late


def has_terminal() -> bool:
    """Whether a terminal may send HUP to this process."""
    try:
        return os.isatty(0)
    except OSError:
        return False
