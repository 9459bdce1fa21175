"""How a lent store is reached: one frozen value; what cannot be is refused when it is made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError

LONGEST_TIMEOUT = 300.0
_TOKEN = re.compile(r"[\x21-\x7e]{1,1024}")


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What goes beside the URL."""

    token: str | None = None
    """The worker token that ``stowhand tokens make`` showed. ``None``: the server asks for none (loopback)."""
    record: type[Any] | None = None
    """A dataclass, a msgspec.Struct or a pydantic model: what records of a lent table are made of. ``None``: dicts."""
    timeout: float = 10.0
    """Seconds for one call from its beginning to the last byte of its reply; a long poll has its waiting besides."""
    ca_file: str | Path | None = None
    """Certificates (PEM) to trust instead of the public ones; ``SSL_CERT_FILE`` is looked at too."""
    insecure: bool = False
    """Allow a token to be sent over http:// to another machine, where whoever listens can read and use it."""
    max_attempts: int | None = None
    """Of jobs that are sent and do not say; ``None``: the lent store's own."""
    proxy: str | None = None
    """An HTTP proxy to go through. The environment's (``HTTPS_PROXY`` …) are not looked at."""

    def __post_init__(self) -> None:
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            # Not shown: it is a secret, however broken.
            raise ConfigurationError("token: not a worker token: 1 to 1024 visible ASCII characters without spaces")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise ConfigurationError(
                f"timeout: {self.timeout!r} given; give more than 0 s, at most {LONGEST_TIMEOUT:g}"
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
