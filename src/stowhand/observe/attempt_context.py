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

MAX_REMEMBERED_SPANS = 10_000
"""Attempts whose spans are known by their job: more than run at once in a process, and end in the same moment."""


class AttemptContext(msgspec.Struct, frozen=True):
    """The attempt that a line is about."""

    worker: str | None = None
    task: str | None = None
    job_id: JobId | None = None
    attempt: int | None = None
    is_from_worker: bool = False
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


_FIELD_NAMES = ("worker", "task", "job_id", "attempt")
_NO_ATTEMPT = AttemptContext()
_attempt: ContextVar[AttemptContext] = ContextVar("stowhand attempt", default=_NO_ATTEMPT)
_spans: OrderedDict[tuple[str, JobId], SpanIds] = OrderedDict()
_lock = threading.Lock()


def current_attempt() -> AttemptContext:
    """The attempt that a line written here is about."""
    return _attempt.get()


def bind_attempt(context: AttemptContext) -> None:
    """For the rest of the current context: an attempt has one of its own."""
    _attempt.set(context)


@contextmanager
def bound_to_event(event: Any) -> Iterator[None]:
    """Lines of the block are about the job of this event."""
    fields: dict[str, Any] = {name: getattr(event, name, None) for name in _FIELD_NAMES}
    token = _attempt.set(AttemptContext(**fields, is_from_worker=True))
    try:
        yield
    finally:
        _attempt.reset(token)


def remember_span(worker: str, job_id: JobId, ids: SpanIds) -> None:
    """The span of the job's latest attempt in this worker; the oldest are forgotten."""
    with _lock:
        _spans[worker, job_id] = ids
        _spans.move_to_end((worker, job_id))
        while len(_spans) > MAX_REMEMBERED_SPANS:
            _spans.popitem(last=False)


def current_span_ids() -> SpanIds | None:
    """Of the attempt that the line is about, else of the current span; ``None``: nothing is traced."""
    context = _attempt.get()
    remembered = (
        None if context.worker is None or context.job_id is None else _spans.get((context.worker, context.job_id))
    )
    return (remembered or _opentelemetry_ids()) if context.is_from_worker else (_opentelemetry_ids() or remembered)


def _opentelemetry_ids() -> SpanIds | None:
    ask = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if ask is None:
        return None
    context = ask().get_span_context()
    return SpanIds.of(context) if context.is_valid else None
