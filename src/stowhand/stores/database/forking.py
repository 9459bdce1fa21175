"""A process that is forked opens connections of its own.

It has its parent's sockets. What it sent there, even the farewell of a connection that is closed, would be part of the
parent's session. So in the child each of them is made to lead nowhere: its next use finds it closed, and connects anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import psycopg

from stowhand.fork import lead_nowhere

_ours: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()


def keep_from_children(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let no process use this connection but the one that has opened it."""
    _ours.add(connection)


def _cut_off() -> None:
    descriptors = []
    for connection in list(_ours):
        with suppress(psycopg.Error):  # closed
            descriptors.append(connection.fileno())
    lead_nowhere(descriptors)
    _ours.clear()


os.register_at_fork(after_in_child=_cut_off)
