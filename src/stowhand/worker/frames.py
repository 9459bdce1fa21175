"""Where another thread is just now."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

_ONE_AT_A_TIME = threading.Lock()


def frame_of(thread: int) -> FrameType | None:
    """The frame that this thread executes; ``None`` when it has ended.

    On Python 3.11 a garbage collection that begins within the call may stop every thread for ever: it lets go of the
    interpreter's lock while the call holds the one of the threads.
    """
    with _ONE_AT_A_TIME:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)  # noqa: SLF001 - its documented use: stacks of other threads
        finally:
            if collects:
                gc.enable()
