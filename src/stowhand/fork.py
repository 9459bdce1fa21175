"""A process that is forked has its parent's sockets: what it sent there, even a farewell, would be part of the parent's
session, and what it read, the parent would miss."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """What a child has of its parent, and cannot use as it is."""

    def forked(self) -> None:
        """In the child, before anything else runs there."""


_inherited: WeakSet[Inherited] = WeakSet()


def tell_in_children(thing: Inherited) -> None:
    """Call its ``forked`` in each child, for as long as it lives."""
    _inherited.add(thing)


def lead_nowhere(descriptors: Iterable[int]) -> None:
    """In the child, in the place of each: an event loop that is left behind knows its number."""
    nowhere, other_end = socket.socketpair()
    other_end.close()
    with nowhere:
        for descriptor in descriptors:
            with suppress(OSError):  # closed
                os.dup2(nowhere.fileno(), descriptor, inheritable=False)


def _forked() -> None:
    for thing in list(_inherited):
        thing.forked()


os.register_at_fork(after_in_child=_forked)
