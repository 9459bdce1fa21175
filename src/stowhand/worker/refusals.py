"""Reports the changes that a database refuses, such as a renewal or a reset that an application's trigger prevents."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.events import ChangeRefused, Events
from stowhand.jobs.lease import JobId
from stowhand.protocols.store import Heartbeats, RefusedChange

MAX_REPORTED_REFUSALS = 10_000
"""Number of refused changes that are remembered as reported."""


class RefusalReporter:
    """Reporter of refused changes: one event for each job and operation. Called on the heartbeat thread."""

    def __init__(self, heartbeats: Heartbeats, events: Events, name: str) -> None:
        self._heartbeats = heartbeats
        self._events = events
        self._name = name
        self._reported: dict[tuple[JobId, str], None] = {}

    def report(self) -> Sequence[RefusedChange]:
        """Return the changes refused since the last call, and emit an event for each new one."""
        refused = self._heartbeats.refused()
        for refusal in refused:
            key = refusal.job_id, refusal.operation
            if key not in self._reported:
                if len(self._reported) >= MAX_REPORTED_REFUSALS:
                    del self._reported[next(iter(self._reported))]
                self._reported[key] = None
                self._events.emit(ChangeRefused(self._name, refusal.job_id, refusal.operation, refusal.reason))
        return refused
