"""Context of a log line: the attempt that it is about, and the span that it belongs to.

A handler writes lines during its attempt. The worker writes further lines about the attempt, such as its outcome.

OpenTelemetry is used only if the program has imported it.
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
"""Maximum number of remembered spans, larger than the number of attempts that run or end at once in a process."""


class AttemptContext(msgspec.Struct, frozen=True):
    """Attempt that a log line is about."""

    worker: str | None = None
    task: str | None = None
    job_id: JobId | None = None
    attempt: int | None = None
    is_from_worker: bool = False
    """True for a line that the worker writes about the attempt, outside the attempt's span."""


class SpanIds(msgspec.Struct, frozen=True):
    """Ids of a trace and a span, as 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str
    correlation_id: str | None = None
    """Correlation id of the attempt's job, if it has one."""

    @classmethod
    def of(cls, context: Any, correlation_id: str | None = None) -> SpanIds:
        """Return the ids of an OpenTelemetry SpanContext, which must be valid."""
        return cls(f"{context.trace_id:032x}", f"{context.span_id:016x}", correlation_id)


_FIELD_NAMES = ("worker", "task", "job_id", "attempt")
_NO_ATTEMPT = AttemptContext()
_attempt: ContextVar[AttemptContext] = ContextVar("stowhand attempt", default=_NO_ATTEMPT)
_spans: OrderedDict[tuple[str, JobId], SpanIds] = OrderedDict()
_lock = threading.Lock()


def current_attempt() -> AttemptContext:
    """Return the attempt that a line written in this context is about. Without an attempt, all fields are ``None``."""
    return _attempt.get()


def bind_attempt(context: AttemptContext) -> None:
    """Bind the attempt for the rest of the current ``contextvars`` context. Each attempt has its own."""
    _attempt.set(context)


@contextmanager
def bound_to_event(event: Any) -> Iterator[None]:
    """Mark log lines of the block as the worker's lines about the attempt of this event."""
    fields: dict[str, Any] = {name: getattr(event, name, None) for name in _FIELD_NAMES}
    token = _attempt.set(AttemptContext(**fields, is_from_worker=True))
    try:
        yield
    finally:
        _attempt.reset(token)


def remember_span(worker: str, job_id: JobId, ids: SpanIds) -> None:
    """Remember the span of a job's latest attempt in this worker. The oldest spans are forgotten."""
    with _lock:
        _spans[worker, job_id] = ids
        _spans.move_to_end((worker, job_id))
        while len(_spans) > MAX_REMEMBERED_SPANS:
            _spans.popitem(last=False)


def current_span_ids() -> SpanIds | None:
    """Return the ids of the span that a line written in this context belongs to; ``None`` if there is no span."""
    attempt = _attempt.get()
    attempt_span = None
    if attempt.worker is not None and attempt.job_id is not None:
        attempt_span = _spans.get((attempt.worker, attempt.job_id))
    if attempt.is_from_worker:  # a current span is not the attempt's
        return attempt_span or _opentelemetry_ids()
    return _opentelemetry_ids() or attempt_span  # the handler may have started a span inside the attempt's


def _opentelemetry_ids() -> SpanIds | None:
    get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get_current_span is None:
        return None
    span_context = get_current_span().get_span_context()
    return SpanIds.of(span_context) if span_context.is_valid else None
