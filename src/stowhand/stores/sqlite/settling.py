"""Settlements of the queue and of a user's table: all in one transaction; where the file refuses some, the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from stowhand.clock import SystemClock
from stowhand.errors import StoreError
from stowhand.jobs.text import clean
from stowhand.protocols.store import Reply, Unwritten
from stowhand.stores.database.refused_rows import PAUSES_SECONDS, write_each
from stowhand.stores.database.sqlite_trouble import concerns_call, said
from stowhand.stores.verdicts import Entry

_CLOCK = SystemClock()


async def settle_each(
    batch: Sequence[Entry],
    settle: Callable[[Sequence[Entry]], Awaitable[Sequence[Reply]]],
    reason: Callable[[Exception], str] = said,
    pauses: Sequence[float] = PAUSES_SECONDS,
) -> list[Reply]:
    """Replies in the order of the batch. ``settle``: in one transaction, all or nothing.

    Raises StoreError where all of several are refused: the store is at fault, and the caller repeats the call.
    """

    async def write(part: Sequence[tuple[int, Entry]]) -> list[tuple[int, Reply]]:
        replies = await settle([entry for _, entry in part])
        return [(number, reply) for (number, _), reply in zip(part, replies, strict=True)]

    written = await write_each(list(enumerate(batch)), write, _CLOCK, concerns_call, pauses)
    if len(written.refused) == len(batch) > 1:
        _, error = written.refused[0]
        raise error if isinstance(error, StoreError) else StoreError(reason(error))
    replies = dict(written.rows)
    for (number, _), error in written.refused:
        replies[number] = Unwritten(clean(reason(error)))
    return [replies[number] for number in range(len(batch))]
