"""Requests of bounded size: a long list becomes several, none of them beyond what the server takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BODY_LIMIT = 1024 * 1024
"""Bytes that the server takes."""
ROOM = BODY_LIMIT - 4096
"""Bytes for the items of one list; the rest is for what stands around it."""
ITEMS = 1000
"""Items that the server takes in one list."""


def parts(items: Sequence[bytes], room: int = ROOM, most: int = ITEMS) -> Iterator[range]:
    """Which items go together: the places of each part, in order. One that is too large by itself goes alone."""
    start, size = 0, 0
    for place, item in enumerate(items):
        if place > start and (size + len(item) + 1 > room or place - start == most):
            yield range(start, place)
            start, size = place, 0
        size += len(item) + 1
    if start < len(items):
        yield range(start, len(items))
