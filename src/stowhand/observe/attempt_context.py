"""The attempt and the span that a log line belongs to, for the lines of an attempt and the reports of its outcome.

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
"""Number of attempts whose spans are remembered: more than can run or end at once in a process."""


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

    @classmethod
    def of(cls, context: Any, correlation_id: str | None = None) -> SpanIds:
        """Return the ids of a valid SpanContext."""
        return cls(f"{context.trace_id:032x}", f"{context.span_id:016x}", correlation_id)


_FIELD_NAMES = ("worker", "task", "job_id", "attempt")
_NO_ATTEMPT = AttemptContext()
_attempt: ContextVar[AttemptContext] = ContextVar("stowhand attempt", default=_NO_ATTEMPT)
_spans: OrderedDict[tuple[str, JobId], SpanIds] = OrderedDict()
_lock = threading.Lock()


def current_attempt() -> AttemptContext:
    """Return the attempt that a line written here is about."""
    return _attempt.get()


def bind_attempt(context: AttemptContext) -> None:
    """Bind the attempt for the rest of the current context. Each attempt has its own context."""
    _attempt.set(context)


@contextmanager
def bound_to_event(event: Any) -> Iterator[None]:
    """Bind the lines of the block to the job of this event."""
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
    """Return the ids of the span that a line written here belongs to; ``None`` without tracing."""
    context = _attempt.get()
    remembered = None
    if context.worker is not None and context.job_id is not None:
        remembered = _spans.get((context.worker, context.job_id))
    if context.is_from_worker:
        return remembered or _opentelemetry_ids()
    return _opentelemetry_ids() or remembered


def _opentelemetry_ids() -> SpanIds | None:
    get_current_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get_current_span is None:
        return None
    context = get_current_span().get_span_context()
    return SpanIds.of(context) if context.is_valid else None
