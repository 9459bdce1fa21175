"""What the spans of enqueueing and of running have in common.

What OpenTelemetry raises, or a part of it that somebody has added, is told once and is no job's trouble.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stowhand.observe.job_logger import core_logger
from stowhand.protocols.propagation import TRACE_PARENT

SYSTEM = "stowhand"
_W3C = TraceContextTextMapPropagator()
_told: set[type[BaseException]] = set()


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


def context_of(traceparent: str | None, otherwise: Context | None = None) -> Context:
    """The context that came along; ``otherwise``, or an empty one, where none did, or where it is none."""
    known = Context() if otherwise is None else otherwise
    return known if traceparent is None else _W3C.extract({TRACE_PARENT: traceparent}, known)


@contextmanager
def attached(context: Context) -> Iterator[None]:
    """It is current in the block."""
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
    """What is raised in the block is told, once for each type, and goes no further."""
    try:
        yield
    except Exception as trouble:  # noqa: BLE001 - boundary: whatever is traced goes on without a span
        if type(trouble) not in _told:
            _told.add(type(trouble))
            core_logger().warning(f"Tracing failed, and nothing else with it: {type(trouble).__name__}: {trouble}")
