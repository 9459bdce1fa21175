"""Addresses in one spelling. Each function raises ValueError with half a sentence that says what would be right."""

from __future__ import annotations

from stowhand.errors import ConfigurationError
from stowhand.stores.url import scheme_of, store_url

LOOPBACK = "127.0.0.1"


def http_address(text: str) -> str:
    """``PORT`` or ``HOST:PORT``, in one spelling. Without a host it is this machine alone."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535) or (colon and not host):
        raise ValueError(f"{text!r} given, must be PORT or HOST:PORT")
    return f"{f'[{host}]' if ':' in host else host or LOOPBACK}:{int(port)}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of what ``http_address`` gave."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_address(text: str) -> str:
    """A PostgreSQL store, in one spelling. Checked, for a wrong one would only make the worker slower, unnoticed."""
    try:
        url = store_url(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if scheme_of(url) != "postgresql":
        raise ValueError("only PostgreSQL can be listened to; give postgresql://…")
    return url
