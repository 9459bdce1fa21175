"""Names each job that the database refuses to change, once for each kind of call."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.events import ChangeRefused, Events
from stowhand.jobs.lease import JobId
from stowhand.protocols.store import Heartbeats, Refusal

REMEMBERED = 10_000
"""Jobs of which it is known that they were named."""


class Refusals:
    """Asks one heart. For the thread of the heart."""

    def __init__(self, heartbeats: Heartbeats, events: Events, name: str) -> None:
        self._heartbeats, self._events, self._name = heartbeats, events, name
        self._named: dict[tuple[JobId, str], None] = {}

    def hear(self) -> Sequence[Refusal]:
        """What was refused since this was last asked; those that are new are told."""
        refused = self._heartbeats.refused()
        for one in refused:
            if (one.job_id, one.doing) not in self._named:
                if len(self._named) >= REMEMBERED:
                    del self._named[next(iter(self._named))]
                self._named[one.job_id, one.doing] = None
                self._events.emit(ChangeRefused(self._name, one.job_id, one.doing, one.why))
        return refused
