"""Creating jobs one by one, many at the same time: while one call is on its way, what is asked for piles up."""

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
Asked = tuple[NewFlowJob, "asyncio.Future[str]"]


@dataclass
class Pile:
    """Of one event loop."""

    asked: list[Asked] = field(default_factory=list)
    sending: asyncio.Task[None] | None = None


class Creating:
    """Answers one by one what it asks of ``create_many`` in few calls. One that is refused harms no other."""

    def __init__(self, create_many: CreateMany) -> None:
        self._create_many = create_many
        self._piles: WeakKeyDictionary[asyncio.AbstractEventLoop, Pile] = WeakKeyDictionary()

    async def create(self, job: NewFlowJob) -> str:
        """Its id. Raises what ``create_many`` raises."""
        loop = asyncio.get_running_loop()
        pile = self._piles.setdefault(loop, Pile())
        made: asyncio.Future[str] = loop.create_future()
        pile.asked.append((job, made))
        if pile.sending is None or pile.sending.done():
            with bound(None):
                pile.sending = loop.create_task(self._send(pile), name="flow creating")
        return await made

    async def _send(self, pile: Pile) -> None:
        while pile.asked:
            some, pile.asked = pile.asked[:MOST], pile.asked[MOST:]
            asked = [one for one in some if not one[1].cancelled()]
            try:
                await self._make(asked)
            except asyncio.CancelledError:
                for _, made in (*asked, *pile.asked):
                    made.cancel()
                raise

    async def _make(self, asked: list[Asked]) -> None:
        if not asked:
            return
        try:
            ids = await self._create_many([job for job, _ in asked])
        except Exception as error:  # noqa: BLE001 - each who asked gets it
            known = not isinstance(error, StoreUnreachable | OutcomeUnknown)
            if len(asked) > 1 and known and isinstance(error, StoreError | ValueError):
                for one in asked:  # nothing was written: whose fault it is hears of it alone
                    await self._make([one])
                return
            for _, made in asked:
                if not made.cancelled():
                    made.set_exception(error)
        else:
            for (_, made), job_id in zip(asked, ids, strict=True):
                if not made.cancelled():
                    made.set_result(job_id)
