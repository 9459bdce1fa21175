"""Tasks of a worker whose spans are written to the file that STOWHAND_TEST_SPANS names, a line of JSON each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from stowhand.app.app import App
from stowhand.tasks.context import Context

app = App()


class ToFile(SpanExporter):
    """Appends, so that several processes may write one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                file.write(json.dumps(json.loads(span.to_json(indent=None))) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ToFile(Path(os.environ["STOWHAND_TEST_SPANS"]))))
trace.set_tracer_provider(provider)


@app.task
async def first(context: Context) -> None:
    """Enqueue another job, and log in three ways."""
    context.log("by its logger")
    logging.getLogger("shop").info("by the program's")
    await second.enqueue()


@app.task
async def second() -> None:
    """Does nothing."""
