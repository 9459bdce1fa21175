"""The face of a flow for code without an event loop. Every method is the asynchronous one, waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from stowhand.app.portal import Portal

if TYPE_CHECKING:
    from stowhand.flows.flow import Flow

P = ParamSpec("P")
R = TypeVar("R")


class FlowPortal:
    """A flow with connections of its own, on the loop of a portal; from any number of threads."""

    def __init__(self, make: Callable[[], Flow]) -> None:
        self._make = make
        self._flow: Flow | None = None
        self._portal = Portal(self._farewell)

    async def _farewell(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            await flow.close()

    def wait_for(self, ask: Callable[[Flow], Awaitable[R]], instead: str) -> R:
        """What it gives, or raises. Raises RuntimeError inside a running loop, naming what to await instead."""

        async def call() -> R:
            if self._flow is None:
                self._flow = self._make()
            return await ask(self._flow)

        return self._portal.run(call, instead)

    def close(self) -> None:
        """Let its connections go. Harmless when repeated; the end of the program does it too."""
        self._portal.close()


class OfTheFlow(Generic[P, R]):
    """A method of the flow, waited for: its name, parameters and types are the flow's, and not written again."""

    def __init__(self, method: Callable[Concatenate[Any, P], Awaitable[R]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, sync: None, kind: type) -> OfTheFlow[P, R]: ...
    @overload
    def __get__(self, sync: FlowPortal, kind: type) -> Callable[P, R]: ...
    def __get__(self, sync: FlowPortal | None, kind: type) -> Any:
        if sync is None:
            return self
        name = self.method.__name__

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            asked = cast("Callable[[Flow], Awaitable[R]]", methodcaller(name, *args, **kwargs))
            return sync.wait_for(asked, f"await flow.{name}(…)")

        call.__name__, call.__doc__ = name, self.__doc__
        return call
