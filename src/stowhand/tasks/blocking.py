"""What lives on the event loop, used from a task's thread: every call is made on the loop, and waited for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_PLAIN = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)


def wait_for(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop; gives what it returns, raises what it raises. Not from the loop's own thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


class Blocking:
    """An asynchronous object as a synchronous one: a psycopg ``AsyncConnection``, its cursors and transactions.

    Methods wait for what they would have to be awaited for; ``async with`` is ``with``, ``async for`` is ``for``.
    """

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._on_loop(lambda: found(*args, **kwargs))

        return call

    def __enter__(self) -> Any:
        return self._on_loop(self._inner.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self._on_loop(lambda: self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Any]:
        items = aiter(self._inner)

        async def following() -> tuple[Any, ...]:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        while item := wait_for(self._loop, following()):
            yield item[0]

    def _on_loop(self, call: Callable[[], Any]) -> Any:
        async def made() -> Any:
            result = call()
            return await result if inspect.isawaitable(result) else result

        result = wait_for(self._loop, made())
        if isinstance(result, _PLAIN):
            return result
        asynchronous = hasattr(result, "__aenter__") or hasattr(result, "__aiter__")
        return Blocking(result, self._loop) if asynchronous else result
