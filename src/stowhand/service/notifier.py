"""Notifications to a service manager over the socket named in ``NOTIFY_SOCKET`` (systemd's protocol)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

ENVIRONMENT_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Sender of datagrams. It never waits, and drops what the manager does not receive. Safe in threads and signals."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog = watchdog
        """Seconds within which the manager expects ``WATCHDOG=1``; ``None`` if it expects none."""

    def send(self, **fields: object) -> None:
        """Send all fields in one datagram: ``READY=1`` for ``ready=1``."""
        lines = "\n".join(f"{name.upper()}={str(value).replace(chr(10), ' ')}" for name, value in fields.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)
            connection.sendto(lines.encode(), self._address)


def notifier(environ: MutableMapping[str, str]) -> Notifier | None:
    """Return the notifier that the environment names, if any. Remove the variables from the environment."""
    address, watchdog = environ.get("NOTIFY_SOCKET", ""), _watchdog(environ)
    for name in ENVIRONMENT_VARIABLES:  # child processes must not see them
        environ.pop(name, None)
    if not address.startswith(("/", "@")) or len(address) < 2:
        return None
    return Notifier(address, watchdog)


def _watchdog(environ: Mapping[str, str]) -> float | None:
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1_000_000
