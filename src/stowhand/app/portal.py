"""A portal from synchronous into asynchronous code: one thread with one event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from itertools import islice
from operator import attrgetter
from queue import SimpleQueue
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from stowhand.app.store_method import path_of, refuse_unknown_names
from stowhand.errors import Misuse
from stowhand.fork import call_in_children

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

EXIT_TIMEOUT_SECONDS = 2.0
"""Time for connections to close when the program exits."""
ITEMS_PER_CHUNK = 500
"""Number of items that the calling thread passes at a time."""


class SyncFacade(Protocol):
    """An object whose methods wait for those of an asynchronous object."""

    opened: str
    """The asynchronous object as an expression, for messages."""

    def wait_for(self, call: Callable[[Any], Awaitable[Any]], replacement: str) -> Any:
        """Wait for what ``call`` returns for the asynchronous object. ``replacement``: what to write in a loop."""


class SyncMethod(Generic[P, T]):
    """A synchronous method with the name, parameters and types of an asynchronous one, which may be of a part.

    ``replacement``: what to write in an event loop, if not the method of the asynchronous object.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[T]], replacement: str | None = None) -> None:
        path = path_of(method)

        @wraps(method)
        def call(facade: SyncFacade, *args: P.args, **kwargs: P.kwargs) -> T:
            refuse_unknown_names(method, kwargs)

            def call_method(opened: Any) -> Any:
                return attrgetter(path)(opened)(*args, **kwargs)

            return cast("T", facade.wait_for(call_method, replacement or f"await {facade.opened}.{path}(…)"))

        self._call = call
        self.__name__, self.__doc__ = method.__name__, method.__doc__

    @overload
    def __get__(self, facade: None, kind: type) -> Callable[Concatenate[SyncFacade, P], T]: ...
    @overload
    def __get__(self, facade: SyncFacade, kind: type) -> Callable[P, T]: ...
    def __get__(self, facade: SyncFacade | None, kind: type) -> Any:
        return self._call if facade is None else MethodType(self._call, facade)


class Portal:
    """Runs coroutines of any number of threads on its own event loop, which starts with the first of them.

    ``on_close`` is called before the loop ends, also when the program exits. Unlike a portal of anyio this one survives
    a fork, produces items in the calling thread, and needs no block around it.
    """

    def __init__(self, on_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_close = on_close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        call_in_children(self)
        _at_exit(weakref.WeakMethod(self._end_with_the_program))

    def run(self, start: Callable[[], Coroutine[Any, Any, T]], replacement: str) -> T:
        """Make the coroutine on the portal's loop and wait for what it returns or raises.

        ``replacement``: what to write in an event loop, which the call would block. Raises Misuse there.
        """
        _refuse_loop(replacement)
        return _wait(self._start(start))

    def run_with(
        self, start: Callable[[AsyncIterator[S]], Coroutine[Any, Any, T]], items: Iterable[S], replacement: str
    ) -> T:
        """Run a coroutine like ``run`` that consumes items, which the calling thread produces.

        A generator may therefore use objects of its thread, such as a database cursor or its transaction.
        """
        _refuse_loop(replacement)
        remaining = iter(items)  # before the coroutine starts, because it may raise
        requests: SimpleQueue[asyncio.Future[list[S]] | None] = SimpleQueue()
        future = self._start(lambda: start(_requested_items(requests)))
        future.add_done_callback(lambda _: requests.put(None))
        try:
            while (request := requests.get()) is not None:
                _send_chunk(request, remaining)
        except BaseException:
            future.cancel()
            raise
        return _wait(future)

    def forked(self) -> None:
        """Forget loop and lock in a forked child, which does not have their threads."""
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def close(self) -> None:
        """Call ``on_close`` and stop the loop. Idempotent; a later ``run`` starts a new loop."""
        self._end(None)

    def _end(self, timeout: float | None) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(_await(self._on_close), loop).result(timeout)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout)

    def _end_with_the_program(self) -> None:
        """Close connections, because open ones cause warnings. Does not wait for a store that does not answer."""
        with suppress(Exception):
            self._end(EXIT_TIMEOUT_SECONDS)

    def _start(self, start: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        loop = self._running_loop()
        return asyncio.run_coroutine_threadsafe(_await(start), loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="stowhand sync", daemon=True)
                self._thread.start()
            return self._loop


def _at_exit(end: weakref.WeakMethod[Callable[[], None]]) -> None:
    def call() -> None:
        if (end_portal := end()) is not None:
            end_portal()

    atexit.register(call)


def _refuse_loop(replacement: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Misuse(f"called inside a running event loop, which it would block; write {replacement}")


def _wait(future: Future[T]) -> T:
    try:
        return future.result()
    except BaseException:
        # Ctrl-C in the waiting thread: the coroutine must not continue unnoticed.
        future.cancel()
        raise


def _send_chunk(request: asyncio.Future[list[S]], remaining: Iterator[S]) -> None:
    """Send the next items, or the error of producing them, which ends the coroutine and is raised here again."""
    try:
        chunk = list(islice(remaining, ITEMS_PER_CHUNK))
    except Exception as error:  # noqa: BLE001 - boundary: raised again where the items are consumed
        request.get_loop().call_soon_threadsafe(_resolve, request, None, error)
    else:
        request.get_loop().call_soon_threadsafe(_resolve, request, chunk, None)


def _resolve(request: asyncio.Future[list[S]], chunk: list[S] | None, error: Exception | None) -> None:
    if request.done():
        return  # the consumer has finished meanwhile
    if error is not None:
        request.set_exception(error)
    else:
        request.set_result(chunk or [])


async def _requested_items(requests: SimpleQueue[asyncio.Future[list[S]] | None]) -> AsyncIterator[S]:
    while True:
        request: asyncio.Future[list[S]] = asyncio.get_running_loop().create_future()
        requests.put(request)
        chunk = await request
        if not chunk:
            return
        for item in chunk:
            yield item


async def _await(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await start()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_tasks() -> None:
    """Cancel the remaining tasks, like ``asyncio.run``. Its Runner would start a thread, which an exiting program may
    not do."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
