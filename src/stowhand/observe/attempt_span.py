"""The span of an attempt. The handler runs inside it, and it ends when the outcome is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context

from stowhand.clock import wall_nanoseconds
from stowhand.jobs.job import Job
from stowhand.observe.attempt_context import AttemptContext, SpanIds, bind_attempt, remember_span
from stowhand.observe.propagation import (
    CORRELATION_ID,
    TRACE_PARENT,
    bind_correlation_id,
    bind_traceparent,
    read_carried,
    with_carried,
)
from stowhand.observe.spans import context_of, errors_logged, message_attributes, trace_parent, type_name
from stowhand.protocols.handler import ChildCrashed


class AttemptSpan:
    """Span of an attempt. It binds values in the attempt's own context, so it need not reset them.

    ``is_child``: whether the span is a child of the enqueue span. ``on_handler_end`` receives this object when the
    handler has ended and the outcome is not recorded yet.
    """

    def __init__(
        self, tracer: Tracer, is_child: bool, attempt: Any, worker: str, on_handler_end: Callable[[AttemptSpan], None]
    ) -> None:
        self._tracer = tracer
        self._is_child = is_child
        self._attempt = attempt
        self._on_handler_end = on_handler_end
        self.worker = worker
        self.job_id = attempt.claim.lease.job_id
        self._carried = _carried_values(attempt.record)
        self._span: Span | None = None
        self._ended_at = 0
        self._error_type: str | None = None

    def __enter__(self) -> None:
        with errors_logged():
            self._open()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with errors_logged():
            if self._span is not None:
                self._close(self._span, error)

    def end(self, outcome: str, error: str | None, status: str | None) -> None:
        """End the span. ``error``: the complete sanitized error text; ``status``: its most informative line."""
        with errors_logged():
            if self._span is not None:
                self._end(self._span, outcome, error, status)

    def _end(self, span: Span, outcome: str, error: str | None, status: str | None) -> None:
        span.set_attribute("stowhand.outcome", outcome)
        if error is not None:
            if self._error_type is not None:
                failure = {"exception.message": status or "", "exception.stacktrace": error}
                span.add_event("exception", {"exception.type": self._error_type, **failure}, self._ended_at)
            span.set_attribute("error.type", self._error_type or outcome)
            span.set_status(Status(StatusCode.ERROR, status))
        span.end(self._ended_at or None)

    def abandon(self) -> None:
        """End the span with an unknown outcome, because the process exits. Does nothing if it has ended."""
        with errors_logged():
            if self._span is not None and self._span.is_recording():
                self.end("unknown", None, None)

    def _open(self) -> None:
        claim = self._attempt.claim
        correlation_id = self._carried.get(CORRELATION_ID)
        if correlation_id is not None:
            bind_correlation_id(correlation_id)
        bind_attempt(AttemptContext(self.worker, claim.task, self.job_id, claim.attempts))
        self._span = self._start_span(correlation_id)
        span_context = self._span.get_span_context()
        if span_context.is_valid:  # A no-op span would hide the span in which the worker runs.
            attach(set_span_in_context(self._span))
            bind_traceparent(trace_parent(self._span))
            remember_span(self.worker, self.job_id, SpanIds.of(span_context, correlation_id))

    def _start_span(self, correlation_id: str | None) -> Span:
        claim = self._attempt.claim
        sender = context_of(self._carried.get(TRACE_PARENT))
        sender_context = get_current_span(sender).get_span_context()
        attributes = message_attributes("run", "process", claim.task, claim.serial)
        attributes |= {"messaging.message.id": str(self.job_id), "stowhand.attempt": claim.attempts}
        attributes |= {"stowhand.worker": self.worker}
        if correlation_id is not None:
            attributes["messaging.message.conversation_id"] = correlation_id
        return self._tracer.start_span(
            f"run {claim.task}",
            sender if self._is_child else Context(),
            SpanKind.CONSUMER,
            attributes,
            [Link(sender_context)] if sender_context.is_valid else None,
            wall_nanoseconds(),
        )

    def _close(self, span: Span, error: BaseException | None) -> None:
        self._ended_at = wall_nanoseconds()
        if isinstance(error, Exception):
            self._error_type = type_name(error)
        next_jobs = self._attempt.then
        if next_jobs:
            carried = {TRACE_PARENT: trace_parent(span), CORRELATION_ID: self._carried.get(CORRELATION_ID)}
            next_jobs[:] = [with_carried(job, carried) for job in next_jobs]
        if isinstance(error, ChildCrashed):
            self.end("lost", str(error), str(error))  # The job will be reset; no event reports this attempt.
        else:
            self._on_handler_end(self)


def _carried_values(record: object) -> dict[str, str]:
    """Return the enqueuer's trace context and correlation id: in a job's flags, or in a flow's job itself."""
    if isinstance(record, Job):
        return read_carried(record.flags)
    carried: Callable[[object], dict[str, str]] | None = getattr(type(record), "carried_along", None)
    return {} if carried is None else carried(record)
