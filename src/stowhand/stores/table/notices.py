"""What people should know of a table that is served, told to whoever serves it."""

from __future__ import annotations

from stowhand.events import Events, StoreWarned


class Notices:
    """Of one store. Nobody is told before somebody works on it."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._told: list[Events] = []

    def to(self, events: Events) -> None:
        """Tell these too."""
        if not any(events is one for one in self._told):
            self._told.append(events)

    def say(self, warning: str, mend: str = "") -> None:
        """From the loop, or from the heart's thread."""
        for events in tuple(self._told):
            events.emit(StoreWarned(self._store, warning, mend))
