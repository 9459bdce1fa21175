"""Functions shared by the spans of enqueues and attempts.

Errors of OpenTelemetry and its plugins are logged once per type, and affect no job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stowhand.observe.job_logger import core_logger
from stowhand.observe.propagation import TRACE_PARENT

MESSAGING_SYSTEM = "stowhand"
_PROPAGATOR = TraceContextTextMapPropagator()
_logged_types: set[type[BaseException]] = set()


def message_attributes(
    operation_name: str, operation_type: str, task: str | None, serial: str | None
) -> dict[str, Any]:
    """Return span attributes by OpenTelemetry's messaging conventions, without those whose value is ``None``.

    ``operation_type``: ``send`` or ``process``. ``serial``: the job's serial key, used as the destination.
    """
    attributes = {
        "messaging.system": MESSAGING_SYSTEM,
        "messaging.destination.name": serial,
        "messaging.operation.name": operation_name,
        "messaging.operation.type": operation_type,
        "stowhand.task": task,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def trace_parent(span: Span) -> str | None:
    """Return the ``traceparent`` of a span; ``None`` for a no-op span."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, set_span_in_context(span))
    return headers.get(TRACE_PARENT)


def context_of(traceparent: str | None, default: Context | None = None) -> Context:
    """Return ``default`` (or an empty context) with the span of ``traceparent``, unless it is missing or invalid."""
    context = Context() if default is None else default
    return context if traceparent is None else _PROPAGATOR.extract({TRACE_PARENT: traceparent}, context)


@contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make the context current in the block."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def type_name(error: BaseException) -> str:
    """Return the type of an error in the format of the span attribute ``exception.type``."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def errors_logged() -> Iterator[None]:
    """Log errors of the block, once per type, instead of raising them."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - boundary: the enqueue or attempt continues without a span
        if type(error) not in _logged_types:
            _logged_types.add(type(error))
            core_logger().warning(f"Tracing failed; jobs are not affected: {type(error).__name__}: {error}")
