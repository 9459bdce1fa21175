"""Keys pressed at a terminal, one at a time and without Enter, for a program that shows pages there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import read


@contextmanager
def pressed_keys(told: Callable[[str], None]) -> Iterator[bool]:
    """Call ``told`` with each key, on the running loop. False: there is no terminal to hear, and nothing is called.

    Ctrl-C stays what it is. The terminal is afterwards as it was before.
    """
    try:
        import termios
        import tty
    except ImportError:
        yield False
        return
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (ValueError, OSError, termios.error):
        yield False
        return
    loop = asyncio.get_running_loop()

    def heard() -> None:
        keys = read(terminal, 64)
        if not keys:  # the terminal is gone
            loop.remove_reader(terminal)
        for key in keys.decode("ascii", "replace"):
            told(key)

    tty.setcbreak(terminal)
    try:
        loop.add_reader(terminal, heard)
        yield True
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
