"""Notifies a service manager over the socket that it names in ``NOTIFY_SOCKET`` (systemd's protocol)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

ENVIRONMENT_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Sends datagrams without waiting; a manager that does not receive them is ignored. From any thread or signal."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog = watchdog
        """Seconds within which the manager expects ``WATCHDOG=1``; ``None``: it expects none."""

    def send(self, **fields: object) -> None:
        """Send ``READY=1`` for ``ready=1``, all words in one datagram."""
        lines = "\n".join(f"{name.upper()}={str(value).replace(chr(10), ' ')}" for name, value in fields.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)
            connection.sendto(lines.encode(), self._address)


def notifier(environ: MutableMapping[str, str]) -> Notifier | None:
    """The one that the environment names, if any. The variables are removed: they are not for child processes."""
    address, watchdog = environ.get("NOTIFY_SOCKET", ""), _watchdog(environ)
    for name in ENVIRONMENT_VARIABLES:
        environ.pop(name, None)
    if not address.startswith(("/", "@")) or len(address) < 2:
        return None
    return Notifier(address, watchdog)


def _watchdog(environ: Mapping[str, str]) -> float | None:
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1_000_000
