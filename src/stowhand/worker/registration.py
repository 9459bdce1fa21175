"""A worker's entry in the roll: for people, who ask who works. Nothing else depends on it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache
from importlib import metadata

from stowhand.protocols.operating import SEEN_EVERY, WorkerCard, WorkerList
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Heartbeats

AGAIN = 2.0
"""Seconds until an entry is written again that the store has not taken."""


class Registration:
    """Used by the heart's thread. With a store that keeps no roll it does nothing."""

    def __init__(self, heartbeats: Heartbeats, worker: str, options: WorkerOptions) -> None:
        self._worker_list = heartbeats if isinstance(heartbeats, WorkerList) else None
        self._worker, self._options = worker, options
        self.says: Callable[[], tuple[tuple[str, ...] | None, bool]] = lambda: (options.tasks, False)
        """The tasks that it claims just now, and whether it is stopping."""
        self.leaving = False
        """It is to be taken out, and has not been yet."""
        self.recorded = True
        """The store has taken the last entry."""
        self._written = float("-inf")
        self._said: WorkerCard | None = None

    def tick(self, now: float) -> None:
        """Write what is due: a new entry, one that is getting old or has changed, the goodbye.

        A goodbye that could not be written is not said again: the store's maintenance mends it.
        """
        if self._worker_list is None:
            self.leaving = False
        elif self.leaving:
            try:
                self._worker_list.worker_gone(self._worker)
            finally:
                self._worker_list, self.leaving = None, False
        elif now - self._written >= (SEEN_EVERY if self.recorded else AGAIN) or self._card() != self._said:
            self._written, self._said, self.recorded = now, self._card(), False
            self._worker_list.worker_seen(self._said)
            self.recorded = True

    def _card(self) -> WorkerCard:
        tasks, stopping = self.says()
        return WorkerCard(
            name=self._worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_version(),
            tasks=tasks,
            concurrency=self._options.concurrency,
            stopping=stopping,
            forbidden_flags=flags if isinstance(flags := self._options.forbidden_flags, tuple) else None,
        )


@cache
def _version() -> str:
    return metadata.version("stowhand")
