"""The options of a worker: one frozen value; contradictions are refused when it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from typing import Annotated, Any

import msgspec

from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.jobs import limits
from stowhand.jobs.lifecycle import Backoff
from stowhand.jobs.struct import Suggesting
from stowhand.protocols.option import Names, Seconds, Size, Switch, Text, Wait, Whole, read_fields
from stowhand.protocols.store import Terms
from stowhand.retry import PRESETS as BACKOFFS
from stowhand.retry import AnyBackoff, exponential, natural

LOOK_AHEAD_SECONDS = 0.25
STRETCHED_POLL = 10.0
Flags = Callable[[], Iterable[str] | Awaitable[Iterable[str] | None] | None]
"""Returns the flags that are forbidden at present. Called before every claim, so it should be quick."""
OUTAGE: Backoff = exponential(base=0.1, cap=5.0)
"""Seconds until a call that has failed n times in a row is tried again. An outage may last for days."""
ONCE_PATIENCE = 9
"""Failures in a row, of claims or of what decides about them, after which a run with ``once`` ends: some 20 seconds."""
NAME_LIMIT = 255
VERSION_LIMIT = 128
LEASE = 30.0
"""Seconds; the default."""
SHORTEST = 0.001
"""Seconds, of a poll or an attempt in text: with less the worker would do nothing else."""
SMALLEST_MEMORY = 16 * 2**20
"""Bytes of a process. Python alone uses that much; a number without a unit is a mistake."""
SHORTEST_LEASE = 1.0
"""Seconds. With less, a short pause of the machine would count as a death."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=Suggesting):
    """Durations are seconds; a ``timedelta``, or a phrase such as "30s", is accepted too."""

    name: Annotated[
        str | None,
        Text(
            "The worker's identity.",
            unset="host, pid and a random boot id, or what a supervisor chose",
            check=one_line,
            on="python",
        ),
    ] = None
    tasks: Annotated[
        tuple[str, ...] | None,
        Names("Claim only these.", unset="all", check=_names_of_tasks, on="python"),
    ] = None
    queues: Annotated[
        tuple[str, ...] | None,
        Names(
            "Claim only jobs of these queues. Several: repeated, or with commas between them.",
            unset="all queues",
            short=("--queue",),
            metavar="QUEUE",
            check=_names_of_queues,
        ),
    ] = None
    exclude_queues: Annotated[
        tuple[str, ...],
        Names(
            "Leave jobs of these queues alone. Several: as above.",
            short=("--exclude-queue",),
            metavar="QUEUE",
            check=_excluded_queues,
        ),
    ] = ()
    concurrency: Annotated[
        int, Whole("How many jobs to run at once, in each process.", short=("-j", "--jobs", "--workers"))
    ] = 4
    poll_interval: Annotated[
        float | None,
        Seconds(
            "How often to look for jobs without being woken, in milliseconds or as a phrase (2s).",
            unset="2000, stretched to 10000 while wake-ups are heard",
            typed_least=SHORTEST,
            metavar="MS",
            unit="ms",
        ),
    ] = None
    lease: Annotated[
        float,
        Seconds(
            "After how long without a heartbeat a worker counts as dead and its jobs come back.", least=SHORTEST_LEASE
        ),
    ] = LEASE
    heartbeat_interval: Annotated[
        float | None, Seconds("How often leases are renewed.", unset="a third of the lease", on="python")
    ] = None
    grace: Annotated[
        float,
        Seconds(
            "How long running jobs may take to end when the worker is asked to stop.",
            unset="25s; with --preset service as long as --timeout",
            least=0,
        ),
    ] = 25.0
    timeout: Annotated[
        float | None,
        Seconds(
            "How long one attempt may take, where its task does not say.",
            unset="no limit",
            typed_least=SHORTEST,
        ),
    ] = None
    backoff: Annotated[
        AnyBackoff,
        Wait(f"How long to wait between attempts, where the task does not say: {', '.join(BACKOFFS)}.", metavar="NAME"),
    ] = natural
    forbidden_flags: Annotated[
        tuple[str, ...] | Flags,
        Names(
            "Leave jobs alone that have one of these flags. Several: repeated, or with commas between them.",
            short=("--forbidden-flag",),
            metavar="FLAG",
            check=_names_of_flags,
        ),
    ] = ()
    """A function is called before every claim, which then takes one job; it returns a list, or ``None`` for none."""
    app_version: Annotated[
        str | None,
        Text(
            "The version of the application: people see which workers have it, and when it came up.",
            unset="not known",
            check=_app_version,
        ),
    ] = None
    fair: Annotated[
        bool,
        Switch(
            "Let tasks take turns, so that none waits behind the flood of another; without it all jobs stand in one"
            " line by priority and run time."
        ),
    ] = False
    once: Annotated[bool, Switch("Run until nothing is due, then end.")] = False
    look_ahead: Annotated[
        int,
        Whole(
            "Jobs claimed ahead of free slots at most, and never more than 250 ms of work; 0: never.",
            least=0,
            on="python",
        ),
    ] = 500
    max_jobs: Annotated[
        int | None,
        Whole(
            "Start so many jobs, and end when the last of them has ended; with --processes another process takes its"
            " place.",
            most=1_000_000_000,
            unset="no limit",
        ),
    ] = None
    max_age: Annotated[
        float | None,
        Seconds(
            "Claim nothing new after this time, and end when nothing runs any more, as above.",
            unset="no limit",
            typed_least=1.0,
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        Size(
            "Claim nothing new while the process uses more memory (512MB, 1GiB), and end when nothing runs, as above.",
            unset="no limit",
            least=SMALLEST_MEMORY,
        ),
    ] = None
    sweep_interval: Annotated[
        float,
        Seconds(
            "How often to look for dead workers' jobs while working, and for a lease after that; six times rarer when"
            " idle.",
            on="python",
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        problems = read_fields(self)
        # A default lease may be replaced by the store's terms: ``under`` checks that one.
        own = not problems and self.lease != LEASE
        if own and (trouble := too_rare(self.every_beat, self.lease, "lease")) is not None:
            problems.append(trouble)
        if not problems and self.queues is not None and not set(self.queues).difference(self.exclude_queues):
            problems.append("queues, exclude_queues: no queue is left to claim from; name others")
        if problems:
            raise ConfigurationError("; ".join(problems))

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


def _names_of_tasks(given: object) -> tuple[str, ...]:
    return limits.read_names("tasks", given)


def _names_of_queues(given: object) -> tuple[str, ...]:
    names = _read_queues("queues", given)
    if not names:
        raise InvalidJob("queues: empty; name queues, or leave it out for all of them")
    return names


def _excluded_queues(given: object) -> tuple[str, ...]:
    return () if given is None else _read_queues("exclude_queues", given)


def _read_queues(field: str, given: object) -> tuple[str, ...]:
    return tuple(limits.check_queue(field, name) for name in limits.read_names(field, given))


def _names_of_flags(given: Any) -> Any:
    return given if callable(given) else limits.read_forbidden(given)


def _app_version(text: str) -> str:
    return limits.check_name("app_version", text, VERSION_LIMIT)


def one_line(name: str) -> str:
    """A worker's name. Raises ValueError."""
    return limits.check_name("name", name, NAME_LIMIT)


def too_rare(beat: float, lease: float, name: str) -> str | None:
    """Why this heartbeat is too rare for the lease: one beat may be lost, and one late, before a job is given away."""
    if beat * 3 <= lease * 1.000001:  # three times 0.1 is more than 0.3
        return None
    return (
        f"heartbeat_interval: {beat:g} s given; {name} ({lease:g} s) must last at least three beats: "
        f"3 x {beat:g} s = {3 * beat:g} s"
    )
