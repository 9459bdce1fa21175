"""What a worker is to do just now: which tasks it claims, and whether it rests, ends or stops."""

from __future__ import annotations

from stowhand.worker.changes import Changes


class Duty:
    """Changed on the worker's loop, which signals it; read from any thread."""

    def __init__(self, tasks: tuple[str, ...] | None, changes: Changes) -> None:
        self._changes = changes
        self.tasks = tasks
        """Claim only these; ``None``: any."""
        self.is_quiet = False
        """Claim nothing for the time being."""
        self.over_because: str | None = None
        """Claim nothing more; end when nothing runs: the worker has reached this limit."""
        self.is_stopping = False
        """Claim nothing more, and end within the grace."""
        self.stopped_at = 0.0
        """When it was first asked to stop, by the monotonic clock."""
        self.at_once = False
        """It stops without a grace."""

    def retask(self, tasks: tuple[str, ...] | None) -> None:
        """Claim jobs of these from now on."""
        self.tasks = tasks
        self._changes.wake()

    def quiet(self, *, on: bool) -> None:
        """Rest, or claim again."""
        self.is_quiet = on
        self._changes.wake()

    @property
    def is_over(self) -> bool:
        """Claim nothing more; end when nothing runs."""
        return self.over_because is not None

    def end(self, reason: str) -> None:
        """A limit is reached. May be repeated: the first reason is kept."""
        self.over_because = self.over_because or reason
        self._changes.look_again()

    def stop(self, now: float, *, at_once: bool) -> None:
        """May be repeated: the first moment stands."""
        self.at_once = self.at_once or at_once
        if not self.is_stopping:
            self.is_stopping = True
            self.stopped_at = now
        self._changes.look_again()
