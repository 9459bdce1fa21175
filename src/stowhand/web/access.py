"""Who asks, and what they may do."""

from __future__ import annotations

import ipaddress

import msgspec

from stowhand.web.asked import Asked, Reply, Right, Who, text

LOCAL = Who(rights=frozenset({Right.LOOK}))


class Access:
    """Whoever is on this machine may look; others may nothing."""

    async def admit(self, asked: Asked) -> Asked | Reply:
        """The request with its visitor and the token of its forms; or the reply that refuses it."""
        if asked.known:
            return asked
        if not _is_loopback(asked.peer):
            return text(403, "This dashboard is for this machine alone.\n")
        return msgspec.structs.replace(asked, who=LOCAL, known=True)

    def protect(self, asked: Asked, reply: Reply) -> Reply:
        """The reply with the headers that every reply has."""
        return reply.with_headers(("referrer-policy", "no-referrer"), ("x-content-type-options", "nosniff"))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
