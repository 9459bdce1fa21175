"""Which attempt a log line is about, and which span it belongs to: for lines written inside a traced attempt, and for
lines that report its outcome.

OpenTelemetry is asked only in a program that has loaded it itself.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from stowhand.jobs.lease import JobId

REMEMBERED = 10_000
"""Attempts whose spans are known by their job: more than run at once in a process, and end in the same moment."""


class About(msgspec.Struct, frozen=True):
    """The attempt that a line is about."""

    worker: str | None = None
    task: str | None = None
    job_id: JobId | None = None
    attempt: int | None = None
    from_outside: bool = False
    """Reported by the worker: not written within the attempt's span."""


class SpanIds(msgspec.Struct, frozen=True):
    """In hexadecimal, as everywhere: 32 digits and 16."""

    trace_id: str
    span_id: str
    correlation_id: str | None = None

    @classmethod
    def of(cls, context: Any, correlation_id: str | None = None) -> SpanIds:
        """``context``: a valid SpanContext."""
        return cls(f"{context.trace_id:032x}", f"{context.span_id:016x}", correlation_id)


_FACTS = ("worker", "task", "job_id", "attempt")
_NOTHING = About()
_now: ContextVar[About] = ContextVar("stowhand attempt", default=_NOTHING)
_spans: OrderedDict[tuple[str, JobId], SpanIds] = OrderedDict()
_writing = threading.Lock()


def about() -> About:
    """The attempt that a line written here is about."""
    return _now.get()


def bind(what: About) -> None:
    """For the rest of the current context: an attempt has one of its own."""
    _now.set(what)


@contextmanager
def about_job_of(event: Any) -> Iterator[None]:
    """Lines of the block are about the job of this event."""
    facts: dict[str, Any] = {name: getattr(event, name, None) for name in _FACTS}
    token = _now.set(About(**facts, from_outside=True))
    try:
        yield
    finally:
        _now.reset(token)


def remember(worker: str, job_id: JobId, ids: SpanIds) -> None:
    """The span of the job's latest attempt in this worker; the oldest are forgotten."""
    with _writing:
        _spans[worker, job_id] = ids
        _spans.move_to_end((worker, job_id))
        while len(_spans) > REMEMBERED:
            _spans.popitem(last=False)


def span_ids() -> SpanIds | None:
    """Of the attempt that the line is about, else of the current span; ``None``: nothing is traced."""
    what = _now.get()
    known = None if what.worker is None or what.job_id is None else _spans.get((what.worker, what.job_id))
    return (known or _current()) if what.from_outside else (_current() or known)


def _current() -> SpanIds | None:
    ask = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if ask is None:
        return None
    context = ask().get_span_context()
    return SpanIds.of(context) if context.is_valid else None
