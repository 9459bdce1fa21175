"""What a job carries of whoever enqueued it, among its flags: ``traceparent=00-…`` and ``correlation_id=…``.

Flags travel with a job through every store, transaction and retry, so that nothing else had to learn to carry it; and
whoever enqueues in SQL can give it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob
from stowhand.jobs.limits import FLAG_LIMIT, FLAGS_LIMIT, check_name

TRACE_PARENT = "traceparent"
"""As the W3C has it: version, trace, span and flags, in hexadecimal."""
IN_ENVIRONMENT = "TRACEPARENT"
"""The variable by which a program is told the same."""
CORRELATION = "correlation_id"
_handed_on: ContextVar[str | None] = ContextVar("stowhand traceparent", default=None)
_STARTS = {name: f"{name}=" for name in (TRACE_PARENT, CORRELATION)}


def load(job: NewJob, carried: Mapping[str, str | None]) -> NewJob:
    """The job with these values among its flags. One that it bears already stays; what does not fit is left out."""
    has = unload(job.flags)
    flags = list(job.flags)
    for name, value in carried.items():
        if value and name not in has and len(flags) < FLAGS_LIMIT and _fits(flag := _STARTS[name] + value):
            flags.append(flag)
    return job if len(flags) == len(job.flags) else msgspec.structs.replace(job, flags=tuple(flags))


def unload(flags: tuple[str, ...]) -> dict[str, str]:
    """The values by name; of several of one name the first. Nothing of it has been looked at: anybody may write it."""
    found: dict[str, str] = {}
    for flag in flags:
        for name, start in _STARTS.items():
            if flag.startswith(start):
                found.setdefault(name, flag[len(start) :])
    return found


def without(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The flags that mean something to a worker."""
    return tuple(flag for flag in flags if not flag.startswith(tuple(_STARTS.values())))


def hand_on(traceparent: str | None) -> None:
    """Bind the attempt's own context, for the rest of the current one: what follows the attempt carries it."""
    _handed_on.set(traceparent)


def handed_on() -> str | None:
    """What was bound; ``None``: nothing is traced here."""
    return _handed_on.get()


def _fits(flag: str) -> bool:
    try:
        check_name("flags", flag, FLAG_LIMIT)
    except InvalidJob:
        return False
    return True
