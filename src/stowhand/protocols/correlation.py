"""The correlation id of what is running: bound around each execution of a job, and part of its log lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[str | None] = ContextVar("stowhand correlation id", default=None)


def current() -> str | None:
    """The id that is bound where this is called; ``None``: there is none."""
    return _current.get()


def bind(correlation_id: str) -> None:
    """Bind it for the rest of the current context: an attempt has one of its own."""
    _current.set(correlation_id)


@contextmanager
def bound(correlation_id: str | None) -> Iterator[None]:
    """Bind it for the block, and for tasks and threads started in it that copy the context."""
    token = _current.set(correlation_id)
    try:
        yield
    finally:
        _current.reset(token)
