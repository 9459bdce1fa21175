"""Batches concurrent creations: while one call is under way, further jobs are collected for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from stowhand.errors import OutcomeUnknown, StoreError, StoreUnreachable
from stowhand.flows.engine import NewFlowJob
from stowhand.protocols.correlation import bound

MOST = 200
"""Jobs in one call."""
CreateMany = Callable[[Sequence[NewFlowJob]], Awaitable[Sequence[str]]]
Request = tuple[NewFlowJob, "asyncio.Future[str]"]


@dataclass
class Pile:
    """The pending requests of one event loop."""

    requests: list[Request] = field(default_factory=list)
    sending: asyncio.Task[None] | None = None


class Creating:
    """Creates single jobs by few calls of ``create_many``. A job that is refused fails alone."""

    def __init__(self, create_many: CreateMany) -> None:
        self._create_many = create_many
        self._piles: WeakKeyDictionary[asyncio.AbstractEventLoop, Pile] = WeakKeyDictionary()

    async def create(self, job: NewFlowJob) -> str:
        """Returns the job's id. Raises what ``create_many`` raises."""
        loop = asyncio.get_running_loop()
        pile = self._piles.setdefault(loop, Pile())
        made: asyncio.Future[str] = loop.create_future()
        pile.requests.append((job, made))
        if pile.sending is None or pile.sending.done():
            with bound(None):
                pile.sending = loop.create_task(self._send(pile), name="flow creating")
        return await made

    async def _send(self, pile: Pile) -> None:
        while pile.requests:
            taken, pile.requests = pile.requests[:MOST], pile.requests[MOST:]
            requests = [one for one in taken if not one[1].cancelled()]
            try:
                await self._make(requests)
            except asyncio.CancelledError:
                for _, made in (*requests, *pile.requests):
                    made.cancel()
                raise

    async def _make(self, requests: list[Request]) -> None:
        if not requests:
            return
        try:
            ids = await self._create_many([job for job, _ in requests])
        except Exception as error:  # noqa: BLE001 - passed to every caller
            known = not isinstance(error, StoreUnreachable | OutcomeUnknown)
            if len(requests) > 1 and known and isinstance(error, StoreError | ValueError):
                for one in requests:  # nothing was written: create them singly, so that only the invalid one fails
                    await self._make([one])
                return
            for _, made in requests:
                if not made.cancelled():
                    made.set_exception(error)
        else:
            for (_, made), job_id in zip(requests, ids, strict=True):
                if not made.cancelled():
                    made.set_result(job_id)
