"""Options of a connection to a lent store. Impossible values are refused when the options are made."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs.durations import seconds
from stowhand.jobs.option_struct import SuggestingMeta

MAX_TIMEOUT_SECONDS = 300.0
_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]{1,1024}")


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of a connection to a lent store."""

    token: str | None = None
    """Worker token, as printed by ``stowhand tokens make``. ``None``: the server requires no token (loopback)."""
    record: type[Any] | None = None
    """Type of a lent table's records: a dataclass, msgspec.Struct or pydantic model. ``None``: dicts."""
    timeout: float = 10.0
    """Seconds for one call, up to the last byte of its reply. The waiting time of a long poll is added."""
    ca_file: str | Path | None = None
    """Certificates (PEM) to trust instead of the public ones; ``SSL_CERT_FILE`` counts too."""
    insecure: bool = False
    """Allow sending the token over http:// to another machine, where anyone on the network can read and use it."""
    max_attempts: int | None = None
    """Maximum number of attempts of enqueued jobs that do not set it; ``None``: the lent store's default."""
    proxy: str | None = None
    """URL of an HTTP proxy. Those of the environment (``HTTPS_PROXY`` …) are ignored."""

    def __post_init__(self) -> None:
        if self.token is not None and not _TOKEN_PATTERN.fullmatch(self.token):
            # The message does not contain the value: even a malformed token is a secret.
            raise ConfigurationError("token: not a worker token: 1 to 1024 visible ASCII characters without spaces")
        try:
            msgspec.structs.force_setattr(self, "timeout", seconds(self.timeout))
        except ValueError as error:
            raise ConfigurationError(f"timeout: {error}") from None
        if not 0 < self.timeout <= MAX_TIMEOUT_SECONDS:
            raise ConfigurationError(
                f"timeout: got {self.timeout!r}; use more than 0 s, at most {MAX_TIMEOUT_SECONDS:g}"
            )
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigurationError(f"ca_file: there is no file {self.ca_file}")

    def __repr__(self) -> str:
        token = None if self.token is None else "***"
        return (
            f"HttpOptions(token={token!r}, record={self.record!r}, timeout={self.timeout!r}, ca_file={self.ca_file!r})"
        )

    def __rich_repr__(self) -> Any:
        yield "token", None if self.token is None else "***"
        yield "timeout", self.timeout


def base_url_of(url: str, options: HttpOptions) -> str:
    """Return the URL to which each path is appended. Raises ConfigurationError, which never contains a secret."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ConfigurationError("the lent store's URL cannot be read; it looks like https://host:port") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigurationError("a lent store's URL looks like https://host:port")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("a lent store's URL holds no user and no token; use the token as STOWHAND_TOKEN")
    if parts.query or parts.fragment:
        raise ConfigurationError("a lent store's URL ends with its host, port or path: no ?… and no #…")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "") + parts.path.rstrip("/")
    if (
        parts.scheme == "http"
        and options.token is not None
        and not options.insecure
        and not _is_this_machine(parts.hostname)
    ):
        raise ConfigurationError(
            f"{address}: the token and every payload could be read by anyone on the network; put TLS before the server"
            " and use https://, or, in a network that you trust, allow it: --insecure (in Python insecure=True)"
        )
    return address


def _is_this_machine(host: str) -> bool:
    """Return whether a host is this machine, without asking a name server."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
