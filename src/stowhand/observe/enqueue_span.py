"""The span of an enqueue, with its outcome and the values that the new jobs carry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer, use_span

from stowhand.jobs.text import clean
from stowhand.observe.propagation import CORRELATION_ID, TRACE_PARENT, current_correlation_id
from stowhand.observe.safe_text import scrub, shorten
from stowhand.observe.spans import errors_logged, message_attributes, trace_parent, type_name

MAX_ERROR_CHARS = 500
"""Maximum length of an error message."""


class EnqueueSpan:
    """Span ``enqueue <task>``. Without ``task``, ``record_jobs`` sets the name."""

    def __init__(
        self,
        tracer: Tracer,
        task: str | None = None,
        serial: str | None = None,
        context: Context | None = None,
        extra_attributes: dict[str, Any] | None = None,
    ) -> None:
        self._span: Span = INVALID_SPAN
        attributes = message_attributes("enqueue", "send", task, serial) | (extra_attributes or {})
        with errors_logged():
            name = "enqueue" if task is None else f"enqueue {task}"
            self._span = tracer.start_span(name, context, SpanKind.PRODUCER, attributes)

    def carried(self) -> dict[str, str | None]:
        """Return the values that the new jobs carry (propagation.py)."""
        return {TRACE_PARENT: trace_parent(self._span), CORRELATION_ID: current_correlation_id()}

    def record_job(self, job_id: object) -> None:
        """Record the created job."""
        with errors_logged():
            self._span.set_attribute("messaging.message.id", str(job_id))

    def record_jobs(self, jobs: int, task: str | None = None) -> None:
        """Record how many jobs were created. ``task``: their task, if they share one."""
        with errors_logged():
            self._span.set_attribute("messaging.batch.message_count", jobs)
            if task is not None:
                self._span.update_name(f"enqueue {task}")
                self._span.set_attribute("stowhand.task", task)

    def end(self) -> None:
        """End the span without an error."""
        with errors_logged():
            self._span.end()

    @contextmanager
    def as_current(self, *, ends_with_block: bool = True) -> Iterator[None]:
        """Make the span current in the block. An error always ends it; otherwise ``ends_with_block`` decides."""
        try:
            with use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:  # boundary: the span must end however the block is left
            with errors_logged():
                self._record_error(error)
            self.end()
            raise
        if ends_with_block:
            self.end()

    def _record_error(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            name, message = type_name(error), shorten(scrub(clean(str(error))), MAX_ERROR_CHARS)
            self._span.add_event("exception", {"exception.type": name, "exception.message": message})
            self._span.set_attribute("error.type", name)
            self._span.set_status(Status(StatusCode.ERROR, message))
