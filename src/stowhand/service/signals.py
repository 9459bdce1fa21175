"""Signals to a process that is ours: wishes to stop while it works, and nothing that could change how it ends."""

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

WISHES = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def handle_signals(
    wish: Callable[[], object], reload: Callable[[], object] = lambda: None, quiet: Callable[[], object] = lambda: None
) -> None:
    """TERM, INT and QUIT are wishes to stop; so is HUP when a terminal went away. Without one it asks to ``reload``.

    USR1 prints where each thread is, to stderr, whatever the loop does just now. USR2 asks to be ``quiet``, and again
    not to be.
    """
    _show_stacks_on_usr1()
    terminal = has_terminal()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, quiet)
    # With one handler of its own the loop is woken by any signal; and what Python calls itself is heard even while the
    # loop is blocked. A signal that came between the two would be lost, so TERM and INT never have one of the loop's.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, (lambda: None) if terminal else reload)
    for number in [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT] + [signal.SIGHUP] * terminal:
        signal.signal(number, lambda *_: wish())


def _show_stacks_on_usr1() -> None:
    with suppress(AttributeError, ValueError, OSError):  # stderr is closed, or no file: then USR1 stays without effect
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


async def to_the_end(work: Coroutine[Any, Any, int]) -> int:
    """Run it; once it has ended with a code, a signal that comes late ends the process at once, with that code.

    The loop's own handlers end with the loop, and whoever signals after that would seem to have killed the process.
    """
    code = await work
    loop = asyncio.get_running_loop()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WISHES)
    try:
        for number in WISHES:
            loop.remove_signal_handler(number)
            signal.signal(number, lambda *_: os._exit(code))
        loop.remove_signal_handler(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _earned.append(code)
    return code


def _go_deaf() -> None:
    """The interpreter takes its handlers down while it ends, and leaves alone what is ignored."""
    if _earned:
        for number in WISHES:
            signal.signal(number, signal.SIG_IGN)


_earned: list[int] = []
"""The code of a process whose work has ended."""
atexit.register(_go_deaf)  # early, so that it is called late


def has_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False
