"""The span of one enqueue: what its jobs carry along, and how it went."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer, use_span

from stowhand.jobs.text import clean
from stowhand.observe.propagation import CORRELATION, TRACE_PARENT, current_correlation_id
from stowhand.observe.safe_text import scrub, shorten
from stowhand.observe.spans import guarded, message_attributes, name_of, trace_parent

WIDTH = 500
"""Characters of an error."""


class EnqueueSpan:
    """``enqueue <task>``. ``task``: ``None`` if it is set later; ``more``: further attributes."""

    def __init__(
        self,
        tracer: Tracer,
        task: str | None = None,
        serial: str | None = None,
        context: Context | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        self._span: Span = INVALID_SPAN
        attributes = message_attributes("enqueue", "send", task, serial) | (more or {})
        with guarded():
            name = "enqueue" if task is None else f"enqueue {task}"
            self._span = tracer.start_span(name, context, SpanKind.PRODUCER, attributes)

    def carried(self) -> dict[str, str | None]:
        """What its jobs carry (propagation.py)."""
        return {TRACE_PARENT: trace_parent(self._span), CORRELATION: current_correlation_id()}

    def made(self, job_id: object) -> None:
        """Note the job that was made."""
        with guarded():
            self._span.set_attribute("messaging.message.id", str(job_id))

    def made_many(self, jobs: int, task: str | None = None) -> None:
        """Note how many jobs were made; ``task``: the task of all of them, if it is one."""
        with guarded():
            self._span.set_attribute("messaging.batch.message_count", jobs)
            if task is not None:
                self._span.update_name(f"enqueue {task}")
                self._span.set_attribute("stowhand.task", task)

    def end(self) -> None:
        """End the span without an error."""
        with guarded():
            self._span.end()

    @contextmanager
    def current(self, *, ends: bool = True) -> Iterator[None]:
        """Current in the block, it says what the block raises; it ends with an error, or with the block."""
        try:
            with use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:  # boundary: however the block is left, its span ends
            with guarded():
                self._failed(error)
            self.end()
            raise
        if ends:
            self.end()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            name, words = name_of(error), shorten(scrub(clean(str(error))), WIDTH)
            self._span.add_event("exception", {"exception.type": name, "exception.message": words})
            self._span.set_attribute("error.type", name)
            self._span.set_status(Status(StatusCode.ERROR, words))
