"""Which store is meant: what was given on purpose, the store of an App, a file beside the code, the environment.

A flag or ``STOWHAND_CONNECTION`` > the store that an App names > the settings file > ``DATABASE_URL``, ``PGDATABASE``,
the default. An App's other arguments (its schema, its history) hold for its own store, whichever source names that.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.observe.safe_text import scrub
from stowhand.stores.url import LENT, places, scheme_of, store_url

DEFAULT_STORE = "sqlite:///stowhand.db"
UNNAMED = "the default; -c or DATABASE_URL names another"
"""The source of a store that was not named."""
OBJECT = "object"
"""The scheme of a store that an App was given ready made: only its own process can reach it."""
ON_PURPOSE = 1
"""Rank of the weakest source that takes precedence over an App: flags have 0, ``STOWHAND_*`` 1, the settings file 2."""
_HERE = ("", "localhost", "127.0.0.1", "::1")
"""Names of this machine. A socket's folder is another."""


class ResolvedStore(msgspec.Struct, frozen=True):
    """Which store, and the source that named it."""

    url: str
    """May hold a password: for opening, never for printing."""
    source: str
    note: str = ""
    """A warning about the choice."""
    app: str | None = None
    """``module:name`` of the App whose own store object it is; the URL only names its kind."""

    @property
    def is_lent(self) -> bool:
        """It is kept elsewhere, and lent over HTTP."""
        return self.scheme in LENT

    @property
    def scheme(self) -> str:
        """``postgresql`` or ``sqlite``; ``https`` or ``http`` where it is lent; ``memory``."""
        return scheme_of(self.url)


class OwnStore(msgspec.Struct, frozen=True, kw_only=True):
    """An App's arguments about its store."""

    app: str = "App"
    """``module:name``."""
    url: str | None = None
    """``None``: the App names none, and takes the default of the environment."""
    made: bool = False
    """Its store is an object of its process; the URL only names the kind."""
    options: Mapping[str, Any] = {}
    """Its options, by the fields of ``StoreOptions``, and its preset."""

    @property
    def source(self) -> str:
        """For people."""
        return f"the App of {self.app}" if self.app != "App" else "App"


class Given(msgspec.Struct, frozen=True):
    """The value of a setting, and its source."""

    text: str
    source: str
    rank: int
    """0 is the strongest."""


def choose(given: Given | None, own: OwnStore | None, environ: Mapping[str, str]) -> ResolvedStore:
    """The store that is used. ``given``: the strongest source that names a connection. Raises ConfigurationError."""
    if own is None or own.url is None:
        return _named(given.text, given.source) if given is not None else _of_the_environment(environ)
    if given is None or given.rank > ON_PURPOSE:
        place = own.app if own.made else None
        return ResolvedStore(own.url, own.source, _passed_over(given, own, environ), place)
    named = _named(given.text, given.source)
    if same_store(named.url, own.url, environ):
        return named
    note = (
        f"{own.source} names another store, {scrub(own.url)}: what its tasks enqueue by themselves, and what its other"
        f" processes enqueue, goes there and not here; {given.source} is what leads away from it"
    )
    return msgspec.structs.replace(named, note=note)


def is_own(store: ResolvedStore, own: OwnStore | None, environ: Mapping[str, str]) -> bool:
    """Whether the App's arguments hold for this store."""
    return own is not None and (own.url is None or same_store(store.url, own.url, environ))


def same_store(one: str, other: str, environ: Mapping[str, str]) -> bool:
    """Do two URLs mean the same file, the same database (host, port and name), the same lender?"""
    if one == other:
        return True
    schemes = {scheme_of(one), scheme_of(other)}
    if schemes == {"sqlite"}:
        return _file(one) == _file(other)
    if schemes == {"postgresql"}:
        return _database(one, environ) == _database(other, environ)
    return len(schemes) == 1 and one.rstrip("/") == other.rstrip("/")


def _named(text: str, source: str) -> ResolvedStore:
    try:
        return ResolvedStore(store_url(text), source)
    except (ConfigurationError, UnicodeError) as error:
        raise ConfigurationError(f"{source}: {error}") from None


def _of_the_environment(environ: Mapping[str, str]) -> ResolvedStore:
    database_url = environ.get("DATABASE_URL", "")
    if _names_postgres(database_url):
        return _named(database_url, "DATABASE_URL")
    note = "DATABASE_URL does not name a PostgreSQL database and was left alone" if database_url else ""
    if environ.get("PGDATABASE"):
        return ResolvedStore("postgresql://", "PGDATABASE and its companions", note)
    return ResolvedStore(DEFAULT_STORE, UNNAMED, note)


def _passed_over(given: Given | None, own: OwnStore, environ: Mapping[str, str]) -> str:
    """A note about a source that names another store and is passed over: production may have run on that one before."""
    assert own.url is not None
    database_url = environ.get("DATABASE_URL", "")
    if given is not None:
        text, source, instead = given.text, given.source, "-c or STOWHAND_CONNECTION"
    elif _names_postgres(database_url):
        text, source, instead = database_url, "DATABASE_URL", "App() without a URL, -c, or STOWHAND_CONNECTION"
    else:
        return ""
    try:
        url = store_url(text)
    except (ConfigurationError, UnicodeError):
        return ""
    if same_store(url, own.url, environ):
        return ""
    return f"{source} names {scrub(url)}, which is not used, for {own.source} names its own; to work there: {instead}"


def _names_postgres(url: str) -> bool:
    return url.startswith(("postgres://", "postgresql://"))


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0]).resolve()


def _database(url: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Host, port and name, as libpq would find them."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    hosts, ports = places(parts.netloc)
    host = query.get("host") or unquote(hosts) or environ.get("PGHOST", "")
    port = query.get("port") or ports or environ.get("PGPORT", "") or "5432"
    user = query.get("user") or unquote(parts.username or "") or environ.get("PGUSER", "") or _login()
    name = query.get("dbname") or unquote(parts.path.removeprefix("/")) or environ.get("PGDATABASE", "") or user
    return "" if host in _HERE or host.startswith(os.sep) else host.lower(), port, name


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user: a container with a number alone
        return ""
