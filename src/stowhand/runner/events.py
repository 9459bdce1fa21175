"""``WorkerEvents``: an emitter with a closed list of names, typed by what the listeners of each are given."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast, overload

import msgspec

from stowhand.errors import ConfigurationError, suggest
from stowhand.observe.job_logger import core_logger
from stowhand.runner.payloads import (
    PAYLOADS,
    JobDone,
    JobErred,
    JobEvent,
    PoolEvent,
    PoolListenError,
    PoolListens,
    PoolShutdown,
    PoolShutdownError,
    Stopped,
    Terminated,
    WorkerCreated,
    WorkerError,
    WorkerEvent,
    WorkerFatal,
    WorkerStop,
)

Listener = Callable[[Any], object]


PoolName = Literal["pool:create", "pool:listen:connecting", "pool:release"]
WorkerName = Literal["worker:release", "worker:getJob:start", "worker:getJob:empty"]
JobName = Literal["job:start", "job:success"]
ErredName = Literal["job:error", "job:failed"]


class Subscribe(Protocol):
    """``events.on(name, listener)``, typed by the name. The listener may be asynchronous."""

    @overload
    def __call__(self, name: PoolName, listener: Callable[[PoolEvent], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["pool:listen:success"], listener: Callable[[PoolListens], object], /) -> None: ...
    @overload
    def __call__(
        self, name: Literal["pool:listen:error"], listener: Callable[[PoolListenError], object], /
    ) -> None: ...
    @overload
    def __call__(
        self, name: Literal["pool:gracefulShutdown"], listener: Callable[[PoolShutdown], object], /
    ) -> None: ...
    @overload
    def __call__(
        self, name: Literal["pool:gracefulShutdown:error"], listener: Callable[[PoolShutdownError], object], /
    ) -> None: ...
    @overload
    def __call__(self, name: Literal["worker:create"], listener: Callable[[WorkerCreated], object], /) -> None: ...
    @overload
    def __call__(self, name: WorkerName, listener: Callable[[WorkerEvent], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["worker:stop"], listener: Callable[[WorkerStop], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["worker:getJob:error"], listener: Callable[[WorkerError], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["worker:fatalError"], listener: Callable[[WorkerFatal], object], /) -> None: ...
    @overload
    def __call__(self, name: JobName, listener: Callable[[JobEvent], object], /) -> None: ...
    @overload
    def __call__(self, name: ErredName, listener: Callable[[JobErred], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["job:complete"], listener: Callable[[JobDone], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["gracefulShutdown"], listener: Callable[[Terminated], object], /) -> None: ...
    @overload
    def __call__(self, name: Literal["stop"], listener: Callable[[Stopped], object], /) -> None: ...


class WorkerEvents:
    """Listeners by name. Hand one to ``run`` or ``run_once`` to hear from the very first event on.

        events = WorkerEvents()
        events.on("job:success", lambda event: print(event.worker.worker_id, event.job.id))

    An unknown name is a ConfigurationError. What a listener raises is logged, and stops neither jobs nor others.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[_Subscription]] = {}
        self._running: set[asyncio.Future[Any]] = set()
        self._curious: list[Callable[[str], None]] = []
        self.on = cast("Subscribe", self._on)
        """Call the listener whenever it happens."""
        self.once = cast("Subscribe", self._once)
        """Call the listener the next time it happens, and no more."""
        self.on_listener_error: Callable[[str], None] = core_logger().error
        """Called with a message when a listener raises."""

    def off(self, name: str, listener: Listener) -> None:
        """Call it no more. Harmless when it was never there."""
        for one in self._listeners.get(_known(name), []):
            if one.listener == listener:
                self._remove(name, one)
                return

    def wants(self, *names: str) -> bool:
        """Is there a listener to one of them?"""
        return any(self._listeners.get(name) for name in names)

    def emit(self, name: str, *facts: object) -> None:
        """Call the listeners, with the record of this name made of the facts. Raises nothing that a listener raises."""
        listeners = self._listeners.get(name)
        if not listeners:
            return
        payload = PAYLOADS[name](*facts)
        for one in listeners:
            if one.is_once:
                self._remove(name, one)
            try:
                result = one.listener(payload)
                if inspect.isawaitable(result):
                    self._follow(name, result)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - boundary: the application's code
                self._complain(name, error)

    async def settled(self) -> None:
        """Wait until every asynchronous listener that was called has ended."""
        while self._running:
            await asyncio.wait(self._running)

    def watch(self, curious: Callable[[str], None]) -> None:
        """Call ``curious`` with each name that has a listener, now and later."""
        self._curious.append(curious)
        for name, listeners in self._listeners.items():
            if listeners:
                curious(name)

    def unwatch(self, curious: Callable[[str], None]) -> None:
        """Stop calling it."""
        self._curious.remove(curious)

    def _on(self, name: str, listener: Listener, /) -> None:
        self._add(name, _Subscription(listener, is_once=False))

    def _once(self, name: str, listener: Listener, /) -> None:
        self._add(name, _Subscription(listener, is_once=True))

    def _add(self, name: str, subscription: _Subscription) -> None:
        self._listeners[_known(name)] = [*self._listeners.get(name, ()), subscription]
        for curious in self._curious:
            curious(name)

    def _remove(self, name: str, subscription: _Subscription) -> None:
        # A new list: an emit that is under way goes through the old one.
        self._listeners[name] = [one for one in self._listeners[name] if one is not subscription]

    def _follow(self, name: str, result: Any) -> None:
        running = asyncio.ensure_future(result)
        self._running.add(running)

        def ended(task: asyncio.Future[Any]) -> None:
            self._running.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._complain(name, error)

        running.add_done_callback(ended)

    def _complain(self, name: str, error: BaseException) -> None:
        self.on_listener_error(f"A listener to {name!r} raised {type(error).__name__}: {error}")


class _Subscription(msgspec.Struct, frozen=True, eq=False):
    listener: Listener
    is_once: bool


def _known(name: str) -> str:
    if name not in PAYLOADS:
        raise ConfigurationError(f"no event {name!r}{suggest(name, PAYLOADS)}")
    return name
