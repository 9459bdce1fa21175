"""How long a worker and its process wait for what, in one value that each part is given."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stowhand.errors import ConfigurationError

VARIABLE = "STOWHAND_TIMINGS"
LONGEST = 300.0
"""Seconds that may be given: a variable that is left behind must not keep a process from its end for ever."""


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds. These are no settings: the suite shortens them for the processes that it starts."""

    same_signal: float = 0.5
    """Signals within it count once: a terminal's Ctrl-C reaches a whole group, and people press twice."""
    blocked_after: float = 1.0
    """Without a sign of life after which the loop counts as blocked."""
    suspects_every: float = 5.0
    """Between two claims of suspects while there is other work and no suspect was due."""

    # The end of a process: a worker that is not stuck ends in order before it is made to exit, and a child has given
    # back what it holds before the supervisor kills it.
    exited: float = 5.0
    """After the grace, within which a process has exited, whatever happens."""
    made_to: float = 0.9
    """Before that, when a process that still runs is made to exit."""
    give_back: float = 0.5
    """How many of these it tries to give its leases back."""
    killed: float = 0.2
    """Before ``exited``, when a supervisor kills the children that still run."""
    last_pause: float = 4.0
    """After the grace, for handlers that were cancelled and for the last calls to the store."""
    last_calls: float = 0.5
    """Of these, kept for the store."""

    steady: float = 5.0
    """A child that lived so long is replaced at once; one that did not counts as failing to start."""
    slowest_restart: float = 10.0
    unable: float = 2.0
    """Before a job goes back whose child process could not begin."""
    report_every: float = 1.0
    """Between two reports of a process's health."""
    blocked_at_least: float = 3.0
    """For which a handler may block the loop before the process is not alive, however short the leases."""
    answer_within: float = 1.2
    """For the store to answer a probe: ``stowhand health`` waits two for all of it."""
    answer_fresh: float = 1.0
    """For which that answer is reused."""
    count_within: float = 1.0
    counts_fresh: float = 5.0


USUAL = Timings()


def read_timings(environ: Mapping[str, str]) -> Timings:
    """Those of a process: the usual ones, unless a test gives it others, a JSON object. Raises ConfigurationError."""
    try:
        timings = msgspec.json.decode(environ.get(VARIABLE) or "{}", type=Timings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{VARIABLE}: {error}") from None
    for name in timings.__struct_fields__:
        if not 0 <= getattr(timings, name) <= LONGEST:
            raise ConfigurationError(f"{VARIABLE}: {name}: give seconds, at most {LONGEST:g}")
    return timings
