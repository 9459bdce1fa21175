"""The span of one attempt: it stands around the handler, and is ended when it is known how the attempt was recorded.

What OpenTelemetry raises, or a part of it that somebody has added, is told once and is no job's trouble.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stowhand.carried import CORRELATION, TRACE_PARENT, load, unload
from stowhand.clock import wall_nanoseconds
from stowhand.correlation import bind as bind_correlation
from stowhand.job import Job
from stowhand.lane import ChildCrashed
from stowhand.observe.about import About, SpanIds, bind, remember
from stowhand.observe.job_logger import core_logger

SYSTEM = "stowhand"
_W3C = TraceContextTextMapPropagator()
_told: set[type[BaseException]] = set()


class AttemptSpan:
    """Entered in the attempt's own context, which ends with it: nothing that is bound there is taken back."""

    def __init__(
        self, tracer: Tracer, parent: bool, attempt: Any, worker: str, keep: Callable[[AttemptSpan], None]
    ) -> None:
        self._tracer, self._parent, self._attempt, self._keep = tracer, parent, attempt, keep
        self.worker = worker
        self.job_id = attempt.claim.lease.job_id
        self._carried = unload(attempt.record.flags) if isinstance(attempt.record, Job) else {}
        self._span: Span | None = None
        self._ended_at = 0
        self._raised: str | None = None

    def __enter__(self) -> None:
        try:
            self._open()
        except Exception as trouble:  # noqa: BLE001 - boundary: the attempt goes on without a span
            _tell(trouble)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if self._span is not None:
                self._close(self._span, error)
        except Exception as trouble:  # noqa: BLE001 - boundary: how the attempt ended stands
            _tell(trouble)

    def end(self, outcome: str, error: str | None, status: str | None) -> None:
        """It was recorded so. ``error``: its whole text, sanitised; ``status``: the line of it that says the most."""
        span = self._span
        if span is None:
            return
        span.set_attribute("stowhand.outcome", outcome)
        if error is not None:
            if self._raised is not None:
                told = {"exception.message": status or "", "exception.stacktrace": error}
                span.add_event("exception", {"exception.type": self._raised, **told}, self._ended_at)
            span.set_attribute("error.type", self._raised or outcome)
            span.set_status(Status(StatusCode.ERROR, status))
        span.end(self._ended_at)

    def _open(self) -> None:
        claim, correlation_id = self._attempt.claim, self._carried.get(CORRELATION)
        if correlation_id is not None:
            bind_correlation(correlation_id)
        bind(About(self.worker, claim.task, self.job_id, claim.attempts))
        self._span = self._begin(correlation_id)
        found = self._span.get_span_context()
        if found.is_valid:  # a no-op's would hide the span in which the worker runs
            attach(set_span_in_context(self._span))
            remember(self.worker, self.job_id, SpanIds.of(found, correlation_id))

    def _begin(self, correlation_id: str | None) -> Span:
        claim = self._attempt.claim
        sender = _sender(self._carried.get(TRACE_PARENT))
        sent = get_current_span(sender).get_span_context()
        attributes = message_attributes("run", "process", claim.task, claim.queue)
        attributes |= {"messaging.message.id": str(self.job_id), "stowhand.attempt": claim.attempts}
        attributes |= {"stowhand.worker": self.worker}
        if correlation_id is not None:
            attributes["messaging.message.conversation_id"] = correlation_id
        return self._tracer.start_span(
            f"run {claim.task}",
            sender if self._parent else Context(),
            SpanKind.CONSUMER,
            attributes,
            [Link(sent)] if sent.is_valid else None,
            wall_nanoseconds(),
        )

    def _close(self, span: Span, error: BaseException | None) -> None:
        self._ended_at = wall_nanoseconds()
        if isinstance(error, Exception):
            self._raised = name_of(error)
        then = self._attempt.then
        if then:
            carried = {TRACE_PARENT: trace_parent(span), CORRELATION: self._carried.get(CORRELATION)}
            then[:] = [load(job, carried) for job in then]
        if isinstance(error, ChildCrashed):
            self.end("lost", str(error), str(error))  # the job is reset; of this attempt nothing will be told
        else:
            self._keep(self)


def message_attributes(name: str, operation: str, task: str | None, queue: str | None) -> dict[str, Any]:
    """What the messaging conventions have every span say. ``queue``: of a job that stands in one."""
    said = {"messaging.operation.name": name, "messaging.operation.type": operation, "stowhand.task": task}
    known = {"messaging.system": SYSTEM, "messaging.destination.name": queue, **said}
    return {name: value for name, value in known.items() if value is not None}


def trace_parent(span: Span) -> str | None:
    """What travels of a span; ``None``: nothing, it is a no-op's."""
    letter: dict[str, str] = {}
    _W3C.inject(letter, set_span_in_context(span))
    return letter.get(TRACE_PARENT)


def name_of(error: BaseException) -> str:
    """The type, as ``exception.type`` has it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _sender(traceparent: str | None) -> Context:
    """The context that came along; an empty one where none did, or where it is none."""
    return Context() if traceparent is None else _W3C.extract({TRACE_PARENT: traceparent}, Context())


def _tell(trouble: Exception) -> None:
    if type(trouble) not in _told:
        _told.add(type(trouble))
        core_logger().warning(f"Tracing failed, and nothing else with it: {type(trouble).__name__}: {trouble}")
