"""Threads that still run the handler of an attempt that has ended: a thread cannot be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stowhand.events import ThreadAbandoned, ThreadEnded, ThreadsExhausted
from stowhand.worker.basis import Basis
from stowhand.worker.leases import Held


class AbandonedThreads:
    """Those of one worker. Changed on its loop, read from any thread.

    With as many as jobs may run at once, the worker claims nothing more: each new job could add another.
    """

    def __init__(self, on_exhausted: Callable[[], None], basis: Basis) -> None:
        """``on_exhausted``: called on the worker's loop when the number is reached."""
        self._on_exhausted = on_exhausted
        self._limit = basis.options.concurrency
        self._changes = basis.changes
        self._events = basis.events
        self._worker = basis.worker
        self._threads: list[tuple[Held, threading.Event]] = []
        self._was_exhausted = False

    @property
    def number(self) -> int:
        """Those that still run."""
        return sum(not ended.is_set() for _, ended in self._threads)

    @property
    def are_exhausted(self) -> bool:
        """The worker claims nothing more."""
        return self.number >= self._limit

    def why_exhausted(self) -> str | None:
        """Half a sentence, if it claims nothing more."""
        if not self.are_exhausted:
            return None
        return f"threads: {self.number} outlived their timeouts and still run, as many as jobs may run at once"

    def add(self, held: Held, ended: threading.Event) -> None:
        """The attempt has ended and its thread has not. ``ended``: set when the thread ends."""
        self._threads.append((held, ended))
        self._events.emit(ThreadAbandoned(self._worker, held.claim.lease.job_id, held.claim.task))
        if self.are_exhausted and not self._was_exhausted:
            self._was_exhausted = True
            self._events.emit(ThreadsExhausted(self._worker, self.number))
            self._on_exhausted()

    def look(self) -> None:
        """Report threads that have ended. Called several times a second."""
        over = [one for one in self._threads if one[1].is_set()]
        if not over:
            return
        self._threads = [one for one in self._threads if one not in over]
        self._was_exhausted = self.are_exhausted
        self._changes.wake()
        for held, _ in over:
            self._events.emit(ThreadEnded(self._worker, held.claim.lease.job_id, held.claim.task, self.number))
