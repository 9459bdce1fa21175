"""A worker's entry in the list of workers: for people, who ask who works. Nothing else depends on it."""

from __future__ import annotations

import os
import socket

from stowhand.protocols.operating import SEEN_EVERY, WorkerCard, WorkerList, own_version
from stowhand.protocols.store import Heartbeats
from stowhand.worker.abandoned_threads import AbandonedThreads
from stowhand.worker.basis import Basis
from stowhand.worker.watchdog import LoopWatchdog

RETRY_AFTER = 2.0
"""Seconds until an entry is written again that the store has not accepted."""


class Registration:
    """Used by the heartbeat thread. With a store that keeps no list of workers it does nothing."""

    def __init__(
        self, heartbeats: Heartbeats, watchdog: LoopWatchdog, abandoned: AbandonedThreads, basis: Basis
    ) -> None:
        self._watchdog = watchdog
        self._abandoned = abandoned
        self._worker_list = heartbeats if isinstance(heartbeats, WorkerList) else None
        self._duty = basis.duty
        self._worker = basis.worker
        self._options = basis.options
        self.removing = False
        """The entry is to be removed, and has not been yet."""
        self.recorded = True
        """The store has accepted the last entry."""
        self._written_at = float("-inf")
        self._written: WorkerCard | None = None

    def remove(self) -> None:
        """At the next tick."""
        self.removing = True

    async def tick(self, now: float) -> None:
        """Write what is due: a new entry, one that is getting old or has changed, or its removal.

        A removal that fails is not tried again: the store's maintenance does it.
        """
        if self._worker_list is None:
            self.removing = False
        elif self.removing:
            try:
                await self._worker_list.worker_gone(self._worker)
            finally:
                self._worker_list = None
                self.removing = False
        elif now - self._written_at >= (SEEN_EVERY if self.recorded else RETRY_AFTER) or self._card() != self._written:
            self._written_at = now
            self._written = self._card()
            self.recorded = False
            await self._worker_list.worker_seen(self._written)
            self.recorded = True

    def _card(self) -> WorkerCard:
        return WorkerCard(
            name=self._worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=own_version(),
            tasks=self._duty.tasks,
            concurrency=self._options.concurrency,
            stopping=self._duty.is_stopping or self._duty.is_quiet or self._duty.is_over,
            app_version=self._options.app_version,
            forbidden_flags=flags if isinstance(flags := self._options.forbidden_flags, tuple) else None,
            abandoned_threads=self._abandoned.number,
            blocked=self._watchdog.is_blocked,
        )
