"""Writes settlements of the queue and of a user's table in one transaction, without those the file refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.text import clean
from stowhand.protocols.store import RefusedSettlement, Reply
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.database.sqlite_errors import concerns_call
from stowhand.stores.sqlite.shared.plan import SettlePlan
from stowhand.stores.verdicts import Entry

MAX_SETTLEMENTS = 500
"""The limit of one transaction, so that other writers get the lock in between."""
T = TypeVar("T")
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)
_SYSTEM_CLOCK = SystemClock()


class Writer(Protocol[X_co]):
    """The connections of a store."""

    @property
    def retry_pauses(self) -> Sequence[float]:
        """The pauses before further attempts of a refused settlement, in seconds."""

    def write(self, work: Callable[[X_co], T]) -> Awaitable[T]:
        """Run ``work`` in one transaction."""


class Settler(Generic[X]):
    """Records the outcomes of attempts."""

    def __init__(self, writer: Writer[X], plan: SettlePlan[X]) -> None:
        self._writer = writer
        self._plan = plan

    async def settle(self, batch: Sequence[Entry], *, repeat: bool = False) -> list[Reply]:
        """Settle a batch, and reply in its order.

        Raises StoreError if all of several are refused: the store is at fault, and the caller repeats the call.
        """
        replies: list[Reply] = []
        for start in range(0, len(batch), MAX_SETTLEMENTS):
            replies += await self._settle(batch[start : start + MAX_SETTLEMENTS], repeat=repeat)
        return replies

    async def _settle(self, batch: Sequence[Entry], *, repeat: bool) -> list[Reply]:
        async def write(part: Sequence[tuple[int, Entry]]) -> list[tuple[int, Reply]]:
            entries = [entry for _, entry in part]
            replies = await self._writer.write(lambda tx: self._plan.settle(tx, entries, repeat=repeat))
            return [(number, reply) for (number, _), reply in zip(part, replies, strict=True)]

        pauses = self._writer.retry_pauses
        result = await write_each(list(enumerate(batch)), write, _SYSTEM_CLOCK, concerns_call, pauses)
        if len(result.refused) == len(batch) > 1:
            _, error = result.refused[0]
            raise error if isinstance(error, StoreError) else StoreError(self._plan.reason(error))
        replies = dict(result.rows)
        for (number, _), error in result.refused:
            replies[number] = RefusedSettlement(clean(self._plan.reason(error)))
        return [replies[number] for number in range(len(batch))]
