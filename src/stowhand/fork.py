"""Protection of forked processes: a child that used its parent's sockets would corrupt the parent's sessions."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """An object that a forked child inherits and cannot use as it is."""

    def forked(self) -> None:
        """Adapt to the child. Called before anything else runs there."""


_inherited: WeakSet[Inherited] = WeakSet()


def call_in_children(inheritor: Inherited) -> None:
    """Call the object's ``forked`` in each forked child while the object exists."""
    _inherited.add(inheritor)


def replace_sockets(descriptors: Iterable[int]) -> None:
    """Replace descriptors in the child by a socket without a peer: an abandoned event loop still uses their numbers."""
    dead_end, other_end = socket.socketpair()
    other_end.close()
    with dead_end:
        for descriptor in descriptors:
            with suppress(OSError):  # closed
                os.dup2(dead_end.fileno(), descriptor, inheritable=False)


def _forked() -> None:
    for inheritor in list(_inherited):
        inheritor.forked()


os.register_at_fork(after_in_child=_forked)
