"""What is accepted where a function is expected: a ``def``, a method of an object, a ``functools.partial`` of one, an
object with ``__call__``, asynchronous or not. A class and a generator are refused.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


def bare(given: object) -> Any:
    """The innermost callable, without partials and the wrappers that ``functools.wraps`` names."""
    inner: Any = inspect.unwrap(given)  # type: ignore[arg-type]
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def inmost(given: object) -> Any:
    """The ``def`` that runs in the end: of an object, its ``__call__``."""
    inner = bare(given)
    call = inspect.getattr_static(type(inner), "__call__", None)
    return call if inspect.isfunction(call) else inner


def is_async(given: object) -> bool:
    """Whether calling it returns a coroutine, as far as can be seen."""
    return inspect.iscoroutinefunction(bare(given)) or inspect.iscoroutinefunction(inmost(given))


def why_no_function(given: object) -> str | None:
    """Why this callable is no function, and what to write instead; ``None``: it is one."""
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
