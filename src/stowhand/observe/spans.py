"""What the spans of enqueueing and of running have in common.

What OpenTelemetry or one of its plugins raises is logged once, and affects no job.
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

SYSTEM = "stowhand"
_W3C = TraceContextTextMapPropagator()
_logged: set[type[BaseException]] = set()


def message_attributes(name: str, operation: str, task: str | None, serial: str | None) -> dict[str, Any]:
    """The attributes that the messaging conventions want of every span. ``serial``: of a job that has one."""
    described = {
        "messaging.operation.name": name,
        "messaging.operation.type": operation,
        "stowhand.task": task,
    }
    known = {"messaging.system": SYSTEM, "messaging.destination.name": serial, **described}
    return {name: value for name, value in known.items() if value is not None}


def trace_parent(span: Span) -> str | None:
    """The ``traceparent`` of a span; ``None``: it is a no-op's."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, set_span_in_context(span))
    return headers.get(TRACE_PARENT)


def context_of(traceparent: str | None, otherwise: Context | None = None) -> Context:
    """The context of a ``traceparent``; ``otherwise``, or an empty one, where there is none or it is invalid."""
    known = Context() if otherwise is None else otherwise
    return known if traceparent is None else _W3C.extract({TRACE_PARENT: traceparent}, known)


@contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make it current in the block."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def name_of(error: BaseException) -> str:
    """The type, as ``exception.type`` has it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def guarded() -> Iterator[None]:
    """What the block raises is logged, once for each type, and not raised."""
    try:
        yield
    except Exception as trouble:  # noqa: BLE001 - boundary: whatever is traced goes on without a span
        if type(trouble) not in _logged:
            _logged.add(type(trouble))
            core_logger().warning(f"Tracing failed, and nothing else with it: {type(trouble).__name__}: {trouble}")
