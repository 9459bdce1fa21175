"""A flow for code without an event loop: every method calls the asynchronous one and waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from stowhand.app.portal import Portal

if TYPE_CHECKING:
    from stowhand.flows.flow import Flow

R = TypeVar("R")


class FlowPortal:
    """A flow with its own connections on the event loop of a portal; callable from any thread."""

    opened = "flow"

    def __init__(self, make: Callable[[], Flow]) -> None:
        self._make = make
        self._flow: Flow | None = None
        self._portal = Portal(self._close_flow)

    async def _close_flow(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            await flow.close()

    def wait_for(self, ask: Callable[[Flow], Awaitable[R]], instead: str) -> R:
        """Returns or raises what ``ask`` does. Raises RuntimeError in a running event loop: await ``instead`` there."""

        async def call() -> R:
            if self._flow is None:
                self._flow = self._make()
            return await ask(self._flow)

        return self._portal.run(call, instead)

    def close(self) -> None:
        """Close the connections. Harmless when repeated; also done at the end of the program."""
        self._portal.close()
