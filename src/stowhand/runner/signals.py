"""Signals for as long as a runner lives: TERM, INT and HUP stop it; afterwards they do what they did before."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

from stowhand.errors import ConfigurationError
from stowhand.service.process import has_terminal


class Signals:
    """Tells ``heard`` the name of each signal, between any two steps of the loop's thread."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Raises ConfigurationError where no signal can be heard."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("signals are heard in the main thread only; give no_handle_signals=True")
        # A HUP without a terminal is somebody's word to reread a configuration, and not ours to take.
        for number in (signal.SIGTERM, signal.SIGINT, *[signal.SIGHUP] * has_terminal()):
            self._before[number] = signal.getsignal(number)
            self._loop.add_signal_handler(number, lambda: None)  # a signal wakes the loop
            signal.signal(number, lambda number, _: self._heard(signal.Signals(number).name))

    def restore(self) -> None:
        """What was there before is there again. Harmless when repeated."""
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()
