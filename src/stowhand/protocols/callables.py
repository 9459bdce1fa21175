"""What may be given where a function is wanted: a ``def``, a method of an object, a ``functools.partial`` of one, an
object with ``__call__``, asynchronous or not. A class and a generator are none.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


def bare(given: object) -> Any:
    """What is called at last, without partials, and without what ``functools.wraps`` has put around it."""
    inner: Any = inspect.unwrap(given)  # type: ignore[arg-type]
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def inmost(given: object) -> Any:
    """The ``def`` that runs at last: of an object, its ``__call__``."""
    inner = bare(given)
    call = inspect.getattr_static(type(inner), "__call__", None)
    return call if inspect.isfunction(call) else inner


def is_async(given: object) -> bool:
    """Does calling it give a coroutine, as far as can be seen?"""
    return inspect.iscoroutinefunction(bare(given)) or inspect.iscoroutinefunction(inmost(given))


def why_no_function(given: object) -> str | None:
    """Of something that can be called: why it is no function, and what to write; ``None``: it is one."""
    inner = bare(given)
    if isinstance(inner, type):
        return (
            f"{inner.__qualname__} is a class, and calling it makes an object and does no work: write a def that makes"
            " one, or give a method of an object"
        )
    inner = inmost(given)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return f"{inner.__qualname__} is a generator: a task returns once; remove its yield"
    return None
