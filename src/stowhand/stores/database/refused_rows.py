"""Writes of many rows, of which the database may refuse one: by halves, until it is alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from stowhand.stores.database import trouble

T = TypeVar("T")
R = TypeVar("R")
Alone = Callable[[T, Exception], None]
"""Called with the item that is refused, and why."""


async def halved(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    alone: Alone[T],
) -> list[R]:
    """The results of ``write`` for all items. Raises every other error."""
    try:
        return list(await write(items))
    except Exception as error:
        if not trouble.is_refusal(error):
            raise
        if len(items) == 1:
            alone(items[0], error)
            return []
    middle = len(items) // 2
    return [*await halved(items[:middle], write, alone), *await halved(items[middle:], write, alone)]
