"""Queues: classes of work. Every job is in one, and a worker chooses which of them it serves."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

DEFAULT_QUEUE = "default"
"""The queue of a job if neither the call nor the task names one."""


class Queues(msgspec.Struct, frozen=True):
    """The queues that a worker serves."""

    only: tuple[str, ...] | None = None
    """``None``: all."""
    excluded: tuple[str, ...] = ()

    def __contains__(self, queue: object) -> bool:
        return (self.only is None or queue in self.only) and queue not in self.excluded

    @property
    def are_all(self) -> bool:
        """True if no queue is excluded."""
        return self.only is None and not self.excluded

    def without(self, paused: Collection[str]) -> Queues:
        """Return these queues without the paused ones."""
        return Queues(self.only, (*self.excluded, *paused)) if paused else self


ALL_QUEUES = Queues()
