"""Proxies that say for whom they ask. Which program is one is told by the address at the other end of the socket alone:
nobody can write that into a request.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from stowhand.errors import ConfigurationError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies:
    """Those within ``networks``, such as ``10.0.0.0/8`` or ``127.0.0.1``. Raises ConfigurationError."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(map(_network, networks))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, peer: object) -> bool:
        """Is the program at this address one of them? Text that is no address is none."""
        address = _address(str(peer))
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, headers: Mapping[str, str]) -> str:
        """The address that asked. Of several in ``X-Forwarded-For`` the last that is no proxy's: each proxy writes the
        one that it saw behind those that its client claims. Where that is no address, the socket's.
        """
        if peer not in self:
            return peer
        told = [hop.strip() for hop in headers.get("x-forwarded-for", "").split(",")]
        found = next((hop for hop in reversed(told) if hop not in self), peer)
        return peer if _address(found) is None else found


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigurationError(
            f"--trust-from {text}: no network; give the addresses of your proxy, such as 10.0.0.0/8 or 127.0.0.1"
        ) from None


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found  # a socket for both families names IPv4 so
