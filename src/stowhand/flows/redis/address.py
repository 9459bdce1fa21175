"""Address of a Redis or Valkey server, read from its URL. Only this module decides which parts may be displayed.

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

_KINDS_BY_SCHEME: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+unix": ("socket", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_URL_FORMS = (
    "it looks like redis://host:6379/0, rediss://… (TLS), unix:///path?db=0, "
    "redis+sentinel://host:26379/service/0 or redis+cluster://host:6379"
)
_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_SERVER_OPTIONS = frozenset({"db", "username", "password"})
# Options for other clients that share the URL. They are ignored: the dialer sets these values itself.
_IGNORED_OPTIONS = frozenset(
    {"client_name", "decode_responses", "encoding", "health_check_interval", "max_connections", "protocol"}
    | {"retry_on_timeout", "socket_connect_timeout", "socket_keepalive", "socket_timeout"}
)
_PORT, _SENTINEL_PORT = 6379, 26379


@dataclass(frozen=True, kw_only=True)
class Address:
    """Connection parameters. Neither ``str()`` nor ``repr()`` contains a secret."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    """Name and port of the server, or of each sentinel or node; empty for a socket."""
    path: str = ""
    """Path of the socket."""
    service: str = ""
    """Name of the primary, as the sentinels know it."""
    db: int = 0
    tls: bool = False
    tls_options: dict[str, str | bool] = field(default_factory=dict)
    """TLS options, under the driver's names: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_cert_reqs``, …"""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)

    @property
    def clustered(self) -> bool:
        """Whether the address is that of a cluster, in which all keys of a flow must be in one slot."""
        return self.kind == "cluster"

    @property
    def shown(self) -> str:
        """The URL without user, password and options, for display."""
        if self.kind == "socket":
            return f"unix://{self.path}?db={self.db}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "server" else f"+{self.kind}")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        return f"{scheme}://{hosts}{service}" + ("" if self.clustered else f"/{self.db}")

    def __str__(self) -> str:
        return self.shown

    def scrub(self, text: str) -> str:
        """Replace this address's passwords in ``text`` with ``***``."""
        for secret in (self.password, self.sentinel_password):
            if secret:
                text = text.replace(secret, "***")
        return text


def read_address(url: str) -> Address:
    """Parse the URL. Raise ConfigurationError, which never repeats the URL: any part of it may contain a password."""
    try:
        parts = urlsplit(url.strip())
        scheme = parts.scheme.replace("valkey", "redis", 1)
        kind, tls = _KINDS_BY_SCHEME[scheme]
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        if parts.fragment:
            raise ValueError
        hosts = () if kind == "socket" else _hosts(parts, _SENTINEL_PORT if kind == "sentinel" else _PORT)
    except (KeyError, ValueError):
        raise ConfigurationError(f"the Redis address cannot be read; {_URL_FORMS}") from None
    _refuse_unknown(options, kind, tls)
    service, db = _service_and_db(kind, parts.path, options)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return Address(
        kind=kind,
        hosts=hosts,
        path=unquote(parts.path) if kind == "socket" else "",
        service=service,
        db=db,
        tls=tls,
        tls_options={name: _tls_option(name, value) for name, value in options.items() if name in _TLS_OPTIONS},
        username=unquote(user) or options.get("username"),
        password=unquote(password) or options.get("password"),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )


def check_hash_tag(address: Address, hash_tag: str | None) -> None:
    """Raise ConfigurationError for a cluster without a hash tag: a script may only touch keys of one slot."""
    if address.clustered and hash_tag is None:
        raise ConfigurationError(
            f"{address}: in a cluster all keys of a flow must be in one slot; set the flow's hash_tag, such as"
            " hash_tag='orders': then every key begins with {orders}:"
        )


def _hosts(parts: SplitResult, port: int) -> tuple[tuple[str, int], ...]:
    """Return the hosts with their ports. Raise ValueError for a port that is not a number."""
    hosts = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        host = urlsplit(f"//{text.strip()}")
        hosts.append((host.hostname or "localhost", port if host.port is None else host.port))
    return tuple(hosts)


def _refuse_unknown(options: dict[str, str], kind: Kind, tls: bool) -> None:
    known = _SERVER_OPTIONS
    if tls:
        known |= _TLS_OPTIONS
    if kind == "sentinel":
        known |= _SENTINEL_OPTIONS
    unknown = sorted(options.keys() - known - _IGNORED_OPTIONS)
    for name in unknown:
        if name in _TLS_OPTIONS:
            raise ConfigurationError(f"the Redis address has {name} but no TLS; use the scheme rediss")
    if unknown:
        # The message does not name the option: it may be part of a password that contains a '?'.
        raise ConfigurationError(
            f"the Redis address has an unknown option after the '?'; valid options: {', '.join(sorted(known))}"
        )


def _service_and_db(kind: Kind, path: str, options: dict[str, str]) -> tuple[str, int]:
    segments = [] if kind == "socket" else [unquote(segment) for segment in path.split("/") if segment]
    service = segments.pop(0) if kind == "sentinel" and segments else ""
    if kind == "sentinel" and not service:
        raise ConfigurationError(f"the Redis address names sentinels but no service; {_URL_FORMS}")
    if kind == "socket" and not path:
        raise ConfigurationError(f"the Redis address names no socket; {_URL_FORMS}")
    number = options.get("db") or (segments.pop(0) if segments else "0")
    if segments or not number.isascii() or not number.isdigit():
        raise ConfigurationError(f"the Redis address names a database that is not a number; {_URL_FORMS}")
    if kind == "cluster" and int(number) != 0:
        raise ConfigurationError("a Redis cluster has one database, number 0; omit the number in the address")
    return service, int(number)


def _tls_option(name: str, value: str) -> str | bool:
    if name == "ssl_check_hostname":
        return value.lower() not in ("false", "no", "0")
    return value.lower().removeprefix("cert_") if name == "ssl_cert_reqs" else value
