"""``resource(open_mailer)``: an object that a task uses and that outlives a job, such as a pool, a client or a model.

    @asynccontextmanager
    async def open_mailer() -> AsyncIterator[Mailer]:
        async with Mailer("smtp.example.com") as mailer:
            yield mailer

    @app.task
    async def send(to: str, *, mailer: Mailer = resource(open_mailer)) -> None: ...

The worker opens it before the first job, once for all tasks that name the same factory, and closes it after the last
job. The declaration determines whether a factory is asynchronous, without calling it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, TypeVar, get_origin, get_type_hints, overload

from stowhand.errors import ConfigurationError, a_type
from stowhand.protocols.handler import innermost_function, unwrap_callable

T = TypeVar("T")
AnyContextManager = AbstractAsyncContextManager[T] | AbstractContextManager[T]
Factory = Callable[[], object]


class Resource:
    """Default value of a task's parameter, which the worker replaces by the opened resource."""

    def __init__(self, factory: Factory) -> None:
        self.factory = factory
        self.name = str(getattr(unwrap_callable(factory), "__qualname__", type(factory).__qualname__))
        self._replacements: list[object] = []

    def __repr__(self) -> str:
        return f"resource({self.name})"

    @property
    def replacement(self) -> tuple[object, ...]:
        """Value that replaces the resource, as a tuple of one element; empty if there is none."""
        return tuple(self._replacements[-1:])

    @contextmanager
    def replaced(self, value: object) -> Iterator[None]:
        """Replace the resource by this value within the block."""
        self._replacements.append(value)
        try:
            yield
        finally:
            self._replacements.remove(value)

    def is_async(self) -> bool:
        """Return whether the resource opens on the loop, and not in a thread.

        Raises ConfigurationError if that cannot be determined, or if the factory needs arguments.
        """
        self._refuse_arguments()
        outer = self.factory
        while isinstance(outer, functools.partial):
            outer = outer.func
        function: object = inspect.unwrap(outer)
        if inspect.iscoroutinefunction(function):
            raise self._error("returns a coroutine", "@asynccontextmanager, and let it yield the value")
        if inspect.isasyncgenfunction(function):
            if function is outer:
                raise self._error("yields", "@asynccontextmanager")
            return True
        if inspect.isgeneratorfunction(function):
            if function is outer:
                raise self._error("yields", "@contextmanager")
            return False
        returned_type = function if isinstance(function, type) else _annotated(innermost_function(outer))
        is_async_manager, is_manager = (hasattr(returned_type, name) for name in ("__aenter__", "__enter__"))
        if isinstance(returned_type, type) and (is_async_manager or is_manager):
            return is_async_manager
        raise ConfigurationError(
            f"{self.name} cannot be recognized as a context manager; decorate it with contextlib.contextmanager or"
            " asynccontextmanager, or annotate that it returns one"
        )

    def _refuse_arguments(self) -> None:
        try:
            signature = inspect.signature(self.factory)
        except ValueError:
            return  # written in C, without a known signature
        try:
            signature.bind()
        except TypeError as error:
            raise ConfigurationError(
                f"{self.name} is called without arguments ({error}); bind them with functools.partial"
            ) from None

    def _error(self, problem: str, decorator: str) -> ConfigurationError:
        return ConfigurationError(f"{self.name} {problem} and is not a context manager; put {decorator} above it")


@overload
def resource(factory: Callable[[], AbstractAsyncContextManager[T, Any]], /) -> T: ...
@overload
def resource(factory: Callable[[], AbstractContextManager[T, Any]], /) -> T: ...
def resource(factory: Any, /) -> Any:
    """Declare a resource as the default of a keyword-only parameter of a task.

    A worker passes the value that the factory's context manager yields. It opens the resource once, before its first
    job, and closes it after its last. Callers that enqueue leave the parameter out.

        @app.task
        async def send(to: str, *, mailer: Mailer = resource(open_mailer)) -> None: ...

    Args:
        factory: Function without arguments that returns a context manager. A synchronous one opens in a thread, and its
            value must be safe to use from several threads. An asynchronous one is for ``async def`` tasks only.

    Returns:
        A placeholder that type checkers see as the value.

    Raises:
        ConfigurationError: ``factory`` is not a function.

    """
    if not callable(factory):
        is_opened = any(hasattr(type(factory), name) for name in ("__enter__", "__aenter__"))
        hint = "use the function that opens it, without calling it" if is_opened else "use a function that opens it"
        raise ConfigurationError(f"resource: {a_type(factory)} is not a function; {hint}")
    return Resource(factory)


def _annotated(function: Any) -> Any:
    """Return the class that the function is annotated to return, if any."""
    try:
        hint = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return get_origin(hint) or hint
