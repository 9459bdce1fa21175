"""The options of a worker: one frozen value; contradictions are refused when it is made."""

from __future__ import annotations

import reprlib
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from datetime import timedelta

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs import limits
from stowhand.jobs.durations import seconds
from stowhand.jobs.lifecycle import Backoff
from stowhand.protocols.offered import check_store
from stowhand.protocols.store import Store, Terms
from stowhand.retry import exponential, natural

LOOK_AHEAD_SECONDS = 0.25
STRETCHED_POLL = 10.0
Flags = Callable[[], Iterable[str] | Awaitable[Iterable[str] | None] | None]
"""Returns the flags that are forbidden at present. Called before every claim, so it should be quick."""
OUTAGE: Backoff = exponential(base=0.1, cap=5.0)
"""Seconds until a call that has failed n times in a row is tried again. An outage may last for days."""


MOST = 10_000
LONGEST = 100 * 366 * 86_400.0
"""Seconds: a hundred years. Stores cannot represent infinity."""
NAME_LIMIT = 255
_SECONDS = (
    "lease",
    "poll_interval",
    "heartbeat_interval",
    "job_timeout",
    "sweep_interval",
    "grace",
    "max_active_time",
)
_WHOLE = ("concurrency", "look_ahead", "max_jobs")
_MAY_BE_NONE = ("poll_interval", "heartbeat_interval", "job_timeout", "max_active_time", "max_jobs")
_MAY_BE_ZERO = ("grace", "look_ahead")
LEASE = 30.0
"""Seconds; the default."""
SHORTEST_LEASE = 1.0
"""Seconds. With less, a short pause of the machine would count as a death."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are seconds; a ``timedelta``, or a phrase such as "30s", is accepted too."""

    name: str | None = None
    """The worker's identity. ``None``: host, pid and a random boot id, or what a supervisor chose."""
    concurrency: int = 4
    """Handlers running at once."""
    tasks: tuple[str, ...] | None = None
    """Claim only these; ``None``: any task."""
    poll_interval: float | None = None
    """How often to poll without having been woken. ``None``: 2 s, or 10 s while wake-ups arrive."""
    lease: float = LEASE
    """How long the store keeps a job for a worker that has gone silent."""
    heartbeat_interval: float | None = None
    """How often leases are renewed; ``None``: a third of the lease."""
    grace: float = 25.0
    """How long running jobs may take to end after the first ``stop()``."""
    job_timeout: float | None = None
    """How long one attempt may take, unless the handler's policy sets it."""
    backoff: Backoff = natural
    """How long to wait after a failure, unless the handler's policy sets it."""
    forbidden_flags: tuple[str, ...] | Flags = ()
    """Jobs with one of these flags are left alone. A function, asynchronous or not, is called before every claim,
    which then takes one job; it returns a list, or ``None`` for no flags."""
    look_ahead: int = 500
    """Jobs claimed ahead of free slots at most, and never more than 250 ms of work; 0: never."""
    fair: bool = False
    """The tasks of ``tasks`` take turns, each in its own order, so none waits behind the flood of another. ``False``:
    all in one order."""
    once: bool = False
    """End when nothing is due and nothing runs."""
    max_jobs: int | None = None
    """Start so many jobs, and end when the last of them has ended."""
    max_active_time: float | None = None
    """Claim nothing new after this time, and end when nothing runs any more."""
    sweep_interval: float = 5.0
    """How often to look for dead workers' jobs while working, and for a lease after that; six times rarer when idle."""

    def __post_init__(self) -> None:
        for name in _SECONDS:
            if isinstance(given := getattr(self, name), timedelta | str):
                msgspec.structs.force_setattr(self, name, _in_seconds(given))
        problems = [
            f"{name}: {trouble}"
            for name in (*_SECONDS, *_WHOLE)
            if (trouble := _trouble(name, getattr(self, name))) is not None
        ]
        # A default lease may be replaced by the store's terms: ``under`` checks that one.
        own = not problems and self.lease != LEASE
        if own and (trouble := too_rare(self.every_beat, self.lease, "lease")) is not None:
            problems.append(trouble)
        problems += self._read_names()
        for name, fits, instead in (
            ("backoff", callable(self.backoff), "a function of the attempt's number"),
            ("fair", type(self.fair) is bool, "True or False"),
            ("once", type(self.once) is bool, "True or False"),
        ):
            if not fits:
                problems.append(f"{name}: a {type(getattr(self, name)).__qualname__} given; give {instead}")
        if problems:
            raise ConfigurationError("; ".join(problems))

    def _read_names(self) -> list[str]:
        """What is wrong with tasks, flags and the worker's name."""
        problems = []
        try:
            msgspec.structs.force_setattr(self, "tasks", _read_tasks(self.tasks))
            if not callable(self.forbidden_flags):
                msgspec.structs.force_setattr(self, "forbidden_flags", limits.read_forbidden(self.forbidden_flags))
        except ValueError as error:
            problems.append(str(error))
        try:
            if self.name is not None:
                limits.check_name("name", self.name, NAME_LIMIT)
        except ValueError as error:
            problems.append(str(error))
        return problems

    @property
    def every_beat(self) -> float:
        """Seconds between two renewals of one lease."""
        return self.heartbeat_interval if self.heartbeat_interval is not None else self.lease / 3

    def under(self, terms: Terms | None) -> WorkerOptions:
        """The options on a store with terms of its own. Raises ConfigurationError."""
        if terms is None:
            if (trouble := too_rare(self.every_beat, self.lease, "lease")) is not None:
                raise ConfigurationError(trouble)
            return self
        if terms.backoff is not None and self.backoff is not natural:
            raise ConfigurationError(
                "backoff: on this store a failed record waits as the store's own options say (a table's: retry_after); "
                "say it there, or for single records in the handler's policy"
            )
        beat = self.heartbeat_interval if self.heartbeat_interval is not None else terms.heartbeat_interval
        if terms.cancel_interval is not None:
            beat = min(terms.lease / 3 if beat is None else beat, terms.cancel_interval)
        if beat is not None and (trouble := too_rare(beat, terms.lease, "stalled_max_age")) is not None:
            raise ConfigurationError(trouble)
        settled = copy(self)  # no new value: a store's terms may have a shorter lease than a worker's options may
        msgspec.structs.force_setattr(settled, "lease", terms.lease)
        msgspec.structs.force_setattr(settled, "heartbeat_interval", beat)
        return settled

    def poll(self, *, is_listening: bool) -> float:
        """Seconds between two polls of an idle worker."""
        if self.poll_interval is not None:
            return self.poll_interval
        return STRETCHED_POLL if is_listening else 2.0


def _in_seconds(given: timedelta | str) -> object:
    """What is no duration is returned as it is, and reported with the other problems."""
    try:
        return seconds(given)
    except ValueError:
        return given


def _read_tasks(given: object) -> tuple[str, ...] | None:
    """A single string is iterable too: every letter would be a task. Raises ValueError."""
    if given is None:
        return None
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ValueError(f"tasks: a {type(given).__qualname__} given; give a list of names")
    names = tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"tasks: {name!r} among them; give names")
    return names


def check_made(store: object, options: object, kind: type[msgspec.Struct]) -> None:
    """Check the arguments of a worker or a resetter. Raises ConfigurationError."""
    if isinstance(store, type) or not callable(getattr(store, "claim", None)):
        raise ConfigurationError(
            f"store: {reprlib.repr(store)} given; give a store: open_store(url), or a TableStore(url, TableOptions(…))"
        )
    check_store(store, Store, "store")
    if options is not None and not isinstance(options, kind):
        raise ConfigurationError(f"options: a {type(options).__qualname__} given; give {kind.__qualname__}(…)")


def too_rare(beat: float, lease: float, name: str) -> str | None:
    """Why this heartbeat is too rare for the lease: one beat may be lost, and one late, before a job is given away."""
    if beat * 3 <= lease * 1.000001:  # three times 0.1 is more than 0.3
        return None
    return (
        f"heartbeat_interval: {beat:g} s given; {name} ({lease:g} s) must last at least three beats: "
        f"3 x {beat:g} s = {3 * beat:g} s"
    )


def _trouble(name: str, value: object) -> str | None:
    """What is wrong with the number, if anything."""
    if value is None and name in _MAY_BE_NONE:
        return None
    # bool is an int to Python; True as a number of jobs is a mistake.
    if isinstance(value, bool) or not isinstance(value, int if name in _WHOLE else int | float):
        if name in _WHOLE or not isinstance(value, str):
            return f"a {type(value).__qualname__} given; give a {'whole ' * (name in _WHOLE)}number"
        return f"{reprlib.repr(value)} given; give seconds, a timedelta, or a phrase such as '30s'"
    if not value > 0 and not (name in _MAY_BE_ZERO and value == 0):
        return f"{value!r} given, must {'not be negative' if name in _MAY_BE_ZERO else 'be more than 0'}"
    if name == "lease" and value < SHORTEST_LEASE:
        return f"{value!r} given, must be at least {SHORTEST_LEASE:g} s"
    most, shown = (MOST, str(MOST)) if name in _WHOLE else (LONGEST, "100 years")
    return f"{reprlib.repr(value)} given, the limit is {shown}" if value > most else None
