"""Detects that the event loop is blocked, and reports the handler and its stack."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from stowhand.events import LoopBlocked
from stowhand.jobs.lease import Lease
from stowhand.protocols.store import Claim
from stowhand.worker.policy import HandlerPolicies
from stowhand.worker.state import WorkerState

_FRAMES_LOCK = threading.Lock()


class LoopWatchdog:
    """Watchdog of an event loop: the loop calls ``mark_alive()``, and another thread checks it with ``look()``.

    ``on_hang`` is called once per hang, from the other thread, with the lease of the job that blocks the loop.
    """

    def __init__(
        self, policies: HandlerPolicies, on_hang: Callable[[Lease | None], object], state: WorkerState
    ) -> None:
        self._policies = policies
        self._on_hang = on_hang
        self._state = state
        self._clock = state.clock
        self._options = state.options
        self._thread = threading.get_ident()
        self.last_alive = self._clock.monotonic()
        self.interval = min(state.timings.blocked_threshold / 4, self._options.lease / 20)
        """Interval at which the loop should call ``mark_alive``."""
        self._pause = min(state.timings.blocked_threshold / 2, self._options.every_beat / 2)
        self._lag = 0.0
        self._blocked_after = self._next_report = state.timings.blocked_threshold
        self._hang_reported = False
        self._is_hang_suspected = False
        """Whether the last check suspected a hang. The next one confirms it: the whole process may have slept."""
        self.is_hung = False
        """Whether the loop is blocked for so long that its leases are no longer renewed."""

    def watch_this_thread(self) -> None:
        """Note that the loop runs in the caller's thread."""
        self._thread = threading.get_ident()
        self.mark_alive()

    def mark_alive(self) -> None:
        """Note that the loop runs."""
        last_alive = self.last_alive
        self.last_alive = self._clock.monotonic()
        self._lag = max(self._lag, self.last_alive - last_alive)
        self.is_hung = False
        self._is_hang_suspected = False

    @property
    def is_blocked(self) -> bool:
        """Whether the loop has not run for a second. Readable from any thread."""
        return self._clock.monotonic() - self.last_alive >= self._blocked_after

    def lag(self) -> float:
        """Return the largest delay of ``mark_alive`` in seconds since the last call. Callable from any thread."""
        lag, self._lag = self._lag, 0.0
        return max(lag, self._clock.monotonic() - self.last_alive) - self.interval

    async def look(self) -> float:
        """Report a blocked loop after one second, and again each time the duration doubles.

        Returns the seconds until the next look.
        """
        blocked = self._clock.monotonic() - self.last_alive
        if blocked >= self._next_report:
            self._next_report = max(blocked, self._next_report) * 2
            self._report(blocked)
        elif blocked < self._blocked_after:
            self._next_report = self._blocked_after
            self._hang_reported = False
        return self._pause

    def _report(self, blocked: float) -> None:
        job = self._state.executing
        claim = job.claim if job is not None else None
        hang_timeout = self._hang_timeout(claim)
        if not self._is_hang_suspected and (job is None or blocked > hang_timeout):
            self._is_hang_suspected = True
            self._next_report = blocked
            return
        self.is_hung = blocked > hang_timeout
        self._next_report = min(self._next_report, max(hang_timeout, blocked) + 0.01)
        if self.is_hung:
            self._next_report = blocked * 2
        frame = frame_of(self._thread)
        self._state.events.emit(
            LoopBlocked(
                worker=self._state.worker,
                task=claim.task if claim is not None else None,
                job_id=claim.lease.job_id if claim is not None else None,
                seconds=blocked,
                stack=_handler_stack(frame) if frame is not None else "",
                is_lease_renewed=not self.is_hung,
            )
        )
        if self.is_hung and not self._hang_reported:
            self._hang_reported = True
            self._on_hang(None if claim is None else claim.lease)

    def _hang_timeout(self, claim: Claim[Any] | None) -> float:
        """Return for how many seconds a job may block the loop before it counts as hung.

        This is its timeout plus one lease, or three leases without a timeout.
        """
        timeout = None if claim is None else self._policies.timeout(claim)
        return self._options.lease + (2 * self._options.lease if timeout is None else timeout)


def frame_of(thread: int) -> FrameType | None:
    """Return the frame that a thread executes; ``None`` if the thread has ended.

    On Python 3.11 a garbage collection within the call may deadlock all threads: it releases the interpreter's lock
    while the call holds the lock of the list of threads. So it is disabled during the call.
    """
    with _FRAMES_LOCK:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)  # noqa: SLF001 - its documented use: stacks of other threads
        finally:
            if collects:
                gc.enable()


def _handler_stack(frame: FrameType) -> str:
    """Return the stack from the handler's first frame. Frames of the loop and this package do not help its author."""
    frames = list(traceback.walk_stack(frame))[::-1]
    names = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
    first = max((position + 1 for position, name in enumerate(names) if name == "asyncio.events"), default=0)
    while first < len(names) and names[first].startswith("stowhand."):
        first += 1
    return "".join(traceback.StackSummary.extract(iter(frames[first:] or frames)).format())
