"""What a store reports beside its replies: the state of its listening connection, and warnings."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, BaseException | None, object], None]
"""Called with "connecting", "success", or "error" and the error; and with the listening connection, to look at."""
Warn = Callable[[str, str], None]
"""Called, from any thread, with what a person should know of the store, and with its fix (or an empty text)."""


class Notices:
    """Of one store. Each kind has one subscriber at a time: the latest."""

    def __init__(self) -> None:
        self._on_listening: Report | None = None
        self._on_warning: Warn | None = None

    def on_listening(self, call: Report | None) -> None:
        """Call it when the listening connection changes its state; ``None``: call nothing."""
        self._on_listening = call

    def on_warning(self, call: Warn | None) -> None:
        """Call it with each warning; ``None``: call nothing."""
        self._on_warning = call

    def listening(self, state: str, error: BaseException | None, connection: object) -> None:
        """The store's: its listening connection has changed its state."""
        if self._on_listening is not None:
            self._on_listening(state, error, connection)

    def warn(self, warning: str, mend: str) -> None:
        """The store's, from any thread."""
        if self._on_warning is not None:
            self._on_warning(warning, mend)
