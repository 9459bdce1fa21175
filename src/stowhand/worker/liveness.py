"""Since when each loop of a worker is at what it does. Written by the loops, read from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

from stowhand.clock import Clock
from stowhand.errors import StoreError


class Call:
    """A call that one loop makes again and again: ``with call: reply = await store.claim(…)``."""

    __slots__ = ("_clock", "good", "refused", "seconds", "since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.since: float | None = None
        """When the one under way began, by the monotonic clock; ``None``: none is."""
        self.seconds = 0.0
        """How long the last one took."""
        self.good: float | None = None
        """When the last one was answered; ``None``: never yet."""
        self.refused: float | None = None
        """Since when the store has answered with errors alone; ``None``: the last call succeeded."""

    def __enter__(self) -> None:
        self.since = self._clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._clock.monotonic()
        self.seconds = now - (self.since or now)
        self.since = None
        if kind is None:
            self.good = now
            self.refused = None
        elif issubclass(kind, StoreError) and self.refused is None:
            self.refused = now

    def age(self, now: float) -> float:
        """Seconds since the one under way began; 0 when none is."""
        since = self.since
        return 0.0 if since is None else max(now - since, 0.0)


class Liveness:
    """Of one worker, and of the parts that the worker has now: they may be replaced when it opens its store."""

    lag: Callable[[], float]
    """Seconds by which the loop was late, the most since the last call of this; 0 or less: it was not."""

    unready: Callable[[], str | None]
    """Why the worker claims nothing new, if it does not. From any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def bind(
        self,
        moments: Mapping[str, Callable[[], float]],
        calls: Mapping[str, Call],
        lag: Callable[[], float] = lambda: 0.0,
        refused_since: Callable[[], float | None] = lambda: None,
        unready: Callable[[], str | None] = lambda: None,
    ) -> None:
        """By loop: ``moments``, when it last moved; ``calls``, its calls to the store. ``refused_since``: since when
        the store refuses what the heartbeater writes."""
        self._moments = moments
        self._calls = calls
        self._heartbeat_refused_since = refused_since
        self.lag = lag
        self.unready = unready

    def ages(self) -> dict[str, float]:
        """By loop: seconds since it moved, or that its call to the store has taken so far; 0 when it rests."""
        now = self._clock.monotonic()
        moved = {name: max(now - moment(), 0.0) for name, moment in self._moments.items()}
        return moved | {name: call.age(now) for name, call in self._calls.items()}

    def refused(self) -> dict[str, float]:
        """By loop: seconds for which the store has answered with errors alone. Not of waking: it polls instead."""
        since = {name: self._calls[name].refused for name in ("claiming", "settling")}
        now = self._clock.monotonic()
        since["heartbeat"] = self._heartbeat_refused_since()
        return {name: max(now - moment, 0.0) for name, moment in since.items() if moment is not None}

    @property
    def heard(self) -> float | None:
        """When the store last answered a claim or a settlement, by the monotonic clock; ``None``: never yet."""
        answered = (self._calls["claiming"].good, self._calls["settling"].good)
        return max((moment for moment in answered if moment is not None), default=None)

    @property
    def claimed(self) -> bool:
        """A claim has been answered: the worker has started."""
        return self._calls["claiming"].good is not None
