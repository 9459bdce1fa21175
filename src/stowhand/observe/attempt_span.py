"""The span of an attempt: entered around the handler, and ended when the outcome is recorded."""

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
    """Span of an attempt. It binds values in the attempt's own context, so it need not reset them."""

    def __init__(
        self, tracer: Tracer, parent: bool, attempt: Any, worker: str, keep: Callable[[AttemptSpan], None]
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._attempt = attempt
        self._keep = keep
        self.worker = worker
        self.job_id = attempt.claim.lease.job_id
        self._carried = _carried(attempt.record)
        self._span: Span | None = None
        self._ended_at = 0
        self._raised: str | None = None

    def __enter__(self) -> None:
        with errors_logged():
            self._open()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with errors_logged():
            if self._span is not None:
                self._close(self._span, error)

    def end(self, outcome: str, error: str | None, status: str | None) -> None:
        """End the span. ``error``: the whole sanitized error text; ``status``: its most informative line."""
        with errors_logged():
            if self._span is not None:
                self._end(self._span, outcome, error, status)

    def _end(self, span: Span, outcome: str, error: str | None, status: str | None) -> None:
        span.set_attribute("stowhand.outcome", outcome)
        if error is not None:
            if self._raised is not None:
                failure = {"exception.message": status or "", "exception.stacktrace": error}
                span.add_event("exception", {"exception.type": self._raised, **failure}, self._ended_at)
            span.set_attribute("error.type", self._raised or outcome)
            span.set_status(Status(StatusCode.ERROR, status))
        span.end(self._ended_at or None)

    def abandon(self) -> None:
        """End the span with an unknown outcome, because the process exits. Does nothing if it has ended."""
        with errors_logged():
            if self._span is not None and self._span.is_recording():
                self.end("unknown", None, None)

    def _open(self) -> None:
        claim, correlation_id = self._attempt.claim, self._carried.get(CORRELATION_ID)
        if correlation_id is not None:
            bind_correlation_id(correlation_id)
        bind_attempt(AttemptContext(self.worker, claim.task, self.job_id, claim.attempts))
        self._span = self._start_span(correlation_id)
        span_context = self._span.get_span_context()
        if span_context.is_valid:  # a no-op span would hide the span in which the worker runs
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
            sender if self._parent else Context(),
            SpanKind.CONSUMER,
            attributes,
            [Link(sender_context)] if sender_context.is_valid else None,
            wall_nanoseconds(),
        )

    def _close(self, span: Span, error: BaseException | None) -> None:
        self._ended_at = wall_nanoseconds()
        if isinstance(error, Exception):
            self._raised = type_name(error)
        then = self._attempt.then
        if then:
            carried = {TRACE_PARENT: trace_parent(span), CORRELATION_ID: self._carried.get(CORRELATION_ID)}
            then[:] = [with_carried(job, carried) for job in then]
        if isinstance(error, ChildCrashed):
            self.end("lost", str(error), str(error))  # the job is reset: no event will report this attempt
        else:
            self._keep(self)


def _carried(record: object) -> dict[str, str]:
    """Return the enqueuer's trace context and correlation id: in a job's flags, or in a flow's job itself."""
    if isinstance(record, Job):
        return read_carried(record.flags)
    carried: Callable[[object], dict[str, str]] | None = getattr(type(record), "carried_along", None)
    return {} if carried is None else carried(record)
