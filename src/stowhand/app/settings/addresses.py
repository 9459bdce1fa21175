"""Normalization of addresses. Each function raises ValueError with a correction."""

from __future__ import annotations

from stowhand.errors import ConfigurationError
from stowhand.stores.url import scheme_of, store_url

LOOPBACK_HOST = "127.0.0.1"


def http_address(text: str) -> str:
    """Normalize ``PORT`` or ``HOST:PORT``. Without a host only this machine can connect."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535) or (colon and not host):
        raise ValueError(f"got {text!r}, must be PORT or HOST:PORT")
    return f"{f'[{host}]' if ':' in host else host or LOOPBACK_HOST}:{int(port)}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of a normalized address."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_address(text: str) -> str:
    """Normalize the URL of a PostgreSQL store. Others are refused, because the worker would only be slower."""
    try:
        url = store_url(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if scheme_of(url) != "postgresql":
        raise ValueError("only PostgreSQL sends notifications; use postgresql://…")
    return url
