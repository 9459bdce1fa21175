"""How a worker works. One frozen value with a sentence per field; contradictions are refused when it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import msgspec

from stowhand import limits
from stowhand.errors import ConfigurationError
from stowhand.lifecycle import Backoff
from stowhand.retry import exponential, natural

LOOK_AHEAD_SECONDS = 0.25
STRETCHED_POLL = 10.0
Flags = Callable[[], Iterable[str] | Awaitable[Iterable[str] | None] | None]
"""Gives the flags that are forbidden just now. Asked often, so it should be quick."""
OUTAGE: Backoff = exponential(base=0.1, cap=5.0)
"""Seconds until a call is tried again that the store has not answered n times in a row. An outage may last for days."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds everywhere."""

    name: str | None = None
    """The worker's identity; host, pid and a random boot id unless a supervisor chose one."""
    concurrency: int = 4
    """Handlers running at once."""
    tasks: tuple[str, ...] | None = None
    """Claim only these; ``None``: whatever the store has."""
    poll_interval: float | None = None
    """How often to look without having been woken. ``None``: 2 s, stretched to 10 s while wake-ups are heard."""
    lease: float = 30.0
    """How long the store keeps a job for a worker that has gone silent."""
    beat: float | None = None
    """How often leases are renewed; ``None``: a third of the lease."""
    grace: float = 25.0
    """How long running jobs may take to end after the first ``stop()``."""
    timeout: float | None = None
    """How long one attempt may take, where the handler's policy does not say."""
    backoff: Backoff = natural
    """How long to wait after a failure, where the handler's policy does not say."""
    forbidden_flags: tuple[str, ...] | Flags = ()
    """Jobs that bear one of these are left alone. A function, asynchronous or not, is asked before every claim, which
    then takes one job; it gives a list, or ``None`` for no flags."""
    look_ahead: int = 100
    """Jobs claimed ahead of free slots at most; 0: never."""
    once: bool = False
    """End when nothing is due and nothing runs."""
    sweep_interval: float = 5.0
    """How often to look for dead workers' jobs while working; six times rarer when idle."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}: {getattr(self, name)!r} given, must be more than 0"
            for name in ("concurrency", "lease", "poll_interval", "beat", "timeout", "sweep_interval")
            if getattr(self, name) is not None and not getattr(self, name) > 0
        ]
        problems += [
            f"{name}: {getattr(self, name)!r} given, must not be negative"
            for name in ("grace", "look_ahead")
            if getattr(self, name) < 0
        ]
        if self.beat is not None and self.beat * 3 > self.lease * 1.000001:  # three times 0.1 is more than 0.3
            problems.append(f"beat: {self.beat} s given; a lease of {self.lease} s must last at least three beats")
        if not callable(self.forbidden_flags):
            try:
                msgspec.structs.force_setattr(self, "forbidden_flags", limits.read_forbidden(self.forbidden_flags))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("; ".join(problems))

    @property
    def every_beat(self) -> float:
        """Seconds between two renewals of one lease."""
        return self.beat if self.beat is not None else self.lease / 3

    def poll(self, *, hears: bool) -> float:
        """Seconds between two looks of an idle worker."""
        if self.poll_interval is not None:
            return self.poll_interval
        return STRETCHED_POLL if hears else 2.0
