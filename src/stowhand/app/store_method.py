"""Methods of an App that call the method of its open store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from inspect import Parameter, signature
from operator import attrgetter
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from stowhand.errors import suggest
from stowhand.hints import find_equivalents
from stowhand.protocols.queue_store import QueueStore
from stowhand.tasks.needs_loop import needs_loop

P = ParamSpec("P")
T = TypeVar("T")

PARTS_BY_PROTOCOL = {
    "Producer": "jobs",
    "Inspector": "inspect",
    "Timetable": "timetable",
    "Schema": "schema",
    "Administrator": "admin",
    "Operator": "operate",
}
"""Attributes of a store, by protocol."""


def path_of(method: Callable[..., object]) -> str:
    """Return the path of a protocol's method on an open store: ``jobs.get``. For other classes return its name."""
    part = PARTS_BY_PROTOCOL.get(method.__qualname__.partition(".")[0])
    return f"{part}.{method.__name__}" if part else method.__name__


def refuse_unknown_names(method: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Raise TypeError for a keyword argument that a method does not have."""
    _, *parameters = signature(method).parameters.values()
    names = [parameter.name for parameter in parameters]
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    for name, value in arguments.items():
        if name not in names:
            takes_filter = len(parameters) == 1 and isinstance(parameters[0].default, msgspec.Struct)
            if takes_filter:
                hint = f"; {_filter_example(method.__name__, parameters[0], name, value)}"
            else:
                hint = suggest(name, names)
            raise TypeError(f"{method.__name__}(): no argument {name!r}{hint}")


def _filter_example(method: str, parameter: Parameter, name: str, value: object) -> str:
    """Return a call with a filter as an example, for a keyword that is, or resembles, a field of the filter."""
    kind = type(parameter.default)
    names = [name] if name in kind.__struct_fields__ else find_equivalents(name, kind.__struct_fields__)
    field = names[0] if names else "states"
    text = repr(str(value)) if isinstance(value, str) else "…"
    if field == "states":
        text = f"({text},)" if isinstance(value, str) else "('queued',)"
    return f"use {method}({kind.__name__}({field}={text}))"


class StoreOpener(Protocol):
    """An object that opens its store on the running event loop."""

    async def open(self) -> QueueStore: ...


class StoreMethod(Generic[P, T]):
    """A method of an App that opens its store and calls the store's method of this name and these parameters."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        find = attrgetter(path_of(method))

        @needs_loop(f"app.sync.{method.__name__}(…)")
        @wraps(method)
        async def call(app: StoreOpener, *args: P.args, **kwargs: P.kwargs) -> T:
            refuse_unknown_names(method, kwargs)
            result: T = await find(await app.open())(*args, **kwargs)
            return result

        self._call = call
        self.__name__, self.__doc__ = method.__name__, method.__doc__

    @overload
    def __get__(self, app: None, kind: type) -> Callable[Concatenate[StoreOpener, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, app: StoreOpener, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, app: StoreOpener | None, kind: type) -> Any:
        return self._call if app is None else MethodType(self._call, app)
