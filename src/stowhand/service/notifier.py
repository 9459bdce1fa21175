"""Notifications to a service manager, such as systemd, over the socket that ``NOTIFY_SOCKET`` names.

Notifications are hints: an error of the socket is ignored.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

ENVIRONMENT_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables by which the manager names its socket, and the watchdog's interval and process (``man sd_notify``)."""


class Notifier:
    """Sender of notifications. It never waits: a datagram that cannot be sent at once is lost.

    ``send`` may be called from any thread, and from signal handlers.
    """

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self._address = address
        if address.startswith("@"):
            # This is an abstract socket, which the kernel names with a zero byte in place of the @.
            self._address = "\0" + address[1:]
        self.watchdog = watchdog
        """Seconds within which the manager expects ``WATCHDOG=1``; ``None`` if it expects none."""

    def send(self, **fields: object) -> None:
        """Send all fields in one datagram, one per line: ``ready=1`` becomes ``READY=1``."""
        lines = []
        for name, value in fields.items():
            text = str(value).replace("\n", " ")  # A newline would start another field.
            lines.append(f"{name.upper()}={text}")
        datagram = "\n".join(lines).encode()
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)
            connection.sendto(datagram, self._address)


def notifier(environ: MutableMapping[str, str]) -> Notifier | None:
    """Return the notifier for the socket that the environment names; ``None`` without a valid socket.

    Removes the variables from the environment. Otherwise child processes would inherit them, and notify in this
    process's name.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    watchdog = _watchdog(environ)
    for name in ENVIRONMENT_VARIABLES:
        environ.pop(name, None)
    is_path_or_abstract_name = address.startswith(("/", "@")) and len(address) > 1
    return Notifier(address, watchdog) if is_path_or_abstract_name else None


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Return the interval of the watchdog in seconds; ``None`` if it does not watch this process."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    pid = environ.get("WATCHDOG_PID", "")
    is_for_this_process = pid in ("", str(os.getpid()))
    if not is_for_this_process or not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    return int(microseconds) / 1_000_000
