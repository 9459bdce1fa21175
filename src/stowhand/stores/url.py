"""Normalizes the URL of a store (also from a libpq string or a bare name), and opens the store."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from stowhand.errors import ConfigurationError, hint
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions

MEMORY_URL = "memory://"
"""A store in the memory of its process, lost when it ends."""
LENT_SCHEMES = ("https", "http")
"""The schemes of stores that another process lends."""
URL_SCHEMES = ("postgresql", "postgres", "sqlite", "memory", *LENT_SCHEMES)
URL_PREFIXES = ("postgresql://", "postgres://", "sqlite:///", "https://", "http://")
"""The prefixes of URLs that ``open_store`` opens."""
HOW_TO_NAME_A_STORE = (
    "Name a store by URL: postgresql://user@host:5432/database, sqlite:///relative/file.db or"
    " sqlite:////absolute/file.db; a PostgreSQL database also by its bare name (my_db)"
    " or by a libpq string ('host=… dbname=…'). A store that 'stowhand serve' lends: https://host:port."
)
_WINDOWS_PATH_PATTERN = re.compile(r"/*[A-Za-z]:[\\/]")
_SCHEME_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_LIBPQ_PAIR_PATTERN = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)", re.ASCII | re.DOTALL)
# As libpq reads one: several hosts, each with or without a port, an IPv6 address in brackets, a folder encoded.
_POSTGRES_URL_PATTERN = re.compile(
    r"postgresql://(?P<user>[^@/?#]*@)?(?P<hosts>[^@/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?"
)
_HOST_PATTERN = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]*\]|[^:\[\]]*)(?::\d*)?", re.ASCII)
_PORT_PATTERN = re.compile(r":\d*$", re.ASCII)
_TRUE_WORDS, _FALSE_WORDS = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def store_url(text: str) -> str:
    """Return the normalized URL of a store. Raises ConfigurationError, which never quotes a password."""
    text = text.strip()
    if scheme := _SCHEME_PATTERN.match(text):
        return _from_url(text, scheme[1].lower())
    if not text or "\x00" in text:
        raise ConfigurationError(f"The connection is empty. {HOW_TO_NAME_A_STORE}")
    if "=" in text:
        return _from_libpq(text)
    return _from_name(text)


def scheme_of(url: str) -> str:
    """Return ``sqlite``, ``postgresql``, ``https`` or ``http`` for a URL of ``store_url``."""
    return url.partition(":")[0]


def open_store(url: str, options: StoreOptions | None = None) -> QueueStore:
    """Return the store at ``url``. ``await store.open()`` connects it. Raises ConfigurationError.

    Each kind of store is imported only when it is used.
    """
    options = options or StoreOptions()
    if url.startswith(("postgresql://", "postgres://")):
        try:
            from stowhand.stores.postgres.queue import PostgresStore
        except ImportError as error:
            raise ConfigurationError(f"PostgreSQL needs a driver: pip install 'stowhand[binary]' ({error})") from error
        return PostgresStore(url, options)
    if url.startswith("sqlite:///"):
        from stowhand.stores.sqlite.queue import SqliteStore

        return SqliteStore(url.removeprefix("sqlite:///").partition("?")[0], options)
    if url.startswith(("https://", "http://")):
        try:
            from stowhand.remote.client.options import HttpOptions
            from stowhand.remote.client.store import HttpStore
        except ImportError as error:
            raise ConfigurationError(
                f"a lent store needs a client: pip install 'stowhand[remote]' ({error})"
            ) from error
        http_options = HttpOptions(
            token=options.token, ca_file=options.ca_file, insecure=options.insecure, max_attempts=options.max_attempts
        )
        return HttpStore(url, http_options)
    raise ConfigurationError(f"no store for {scheme_of(url)!r} here. {HOW_TO_NAME_A_STORE}")


def _from_url(url: str, scheme: str) -> str:
    if scheme not in URL_SCHEMES:
        raise ConfigurationError(_no_such_scheme(scheme))
    rest = url.partition(":")[2]
    if scheme == "memory":
        if rest != "//":
            raise ConfigurationError("A store in memory has no name: memory://")
        return MEMORY_URL
    if scheme == "sqlite":
        return _check_sqlite(f"sqlite:{rest}")
    if scheme in LENT_SCHEMES:
        return _check_lent(f"{scheme}:{rest}")
    if not rest.startswith("//") or any(char.isspace() for char in rest):
        raise _unreadable()
    return _understand_ssl(f"postgresql:{rest}")


def _no_such_scheme(scheme: str) -> str:
    """Return the message for an unknown scheme, such as SQLAlchemy's ``postgresql+asyncpg``."""
    base, plus, driver = scheme.partition("+")
    if plus and base in URL_SCHEMES:
        return f"{scheme}:// names a driver, which is not chosen here: leave out '+{driver}', as in {base}://…"
    names = [name for name in URL_SCHEMES if name != "postgres"]
    suggestion = hint(scheme, names, synonyms={"postgres": "postgresql"})
    return f"There is no store for {scheme}:// here{suggestion or '.'} {HOW_TO_NAME_A_STORE}"


def _check_sqlite(url: str) -> str:
    path = url.removeprefix("sqlite:")
    if path.strip("/").partition("?")[0].endswith(":memory:"):
        raise ConfigurationError(f"{url}: a queue in memory, for trying out and for tests, is {MEMORY_URL}")
    if os.name != "nt" and _WINDOWS_PATH_PATTERN.match(path):
        raise ConfigurationError(f"{url}: a path of Windows; a file on this system is sqlite:////absolute/file.db")
    if not path.startswith("///") or len(path) == 3:
        file = path.lstrip("/") or "stowhand.db"
        raise ConfigurationError(f"{url}: an SQLite URL has three slashes before its file: sqlite:///{file}")
    return url


def _check_lent(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and not any(char.isspace() for char in url)
        _ = parts.port
    except ValueError:
        is_valid = False
    else:
        if "@" in parts.netloc:
            raise ConfigurationError("A lent store's URL has no user and no token: use the token as STOWHAND_TOKEN.")
    if not is_valid:
        raise ConfigurationError("The URL of a lent store cannot be read. It looks like https://host:port")
    return url


def _understand_ssl(url: str) -> str:
    """Replace ``ssl=true``, the spelling of other languages' drivers, with libpq's ``sslmode=require``."""
    parts = _POSTGRES_URL_PATTERN.fullmatch(url)
    if parts is None or not all(map(_HOST_PATTERN.fullmatch, (parts["hosts"] or "").split(","))):
        raise _unreadable()
    options = parse_qsl(parts["query"] or "", keep_blank_values=True)
    if not any(name == "ssl" for name, _ in options):
        return url
    other_options = [(name, value) for name, value in options if name != "ssl"]
    if not any(name == "sslmode" for name, _ in other_options):
        other_options.append(("sslmode", _ssl_mode(dict(options)["ssl"])))
    query = urlencode(other_options, quote_via=quote)
    return f"postgresql://{parts['user'] or ''}{parts['hosts']}{parts['path'] or ''}" + (f"?{query}" if query else "")


def hosts_and_ports(netloc: str) -> tuple[str, str]:
    """Return the hosts and ports of a PostgreSQL URL as libpq's lists (``a,b`` and ``1,2``), "" where none."""
    parts = [host.rpartition(":") if _PORT_PATTERN.search(host) else (host, "", "") for host in _hosts(netloc)]
    ports = [port for *_, port in parts]
    return ",".join(name.strip("[]") for name, *_ in parts), ",".join(ports) if any(ports) else ""


def _hosts(netloc: str) -> list[str]:
    return netloc.rpartition("@")[2].split(",")


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "This PostgreSQL URL cannot be read. It begins with postgresql://, and in a name or password spaces and the"
        " characters /?#[]@:% are percent-encoded: @ is %40, / is %2F."
    )


def _ssl_mode(value: str) -> str:
    if value.lower() in _TRUE_WORDS:
        return "require"
    if value.lower() in _FALSE_WORDS:
        return "disable"
    raise ConfigurationError(f"ssl={value}: use ssl=true, ssl=false, or one of libpq's modes as sslmode=…")


def _from_libpq(text: str) -> str:
    pairs: dict[str, str] = {}
    end = 0
    while end < len(text):
        pair = _LIBPQ_PAIR_PATTERN.match(text, end)
        if pair is None:
            raise ConfigurationError(
                f"The connection is neither a URL nor a libpq string: it cannot be read after {end} characters."
                f" {HOW_TO_NAME_A_STORE}"
            )
        pairs[pair[1]] = _unquote(pair[2])
        end = pair.end()
    database = quote(pairs.pop("dbname", ""), safe="")
    return _understand_ssl(f"postgresql:///{database}" + (f"?{urlencode(pairs, quote_via=quote)}" if pairs else ""))


def _unquote(value: str) -> str:
    inner = value[1:-1] if value.startswith("'") else value
    return re.sub(r"\\(.)", r"\1", inner, flags=re.DOTALL)


def _from_name(name: str) -> str:
    if "@" in name:
        raise ConfigurationError(f"This looks like a URL without its beginning. {HOW_TO_NAME_A_STORE}")
    if name in (":memory:", "memory:"):
        raise ConfigurationError(f"{name}: a queue in memory, for trying out and for tests, is {MEMORY_URL}")
    if name.lower().endswith((".db", ".sqlite", ".sqlite3", ".db3")) or "/" in name or name == ".":
        raise ConfigurationError(
            f"{name}: a bare word is the name of a PostgreSQL database. For an SQLite file write sqlite:///{name}"
        )
    return f"postgresql:///{quote(name, safe='')}"
