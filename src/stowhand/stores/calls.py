"""Calls to a store, timed and reported as events (``StoreCalled``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from stowhand.clock import stopwatch
from stowhand.events import Events, StoreCalled


class Calls:
    """Of one store. Nothing is measured without a listener."""

    def __init__(self, store: str, events: Events | None) -> None:
        self._store = store
        self.events = events

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        """Say how the block went; one that is cancelled has not failed."""
        events = self.events
        if events is None or not events.wants(StoreCalled):
            yield
            return
        began, failed = stopwatch(), False
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            events.emit(StoreCalled(self._store, operation, stopwatch() - began, failed))


UNREPORTED = Calls("", None)


class Caller(Protocol):
    """What has methods that are reported."""

    @property
    def calls(self) -> Calls: ...


S = TypeVar("S", bound=Caller)
P = ParamSpec("P")
T = TypeVar("T")


def reported(
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Report each call of a method, under its name, on the thread on which it runs."""

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.calls.timed(method.__name__):
            return await method(self, *args, **kwargs)

    return call
