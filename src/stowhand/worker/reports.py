"""What the heartbeat thread writes for people: that this worker exists, and how far its handlers are.

Nothing else depends on it: a note that cannot be written is dropped.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from stowhand.errors import StoreError
from stowhand.jobs.lease import Pair
from stowhand.protocols.attempt import Progress, ProgressKeeper
from stowhand.protocols.operating import SEEN_EVERY, WorkerCard, WorkerList, own_version
from stowhand.protocols.store import Heartbeats
from stowhand.worker.limits import Limits
from stowhand.worker.state import WorkerState
from stowhand.worker.watchdog import LoopWatchdog

RETRY_AFTER = 2.0
"""Seconds until an entry is written again that the store has not accepted."""
PROGRESS_EVERY = 1.0
"""Seconds between two writes, at least."""


class Registration:
    """A worker's entry in the list of workers. With a store that keeps no list of workers it does nothing."""

    def __init__(self, heartbeats: Heartbeats, watchdog: LoopWatchdog, limits: Limits, state: WorkerState) -> None:
        self._watchdog = watchdog
        self._limits = limits
        self._state = state
        self._worker_list = heartbeats if isinstance(heartbeats, WorkerList) else None
        self.removing = False
        """The entry is to be removed, and has not been yet."""
        self.recorded = True
        """The store has accepted the last entry."""
        self._written_at = float("-inf")
        self._written: WorkerCard | None = None

    def remove(self) -> None:
        """Remove the entry at the next tick."""
        self.removing = True

    async def tick(self, now: float) -> None:
        """Write what is due: a new entry, one that is getting old or has changed, or its removal.

        A removal that fails is not tried again: the store's maintenance does it.
        """
        if self._worker_list is None:
            self.removing = False
        elif self.removing:
            try:
                await self._worker_list.worker_gone(self._state.worker)
            finally:
                self._worker_list = None
                self.removing = False
        elif now - self._written_at >= (SEEN_EVERY if self.recorded else RETRY_AFTER) or self._card() != self._written:
            self._written_at = now
            self._written = self._card()
            self.recorded = False
            await self._worker_list.worker_seen(self._written, self._state.task_queues)
            self.recorded = True

    def _card(self) -> WorkerCard:
        state = self._state
        return WorkerCard(
            name=state.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=own_version(),
            tasks=state.tasks,
            concurrency=state.options.concurrency,
            stopping=state.is_ending or state.is_quiet,
            app_version=state.options.app_version,
            forbidden_flags=flags if isinstance(flags := state.options.forbidden_flags, tuple) else None,
            abandoned_threads=self._limits.abandoned_threads,
            blocked=self._watchdog.is_blocked,
            queues=state.queues,
        )


class ProgressBoard:
    """What handlers report of their progress, noted from any thread: the newest note of a job replaces the others."""

    def __init__(self, keeper: ProgressKeeper, lease: float) -> None:
        self._keeper = keeper
        self._within = lease / 10
        self._notes: dict[Pair, Progress] = {}
        self._lock = threading.Lock()
        self._written = float("-inf")

    def note(self, progress: Progress) -> None:
        """Note what is written within about a second."""
        with self._lock:
            self._notes[progress.lease.pair] = progress

    async def tick(self, now: float, is_beat_due: Callable[[], bool]) -> None:
        """Write what there is, if it is time and no beat is due."""
        if not self._notes or now - self._written < PROGRESS_EVERY or is_beat_due():
            return
        with self._lock:
            notes, self._notes = self._notes, {}
        self._written = now
        with suppress(StoreError):
            await self._keeper.keep_progress(tuple(notes.values()), self._within)
