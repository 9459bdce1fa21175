"""Calls to a store, timed and reported as events (``StoreCalled``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from stowhand.clock import stopwatch
from stowhand.events import Events, StoreCalled


class Calls:
    """The reported calls of one store. Nothing is measured without a listener."""

    def __init__(self, store: str, events: Events | None) -> None:
        self._store = store
        self.events = events

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Report the duration and success of the block. A cancelled block has not failed."""
        events = self.events
        if events is None or not events.wants(StoreCalled):
            yield
            return
        started_at, failed = stopwatch(), False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            events.emit(StoreCalled(self._store, operation, stopwatch() - started_at, failed))


UNREPORTED = Calls("", None)


F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


def reported(method: F) -> F:
    """Report each call of a method under its name, on its own thread. The object has an attribute ``calls``."""

    @wraps(method)
    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self.calls.timed(method.__name__):
            return await method(self, *args, **kwargs)

    return cast("F", call)
