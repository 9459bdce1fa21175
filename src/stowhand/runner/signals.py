"""Signals for as long as a runner lives: TERM, INT and HUP stop it; afterwards they do what they did before.

Several runners of one program hear each of them; the last one to end gives the signals back.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.service.signals import has_terminal

_hearing: list[Signals] = []
_before: dict[signal.Signals, Any] = {}
"""What the signals did that are ours now."""


class Signals:
    """Tells ``heard`` the name of each signal, between any two steps of the loop's thread."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self.heard = heard
        self.loop = asyncio.get_running_loop()

    def install(self) -> None:
        """Raises ConfigurationError where no signal can be heard."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("signals are heard in the main thread only; give no_handle_signals=True")
        # A HUP without a terminal is somebody's word to reread a configuration, and not ours to take.
        for number in (signal.SIGTERM, signal.SIGINT, *[signal.SIGHUP] * has_terminal()):
            before = signal.getsignal(number)
            if before is not _tell:
                _before[number] = before
                self.loop.add_signal_handler(number, lambda: None)  # a signal wakes the loop
                signal.signal(number, _tell)
        _hearing.append(self)

    def restore(self) -> None:
        """What was there before is there again, once nobody hears any more. Harmless when repeated."""
        _hearing[:] = [one for one in _hearing if one is not self and not one.loop.is_closed()]
        if _hearing:
            return
        for number, before in _before.items():
            now = signal.getsignal(number)
            self.loop.remove_signal_handler(number)
            # Somebody else may have taken it since.
            signal.signal(number, now if now is not _tell else signal.SIG_DFL if before is None else before)
        _before.clear()


def _tell(number: int, _: FrameType | None) -> None:
    for one in tuple(_hearing):
        if not one.loop.is_closed():  # as one is whose program gave up in the middle
            one.heard(signal.Signals(number).name)
