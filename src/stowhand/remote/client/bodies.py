"""Requests of bounded size: a long list is sent in several requests, each within the server's limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BODY_LIMIT = 1024 * 1024
"""Bytes of the largest body that the server accepts."""
ROOM = BODY_LIMIT - 4096
"""Bytes for the items of one list; the rest is for the message around them."""
ITEMS = 1000
"""Items in one list that the server accepts."""


def parts(items: Sequence[bytes], room: int = ROOM, most: int = ITEMS) -> Iterator[range]:
    """The positions of the items of each request, in order. An item that is too large by itself is sent alone."""
    start, size = 0, 0
    for place, item in enumerate(items):
        if place > start and (size + len(item) + 1 > room or place - start == most):
            yield range(start, place)
            start, size = place, 0
        size += len(item) + 1
    if start < len(items):
        yield range(start, len(items))
