"""An App's arguments about its store, the resolved store, Django's URL, and a comparison of two URLs."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from stowhand.stores.url import LENT_SCHEMES, hosts_and_ports, scheme_of

DEFAULT_STORE = "sqlite:///stowhand.db"
DEFAULT_STORE_SOURCE = "the default; -c or DATABASE_URL names another"
"""The source of the default store."""
OBJECT_SCHEME = "object"
"""The scheme of a store object that was passed to an App. Only its own process can reach it."""
_LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")
"""Names of this machine. The folder of a socket also means this machine."""


class ResolvedStore(msgspec.Struct, frozen=True):
    """A store, and the source that named it."""

    url: str
    """May contain a password: use it to connect, and never print it."""
    source: str
    note: str = ""
    """A warning about the choice."""
    app: str | None = None
    """``module:name`` of the App that has the store object; the URL names only its kind."""

    @property
    def is_lent(self) -> bool:
        """Whether another process serves the store over HTTP."""
        return self.scheme in LENT_SCHEMES

    @property
    def scheme(self) -> str:
        """``postgresql``, ``sqlite`` or ``memory``; ``https`` or ``http`` for a remote store."""
        return scheme_of(self.url)

    @property
    def absolute_url(self) -> str:
        """The URL, with the absolute path of an SQLite file: a process in another folder has another file."""
        prefix, separator, path = self.url.partition("sqlite:///")
        if prefix or not separator or path.startswith("/"):
            return self.url
        return f"sqlite:///{quote(str(Path.cwd()))}/{path}"


class DatabaseUrl(str):
    """URL of a database of Django's settings, whose name changes in a test run.

    The text is the URL when this object is made. ``alias``: the key in ``DATABASES``. ``read`` returns the current URL.
    """

    alias: str
    read: Callable[[], str]

    def __new__(cls, alias: str, read: Callable[[], str]) -> Self:
        url = super().__new__(cls, read())
        url.alias, url.read = alias, read
        return url


class OwnStore(msgspec.Struct, frozen=True, kw_only=True):
    """An App's arguments about its store."""

    app: str = "App"
    """``module:name``."""
    url: str | None = None
    """``None`` if the App names no store, and uses that of the environment."""
    alias: str | None = None
    """The key in Django's ``DATABASES``, if the URL is a ``DatabaseUrl``."""
    made: bool = False
    """Whether its store is an object of its process; the URL names only its kind."""
    options: Mapping[str, Any] = {}
    """Its options by field of ``StoreOptions``, and its preset."""

    @property
    def source(self) -> str:
        """Name of the source, for messages."""
        return f"the App of {self.app}" if self.app != "App" else "App"


def same_store(url: str, other: str, environ: Mapping[str, str]) -> bool:
    """Return whether two URLs name the same file, database (host, port and name) or store server."""
    if url == other:
        return True
    schemes = {scheme_of(url), scheme_of(other)}
    if schemes == {"sqlite"}:
        return _file(url) == _file(other)
    if schemes == {"postgresql"}:
        return _database(url, environ) == _database(other, environ)
    return len(schemes) == 1 and url.rstrip("/") == other.rstrip("/")


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0]).resolve()


def _database(url: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return host, port and name as libpq determines them."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    hosts, ports = hosts_and_ports(parts.netloc)
    host = query.get("host") or unquote(hosts) or environ.get("PGHOST", "")
    port = query.get("port") or ports or environ.get("PGPORT", "") or "5432"
    user = query.get("user") or unquote(parts.username or "") or environ.get("PGUSER", "") or _login()
    name = query.get("dbname") or unquote(parts.path.removeprefix("/")) or environ.get("PGDATABASE", "") or user
    return "" if host in _LOCAL_HOSTS or host.startswith(os.sep) else host.lower(), port, name


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user: in a container the user may be only a number
        return ""
