"""Where a Redis or Valkey is: its URL taken apart. The only place that decides what may be shown of it.

redis://[user:password@]host[:6379][/db]                      one server
rediss://…                                                    the same over TLS
unix:///path/of/the.sock[?db=0]   or   redis+unix://…         one server, on its socket
redis+sentinel://[…@]host[:26379][,host…]/service[/db]        the primary that the sentinels name
redis+cluster://[…@]host[:6379][,host…]                       a cluster, by any of its nodes

``valkey`` may stand for ``redis`` everywhere; ``rediss+sentinel`` and ``rediss+cluster`` use TLS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from stowhand.errors import ConfigurationError

Kind = Literal["server", "socket", "sentinel", "cluster"]

_KINDS: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+unix": ("socket", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_LOOKS = (
    "it looks like redis://host:6379/0, rediss://… (TLS), unix:///path?db=0, "
    "redis+sentinel://host:26379/service/0 or redis+cluster://host:6379"
)
_OF_TLS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})
_OF_SENTINELS = frozenset({"sentinel_username", "sentinel_password"})
_OF_SERVER = frozenset({"db", "username", "password"})
# What one URL for several programs may say to other clients; ours decides these things itself.
_OTHERS = frozenset(
    {"client_name", "decode_responses", "encoding", "health_check_interval", "max_connections", "protocol"}
    | {"retry_on_timeout", "socket_connect_timeout", "socket_keepalive", "socket_timeout"}
)
_PORT, _SENTINEL_PORT = 6379, 26379


@dataclass(frozen=True, kw_only=True)
class Address:
    """How to connect, and ``str()``: what may be said about it. No secret is in its ``repr``."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    """Name and port of the server, of the sentinels, of the nodes; none for a socket."""
    path: str = ""
    """The socket."""
    service: str = ""
    """The primary's name among the sentinels."""
    db: int = 0
    tls: bool = False
    tls_options: dict[str, str | bool] = field(default_factory=dict)
    """As the driver calls them: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_cert_reqs``, …"""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)

    @property
    def clustered(self) -> bool:
        """Is it a cluster, whose keys must lie in one slot?"""
        return self.kind == "cluster"

    @property
    def shown(self) -> str:
        """For people: the URL without user, password and options."""
        if self.kind == "socket":
            return f"unix://{self.path}?db={self.db}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "server" else f"+{self.kind}")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        return f"{scheme}://{hosts}{service}" + ("" if self.clustered else f"/{self.db}")

    def __str__(self) -> str:
        return self.shown

    def scrub(self, text: str) -> str:
        """``text`` without this address's secrets."""
        for secret in (self.password, self.sentinel_password):
            if secret:
                text = text.replace(secret, "***")
        return text


def read_address(url: str) -> Address:
    """The URL's parts. Raises ConfigurationError, which never repeats the URL: a password may stand anywhere in it."""
    try:
        parts = urlsplit(url.strip())
        scheme = parts.scheme.replace("valkey", "redis", 1)
        kind, tls = _KINDS[scheme]
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        if parts.fragment:
            raise ValueError
        hosts = () if kind == "socket" else _hosts(parts, _SENTINEL_PORT if kind == "sentinel" else _PORT)
    except (KeyError, ValueError):
        raise ConfigurationError(f"the Redis address cannot be read; {_LOOKS}") from None
    _refuse_unknown(given, kind, tls)
    service, db = _service_and_db(kind, parts.path, given)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return Address(
        kind=kind,
        hosts=hosts,
        path=unquote(parts.path) if kind == "socket" else "",
        service=service,
        db=db,
        tls=tls,
        tls_options={name: _tls_option(name, value) for name, value in given.items() if name in _OF_TLS},
        username=unquote(user) or given.get("username"),
        password=unquote(password) or given.get("password"),
        sentinel_username=given.get("sentinel_username"),
        sentinel_password=given.get("sentinel_password"),
    )


def check_hash_tag(address: Address, hash_tag: str | None) -> None:
    """Raises ConfigurationError for a cluster without one: a script may only touch keys of one slot."""
    if address.clustered and hash_tag is None:
        raise ConfigurationError(
            f"{address}: in a cluster all keys of a flow must lie in one slot; give the flow a hash_tag, as"
            " hash_tag='orders': every key then begins with {orders}:"
        )


def _hosts(parts: SplitResult, port: int) -> tuple[tuple[str, int], ...]:
    """Raises ValueError."""
    found = []
    for one in parts.netloc.rpartition("@")[2].split(","):
        place = urlsplit(f"//{one.strip()}")
        found.append((place.hostname or "localhost", port if place.port is None else place.port))
    return tuple(found)


def _refuse_unknown(given: dict[str, str], kind: Kind, tls: bool) -> None:
    known = _OF_SERVER | (_OF_TLS if tls else frozenset()) | (_OF_SENTINELS if kind == "sentinel" else frozenset())
    unknown = sorted(given.keys() - known - _OTHERS)
    if unknown:
        # Not named: it may be a piece of a password that has a '?' in it.
        raise ConfigurationError(
            f"the Redis address has an option that is not known after the '?'; known here: {', '.join(sorted(known))}"
        )


def _service_and_db(kind: Kind, path: str, given: dict[str, str]) -> tuple[str, int]:
    words = [] if kind == "socket" else [unquote(word) for word in path.split("/") if word]
    service = words.pop(0) if kind == "sentinel" and words else ""
    if kind == "sentinel" and not service:
        raise ConfigurationError(f"the Redis address names sentinels and no service; {_LOOKS}")
    if kind == "socket" and not path:
        raise ConfigurationError(f"the Redis address names no socket; {_LOOKS}")
    number = given.get("db") or (words.pop(0) if words else "0")
    if words or not number.isascii() or not number.isdigit():
        raise ConfigurationError(f"the Redis address names a database that is no number; {_LOOKS}")
    if kind == "cluster" and int(number) != 0:
        raise ConfigurationError("a Redis cluster has one database, number 0; leave the number out of the address")
    return service, int(number)


def _tls_option(name: str, value: str) -> str | bool:
    if name == "ssl_check_hostname":
        return value.lower() not in ("false", "no", "0")
    return value.lower().removeprefix("cert_") if name == "ssl_cert_reqs" else value
