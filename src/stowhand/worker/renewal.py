"""When a worker has started as many jobs, or used as much time or memory, as it may: it claims nothing new and ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from stowhand.errors import ConfigurationError
from stowhand.events import WorkerRenewed
from stowhand.jobs.durations import say_duration
from stowhand.worker.basis import Basis
from stowhand.worker.slots import Slots

MEMORY_CHECK_SECONDS = 1.0
STATM = Path("/proc/self/statm")


class Renewal:
    """The limits of one worker: ``max_jobs``, ``max_age``, ``max_memory``."""

    def __init__(self, slots: Slots, resident: Callable[[], int], basis: Basis) -> None:
        """``resident``: gives the bytes of memory that the process uses. Raises ConfigurationError."""
        self._slots = slots
        self._resident = resident
        self._options = basis.options
        self._duty = basis.duty
        self._events = basis.events
        self._clock = basis.clock
        self._worker = basis.worker
        self._memory_check_due = 0.0
        self._is_reported = False
        if self._options.max_memory is not None:
            resident()

    @property
    def jobs_left(self) -> float:
        """How many more the worker may claim, ever."""
        if self._options.max_jobs is None:
            return float("inf")
        claimed = self._slots.ended + self._slots.running + len(self._slots.ready)
        return max(self._options.max_jobs - claimed, 0)

    def reason(self) -> str | None:
        """Which limit was reached. From any thread."""
        if self._duty.over_because is None and not self.jobs_left:
            return f"max_jobs ({self._options.max_jobs}) reached"
        return self._duty.over_because

    def start(self) -> None:
        """The worker begins to work."""
        if self._options.max_age is not None:
            age = say_duration(self._options.max_age)
            self._clock.call_later(self._options.max_age, lambda: self._duty.end(f"max_age ({age}) reached"))

    def look(self) -> None:
        """Check the memory once a second, and report a limit that was reached. Called several times a second."""
        now = self._clock.monotonic()
        # Before its first job the process cannot have leaked: a limit that is too low must not keep it from all work.
        if self._options.max_memory is not None and now >= self._memory_check_due and self._slots.ended:
            self._memory_check_due = now + MEMORY_CHECK_SECONDS
            used = self._resident()
            if used > self._options.max_memory:
                self._duty.end(f"max_memory ({_mib(self._options.max_memory)}) reached: {_mib(used)} used")
        if not self._is_reported and not self._duty.is_stopping and (reason := self.reason()) is not None:
            self._is_reported = True
            self._events.emit(WorkerRenewed(self._worker, reason, self._slots.running))


def resident_bytes() -> int:
    """Memory of this process, shared pages included; where the system only says that, the most it ever used. Raises
    ConfigurationError where it says neither."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        raise ConfigurationError("max_memory: this system does not say how much memory a process uses") from None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
