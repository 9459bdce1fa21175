"""Few calls for many requests: while one call is under way, further requests are collected for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from stowhand.errors import OutcomeUnknown, StoreError, StoreUnreachable
from stowhand.observe.propagation import bound_correlation_id

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass
class Pile(Generic[Q, A]):
    """The pending requests of one event loop."""

    requests: list[tuple[Q, asyncio.Future[A]]] = field(default_factory=list)
    sending: asyncio.Task[None] | None = None


class Batcher(Generic[Q, A]):
    """``call`` answers up to ``most`` requests, in order. A request that is refused fails alone."""

    def __init__(self, call: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], most: int) -> None:
        self._call = call
        self._most = most
        self._piles: WeakKeyDictionary[asyncio.AbstractEventLoop, Pile[Q, A]] = WeakKeyDictionary()

    async def ask(self, request: Q) -> A:
        """Returns its answer. Raises what ``call`` raises."""
        loop = asyncio.get_running_loop()
        pile = self._piles.setdefault(loop, Pile())
        answer: asyncio.Future[A] = loop.create_future()
        pile.requests.append((request, answer))
        if pile.sending is None or pile.sending.done():
            with bound_correlation_id(None):
                pile.sending = loop.create_task(self._send(pile), name="flow batches")
        return await answer

    async def _send(self, pile: Pile[Q, A]) -> None:
        while pile.requests:
            taken, pile.requests = pile.requests[: self._most], pile.requests[self._most :]
            requests = [one for one in taken if not one[1].cancelled()]
            try:
                await self._answer(requests)
            except asyncio.CancelledError:
                for _, answer in (*requests, *pile.requests):
                    answer.cancel()
                raise

    async def _answer(self, requests: list[tuple[Q, asyncio.Future[A]]]) -> None:
        if not requests:
            return
        try:
            answers = await self._call([request for request, _ in requests])
        except Exception as error:  # noqa: BLE001 - passed to every caller
            known = not isinstance(error, StoreUnreachable | OutcomeUnknown)
            if len(requests) > 1 and known and isinstance(error, StoreError | ValueError):
                for one in requests:  # nothing was done: call for each, so that only the invalid one fails
                    await self._answer([one])
                return
            for _, answer in requests:
                if not answer.cancelled():
                    answer.set_exception(error)
        else:
            for (_, answer), given in zip(requests, answers, strict=True):
                if not answer.cancelled():
                    answer.set_result(given)
