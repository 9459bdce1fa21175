"""Spans of OpenTelemetry (extra ``otel``): one for each enqueue, one for each attempt, linked across processes.

    app = App("postgresql:///shop", traces=Traces())      # or: stowhand worker --otel
    worker = Worker(store, handler, events=Traces().of(Events()))

    enqueue <task>   PRODUCER, a child of the current span; its context travels in the job's flags (propagation.py)
    run <task>       CONSUMER, in its own trace with a link to the enqueue span, or, with ``parent``, its child

Without an SDK, OpenTelemetry's no-op provider makes the spans, and jobs carry nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakSet

from stowhand.errors import ConfigurationError
from stowhand.events import Events, JobEnded, JobLost, JobsReturned, JobUnknown, WorkerStopped
from stowhand.jobs.lease import JobId
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.observe.safe_text import scrub, shorten, summary_line
from stowhand.protocols.operator import own_version

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from stowhand.observe.attempt_span import AttemptSpan
    from stowhand.protocols.queue_store import QueueStore

S = TypeVar("S")
Within = Callable[[str | None], AbstractContextManager[None]]
MISSING_PACKAGE_MESSAGE = "traces need opentelemetry-api: pip install 'stowhand[otel]'"
STATUS_WIDTH = 500
"""Maximum length of a span's status."""
FLUSH_TIMEOUT_SECONDS = 1.0
"""Time that an exiting process has to export its last spans."""
_FAILED_OUTCOMES = (AttemptOutcome.RETRY, AttemptOutcome.FAILED, AttemptOutcome.POISON)


class Traces:
    """Maker of spans.

    ``provider`` replaces the global one. With ``parent``, an attempt is a child of the enqueue span.

    Raises ConfigurationError if the extra ``otel`` is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None, *, parent: bool = False) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.context import get_current

            from stowhand.observe.attempt_span import AttemptSpan
            from stowhand.observe.spans import attached, context_of
            from stowhand.observe.traced_store import TracedEngine, traced_store
        except ImportError as error:
            raise ConfigurationError(MISSING_PACKAGE_MESSAGE) from error
        self._provider = trace.get_tracer_provider if provider is None else lambda: provider
        """A function, because the global provider may be set up later."""
        self._parent = parent
        self._tracer = trace.get_tracer("stowhand", own_version(), provider)
        self._new_span = AttemptSpan
        self._new_store = traced_store
        self._new_engine = TracedEngine
        self._within: Within = lambda traceparent: attached(context_of(traceparent, get_current()))
        self._ended_spans: dict[tuple[str, JobId], AttemptSpan] = {}
        """Spans whose handlers have ended, but whose outcomes are not yet reported."""
        self._spans = WeakSet[AttemptSpan]()
        """All spans that may not have ended."""

    def of(self, events: Events) -> Events:
        """Trace the attempts of workers that are created with these events from now on. Return the events."""
        if events.around != self._around:
            events.around = self._around
            events.on(JobEnded, self._job_ended)
            events.on(JobLost, lambda event: self._finish(event.worker, event.job_id, "lost", event.reason))
            events.on(JobUnknown, lambda event: self._finish(event.worker, event.job_id, "unknown"))
            events.on(JobsReturned, self._returned)
            events.on(WorkerStopped, self._stopped)
        return events

    def store(self, store: QueueStore) -> QueueStore:
        """Return the store with traced enqueues."""
        return self._new_store(store, self._tracer)

    def engine(self, engine: S) -> S:
        """Return the engine of a flow with traced creation of jobs."""
        return cast("S", self._new_engine(engine, self._tracer))

    def within(self, traceparent: str | None) -> AbstractContextManager[None]:
        """Make a span of another process current in the block. ``None`` changes nothing."""
        return self._within(traceparent)

    def flush(self, seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
        """Export the ended spans within ``seconds``. Return False if the exporter takes longer."""
        flush: Callable[[int], object] | None = getattr(self._provider(), "force_flush", None)
        if flush is None:
            return True

        def export_spans() -> None:
            with suppress(Exception):
                flush(int(seconds * 1000))

        export = threading.Thread(target=export_spans, name="stowhand spans", daemon=True)
        export.start()
        export.join(seconds)
        return not export.is_alive()

    def leave(self) -> None:
        """End the spans of running attempts, and export all within a second, because the process exits."""
        with suppress(RuntimeError):  # another thread is starting a span
            for span in list(self._spans):
                span.abandon()
        self.flush()

    def _around(self, attempt: Any, worker: str) -> AttemptSpan:
        span = self._new_span(self._tracer, self._parent, attempt, worker, self._on_handler_end)
        self._spans.add(span)
        return span

    def _on_handler_end(self, span: AttemptSpan) -> None:
        """Keep the span of an ended handler until an event reports its outcome."""
        self._finish(span.worker, span.job_id, "unknown")  # an earlier attempt whose outcome was not reported
        self._ended_spans[span.worker, span.job_id] = span

    def _job_ended(self, event: JobEnded) -> None:
        error = event.error if event.outcome in _FAILED_OUTCOMES else None
        self._finish(event.worker, event.job_id, event.outcome.value, error)

    def _returned(self, event: JobsReturned) -> None:
        for job_id in event.job_ids:
            self._finish(event.worker, job_id, "returned")

    def _stopped(self, event: WorkerStopped) -> None:
        for worker, job_id in list(self._ended_spans):
            if worker == event.worker:
                self._finish(worker, job_id, "unknown")

    def _finish(self, worker: str, job_id: JobId, outcome: str, error: str | None = None) -> None:
        span = self._ended_spans.pop((worker, job_id), None)
        if span is not None:
            safe_error = None if error is None else scrub(error)
            span.end(
                outcome, safe_error, None if safe_error is None else shorten(summary_line(safe_error), STATUS_WIDTH)
            )
