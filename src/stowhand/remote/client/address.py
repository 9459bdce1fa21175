"""Where a lent store is: its URL taken apart, and refused where a token would travel readable."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from stowhand.errors import ConfigurationError
from stowhand.remote.client.options import HttpOptions


def base_of(url: str, options: HttpOptions) -> str:
    """The URL that every path is appended to. Raises ConfigurationError, which never repeats a secret."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ConfigurationError("the lent store's URL cannot be read; it looks like https://host:port") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigurationError("a lent store's URL looks like https://host:port")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("a lent store's URL holds no user and no token; give the token as STOWHAND_TOKEN")
    if parts.query or parts.fragment:
        raise ConfigurationError("a lent store's URL ends with its host, port or path: no ?… and no #…")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "") + parts.path.rstrip("/")
    if parts.scheme == "http" and options.token is not None and not options.insecure and not _is_here(parts.hostname):
        raise ConfigurationError(
            f"{where}: the token and every payload would travel readable to whoever listens; put TLS before the server"
            " and use https://, or, in a network that you trust, say so: --insecure (in Python insecure=True)"
        )
    return where


def _is_here(host: str) -> bool:
    """Is it this machine, whatever a name server says?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
