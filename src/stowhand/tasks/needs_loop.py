"""Coroutine functions that raise if no event loop runs, because a forgotten ``await`` would silently drop the call."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Protocol, TypeVar, cast

from stowhand.errors import Misuse

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


class SameType(Protocol):
    """A decorator that keeps the type of what it decorates."""

    def __call__(self, function: F, /) -> F: ...


def needs_loop(replacement: str) -> SameType:
    """Return a decorator of coroutine functions and methods that raise Misuse if no event loop runs in the thread.

    ``replacement``: the synchronous call to suggest, formatted with the positional arguments, including ``self``:
    ``"{0.name}.enqueue_sync(…)"``.
    """

    def decorate(function: F, /) -> F:
        return cast("F", _NeedsLoop(function, replacement))

    return decorate


class _NeedsLoop:
    """A function with this check, which ``inspect.iscoroutinefunction`` recognizes as a coroutine function.

    That function looks at the code and the defaults of a function, on every version of Python. Frameworks use it to
    decide whether to await a callable (Starlette's ``BackgroundTask``).
    """

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]], replacement: str) -> None:
        functools.update_wrapper(self, function)
        self._function, self._replacement = function, replacement
        self.__name__: str = function.__name__
        self.__code__ = function.__code__
        self.__defaults__ = function.__defaults__
        self.__kwdefaults__ = function.__kwdefaults__

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise Misuse(
                f"{self.__name__}() was called in a thread without a running event loop; nothing was done. Write"
                f" {self._replacement.format(*args)}, or await it in an 'async def main()' run by asyncio.run(main())"
            ) from None
        return self._function(*args, **kwargs)
