"""The open resources of workers: one per factory for all workers of a registry on one event loop.

Each resource has its own asyncio task or thread, which enters and leaves its context manager, because cancel scopes and
many drivers require that. Resources open one after another, and close in reverse order.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from stowhand.errors import ResourceUnavailable
from stowhand.tasks.resource import Factory, Resource
from stowhand.tasks.threads import Threads

CANCEL_TIMEOUT_SECONDS = 1.0
"""Time that a resource has to end after its cancellation."""
OnEnd = Callable[[BaseException], None]


class SharedResources:
    """Open resources of one registry, shared by its workers."""

    def __init__(self) -> None:
        self._open: dict[tuple[asyncio.AbstractEventLoop, Factory], _OpenResource] = {}

    async def acquire(self, resource: Resource, on_end: OnEnd) -> _OpenResource:
        """Open the resource unless it is open. ``on_end`` is called if it closes without a request.

        Raises ResourceUnavailable.
        """
        key = asyncio.get_running_loop(), resource.factory
        open_resource = self._open.get(key)
        if open_resource is None or open_resource.is_closed:
            open_resource = self._open[key] = _OpenResource(resource)
        open_resource.users.append(on_end)
        try:
            await open_resource.opened()
        except BaseException:
            await self.release(open_resource, on_end, 0.0)
            raise
        return open_resource

    async def release(self, open_resource: _OpenResource, on_end: OnEnd, timeout: float) -> BaseException | None:
        """Close the resource if it has no other user. Return the error of closing. ``timeout``: timeout in seconds."""
        open_resource.users.remove(on_end)
        if open_resource.users:
            return None
        key = asyncio.get_running_loop(), open_resource.resource.factory
        if self._open.get(key) is open_resource:
            del self._open[key]
        return await open_resource.close(timeout)


class WorkerResources:
    """Resources of one handler. ``find_resources`` returns those of the named tasks, or of all tasks for ``None``.

    ``open_resources``: values opened by the host application, by factory. They are not closed here.
    """

    def __init__(
        self,
        shared: SharedResources,
        find_resources: Callable[[Collection[str] | None], Iterable[Resource]],
        open_resources: Mapping[Factory, object] | None = None,
    ) -> None:
        self._shared = shared
        self._find_resources = find_resources
        self._values: dict[Factory, object] = dict(open_resources or {})
        self._open: list[tuple[_OpenResource, OnEnd]] = []

    async def open(self, tasks: Collection[str] | None, on_end: OnEnd) -> None:
        """Open the resources of these tasks, or of all tasks for ``None``, that are not open yet.

        ``on_end`` is called with the error of a resource that closes without a request. Raises ResourceUnavailable;
        resources opened before stay open until ``close``.
        """
        await self.open_all(self._find_resources(tasks), on_end)

    async def open_all(self, resources: Iterable[Resource], on_end: OnEnd) -> None:
        """Open these resources, like ``open``."""
        for resource in resources:
            if resource.factory not in self._values and not resource.replacement:
                opened = await self._shared.acquire(resource, on_end)
                self._open.append((opened, on_end))
                self._values[resource.factory] = opened.value.result()

    async def close(self, timeout: Callable[[], float]) -> list[tuple[str, BaseException]]:
        """Close all in reverse order, each within ``timeout()`` seconds. Return the name and error of each failure."""
        failed = []
        while self._open:
            opened, on_end = self._open.pop()
            self._values.pop(opened.resource.factory, None)
            if (error := await self._shared.release(opened, on_end, timeout())) is not None:
                failed.append((opened.resource.name, error))
        return failed

    def value(self, resource: Resource) -> object:
        """Return the value for one attempt. Raises ResourceUnavailable."""
        if replacement := resource.replacement:
            return replacement[0]
        try:
            return self._values[resource.factory]
        except KeyError:
            raise ResourceUnavailable(f"resource {resource.name} is not open in this worker") from None


class _OpenResource:
    """One resource, from its opening to its end."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.users: list[OnEnd] = []
        """Each of them is called when it ends by itself."""
        self._loop = asyncio.get_running_loop()
        self.value: asyncio.Future[Any] = self._loop.create_future()
        self._closing = False
        self._close: Callable[[], None]
        if resource.is_async():
            loop_event = asyncio.Event()
            self._close, coroutine = loop_event.set, self._hold(loop_event)
        else:
            thread_event = threading.Event()
            self._close, coroutine = thread_event.set, self._hold_in_thread(thread_event)
        self._task = self._loop.create_task(coroutine, name=f"stowhand resource {resource.name}")
        self._task.add_done_callback(self._ended)

    @property
    def is_closed(self) -> bool:
        return self._task.done()

    async def opened(self) -> None:
        """Wait until it is open. Raises ResourceUnavailable."""
        await asyncio.wait((self.value, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self.value.done():
            error = self._error()
            raise ResourceUnavailable(
                f"resource {self.resource.name} could not be opened: {_error_text(self.resource, error)}"
            ) from error

    async def close(self, timeout: float) -> BaseException | None:
        """Close the resource, or abandon it. Return its error."""
        self._closing = True
        self._close()
        if self.value.done():
            await asyncio.wait((self._task,), timeout=timeout)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CANCEL_TIMEOUT_SECONDS)
            return TimeoutError(f"not closed within {timeout:.1f} s") if self.value.done() else None
        return self._error() if self.value.done() else None

    async def _hold(self, closing: asyncio.Event) -> None:
        async with self.resource.factory() as value:  # type: ignore[attr-defined]
            self._is_open(value)
            await closing.wait()

    async def _hold_in_thread(self, closing: threading.Event) -> None:
        threads = Threads()

        def hold_open() -> None:
            with self.resource.factory() as value:  # type: ignore[attr-defined]
                self._loop.call_soon_threadsafe(self._is_open, value)
                closing.wait()

        try:
            await threads.run(hold_open, on_abandoned=lambda _: closing.set())
        finally:
            threads.close()

    def _is_open(self, value: object) -> None:
        if not self.value.done():
            self.value.set_result(value)

    def _error(self) -> BaseException | None:
        return asyncio.CancelledError() if self._task.cancelled() else self._task.exception()

    def _ended(self, _: object) -> None:
        error = self._error()
        if self.value.done() and not self._closing:
            for on_end in tuple(self.users):
                on_end(ResourceUnavailable(f"resource {self.resource.name} ended: {_error_text(self.resource, error)}"))


def _error_text(resource: Resource, error: BaseException | None) -> str:
    """Return the error's text, with the line in the factory's own file if known."""
    if error is None:
        return "its context manager exited by itself"
    text = "".join(traceback.format_exception_only(error)).strip()
    file = getattr(getattr(resource.factory, "__wrapped__", resource.factory), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and frame.filename == file.co_filename]
    return f"{text} ({own[-1].filename}:{own[-1].lineno})" if own else text
