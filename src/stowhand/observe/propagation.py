"""Trace context and correlation id of a job: carried in its flags, and bound in the context of the running attempt.

The flags are ``traceparent=00-…`` and ``correlation_id=…``. Flags travel with a job through every store, transaction
and retry, so no store needs a column for them, and producers that enqueue in SQL can set them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from stowhand.errors import InvalidJob
from stowhand.jobs.job import NewJob
from stowhand.jobs.limits import MAX_FLAG_CHARACTERS, MAX_FLAGS, check_name

TRACE_PARENT = "traceparent"
"""Name of the W3C trace context: version, trace, span and flags, in hexadecimal."""
TRACE_PARENT_VARIABLE = "TRACEPARENT"
"""Environment variable that passes the trace context to a program."""
CORRELATION_ID = "correlation_id"
_traceparent: ContextVar[str | None] = ContextVar("stowhand traceparent", default=None)
_correlation_id: ContextVar[str | None] = ContextVar("stowhand correlation id", default=None)
_FLAG_PREFIXES = {name: f"{name}=" for name in (TRACE_PARENT, CORRELATION_ID)}


def current_correlation_id() -> str | None:
    """Return the correlation id bound in the current context; ``None`` if there is none."""
    return _correlation_id.get()


def bind_correlation_id(correlation_id: str) -> None:
    """Bind the id for the rest of the current context. Each attempt has its own context."""
    _correlation_id.set(correlation_id)


@contextmanager
def bound_correlation_id(correlation_id: str | None) -> Iterator[None]:
    """Bind the id for the block, and for tasks and threads started in it that copy the context."""
    token = _correlation_id.set(correlation_id)
    try:
        yield
    finally:
        _correlation_id.reset(token)


def with_carried(job: NewJob, carried: Mapping[str, str | None]) -> NewJob:
    """Return the job with these values in its flags. Existing values stay; values that do not fit are left out."""
    present = read_carried(job.flags)
    flags = list(job.flags)
    for name, value in carried.items():
        if (
            value
            and name not in present
            and len(flags) < MAX_FLAGS
            and _is_valid_flag(flag := _FLAG_PREFIXES[name] + value)
        ):
            flags.append(flag)
    return job if len(flags) == len(job.flags) else msgspec.structs.replace(job, flags=tuple(flags))


def read_carried(flags: tuple[str, ...]) -> dict[str, str]:
    """Return the carried values by name. They are not validated, although any producer may write them.

    If flags repeat a name, the first one counts.
    """
    carried: dict[str, str] = {}
    for flag in flags:
        for name, prefix in _FLAG_PREFIXES.items():
            if flag.startswith(prefix):
                carried.setdefault(name, flag[len(prefix) :])
    return carried


def without_carried(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags that carry no value."""
    return tuple(flag for flag in flags if not flag.startswith(tuple(_FLAG_PREFIXES.values())))


def bind_traceparent(traceparent: str | None) -> None:
    """Bind the attempt's traceparent for the rest of the current context. Jobs that it enqueues carry it."""
    _traceparent.set(traceparent)


def current_traceparent() -> str | None:
    """Return the bound traceparent; ``None`` without tracing."""
    return _traceparent.get()


def _is_valid_flag(flag: str) -> bool:
    try:
        check_name("flags", flag, MAX_FLAG_CHARACTERS)
    except InvalidJob:
        return False
    return True
