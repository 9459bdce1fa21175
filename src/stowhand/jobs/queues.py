"""Queues: classes of work. Every job is in one, and a worker chooses which of them it serves."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

DEFAULT_QUEUE = "default"
"""The queue of jobs for which neither the call nor the task names one."""


class Queues(msgspec.Struct, frozen=True):
    """The queues that a worker serves."""

    only: tuple[str, ...] | None = None
    """``None``: all."""
    excluded: tuple[str, ...] = ()

    def __contains__(self, queue: object) -> bool:
        return (self.only is None or queue in self.only) and queue not in self.excluded

    @property
    def are_all(self) -> bool:
        """No queue is left out."""
        return self.only is None and not self.excluded

    def without(self, paused: Collection[str]) -> Queues:
        """The same without paused queues."""
        return Queues(self.only, (*self.excluded, *paused)) if paused else self


ALL_QUEUES = Queues()
