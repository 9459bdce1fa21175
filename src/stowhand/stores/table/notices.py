"""Warnings about a table that is served, emitted as events of its workers."""

from __future__ import annotations

from stowhand.events import Events, StoreWarned


class Notices:
    """Of one store. Without a worker there are no events to emit to."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._listeners: list[Events] = []

    def to(self, events: Events) -> None:
        """Emit to these too."""
        if not any(events is one for one in self._listeners):
            self._listeners.append(events)

    def say(self, warning: str, mend: str = "") -> None:
        """From the loop, or from the heartbeats' thread."""
        for events in tuple(self._listeners):
            events.emit(StoreWarned(self._store, warning, mend))
