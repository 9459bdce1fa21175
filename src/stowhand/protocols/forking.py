"""A process that is forked has its parent's sockets: what it sent there, even a farewell, would be part of the parent's
session, and what it read, the parent would miss."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress


def lead_nowhere(descriptors: Iterable[int]) -> None:
    """In the child, in the place of each: an event loop that is left behind knows its number."""
    nowhere, other_end = socket.socketpair()
    other_end.close()
    with nowhere:
        for descriptor in descriptors:
            with suppress(OSError):  # closed
                os.dup2(nowhere.fileno(), descriptor, inheritable=False)
