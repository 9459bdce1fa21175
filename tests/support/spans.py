"""Spans of a test, kept where it can look at them."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from stowhand.app.app import App
from stowhand.jobs.job import NewJob
from stowhand.observe.traces import Traces


class Spans:
    """A provider of its own for each test: the global one can be set only once."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")

    def traces(self, **options: Any) -> Traces:
        return Traces(self.provider, **options)

    def named(self, name: str) -> list[ReadableSpan]:
        """Those that have ended, in the order in which they began."""
        rows = [span for span in self._kept.get_finished_spans() if span.name == name]
        return sorted(rows, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def facts_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    return context_of(span).trace_id, context_of(span).span_id


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def traceparent_of(span: ReadableSpan) -> str:
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def work(app: App, *jobs: NewJob) -> None:
    """Enqueue them, and work them off."""
    async with app:
        for job in jobs:
            await app.enqueue(job)
        await app.worker(once=True).run()
