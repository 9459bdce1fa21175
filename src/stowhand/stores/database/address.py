"""Database addresses: connection parameters of a URL, a libpq string, or a bare database name.

Only this module decides what may be shown of an address: never its password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from stowhand.errors import ConfigurationError
from stowhand.stores.database.postgres_errors import first_line
from stowhand.stores.url import store_url

STATEMENT_DEADLINE_SECONDS = 30.0
"""Maximum time of any statement, by the client's clock. Stowhand's own statements take milliseconds."""

CONNECT_TIMEOUT_SECONDS = 10

# With these values, the kernel detects a lost peer in about the time of a lease.
_DEFAULT_PARAMETERS: dict[str, str] = {
    "connect_timeout": str(CONNECT_TIMEOUT_SECONDS),
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_MAX_NAME_BYTES = 63
"""Maximum bytes of an application_name; the server cuts longer names."""


class Address:
    """Connection parameters, and the texts that may show them."""

    def __init__(self, url: str, overrides: Mapping[str, Any] | None = None) -> None:
        """``overrides``: connection parameters that replace those of the URL."""
        try:
            parameters = conninfo_to_dict(_readable(url), **overrides or {})
        except (psycopg.ProgrammingError, ValueError):
            # The original message may quote the whole string, password and all.
            raise ConfigurationError(
                "the database address cannot be read; it is a URL (postgresql://user@host:5432/name), "
                "a libpq string (host=… dbname=…) or the name of a database"
            ) from None
        self._parameters = _DEFAULT_PARAMETERS | {
            name: str(value) for name, value in parameters.items() if value is not None
        }

    def parameters(self, role: str) -> dict[str, Any]:
        """Return the connection parameters. ``role`` becomes the application_name, so it holds no secret."""
        name = role.encode("ascii", "replace").decode()[:_MAX_NAME_BYTES]
        return self._parameters | {"application_name": name, "client_encoding": "UTF8"}

    @property
    def url(self) -> str:
        """The whole address with its password, for connecting and never for printing."""
        parameters = {name: value for name, value in self._parameters.items() if _DEFAULT_PARAMETERS.get(name) != value}
        name = quote(parameters.pop("dbname", ""), safe="")
        return f"postgresql:///{name}" + (f"?{urlencode(parameters, quote_via=quote)}" if parameters else "")

    @property
    def bare_name(self) -> str | None:
        """The name of the database, if the address contains nothing else."""
        names = {name for name, value in self._parameters.items() if _DEFAULT_PARAMETERS.get(name) != value}
        return self._parameters["dbname"] if names == {"dbname"} else None

    @property
    def connect_timeout_seconds(self) -> float:
        """Time limit of one connection attempt. Each of several hosts has its own share."""
        hosts = self._parameters.get("host", self._parameters.get("hostaddr", "")).count(",") + 1
        try:
            seconds_per_host = int(self._parameters["connect_timeout"]) or CONNECT_TIMEOUT_SECONDS
        except ValueError:
            seconds_per_host = CONNECT_TIMEOUT_SECONDS
        return hosts * seconds_per_host + 2.0

    def other_name(self, info: Any) -> str | None:
        """Return the name of the connected database, if it is certainly another one on the same server.

        ``info``: the connection details, as psycopg and psycopg2 have them. Two host names may mean one server.
        The environment supplies what this address leaves out.
        """
        parameters, name = self._parameters, info.dbname
        if name == parameters.get("dbname", name):
            return None
        is_same_server = (info.host, str(info.port)) == (parameters.get("host"), parameters.get("port", "5432"))
        return str(name) if is_same_server else None

    def __str__(self) -> str:
        """Return ``postgresql://user@host:port/name``, without password and options."""
        parameters = self._parameters
        user = f"{parameters['user']}@" if "user" in parameters else ""
        host = parameters.get("host", parameters.get("hostaddr", ""))
        if host.startswith("/"):
            return f"postgresql://{user}/{parameters.get('dbname', '')} (socket in {host})"
        ports = parameters.get("port", "").split(",")
        hosts = host.split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        servers = [f"{name}:{port}" if port else name for name, port in zip(hosts, ports, strict=False)]
        return f"postgresql://{user}{','.join(servers)}/{parameters.get('dbname', '')}"

    __repr__ = __str__

    def scrub(self, text: str) -> str:
        """Return ``text`` without this address's secrets."""
        for secret in (self._parameters.get("password"), self._parameters.get("sslpassword")):
            if secret:
                text = text.replace(secret, "***")
        return text

    def message(self, error: BaseException) -> str:
        """Return the error's message on one line, without this address's secrets."""
        return "no answer in time" if isinstance(error, TimeoutError) else self.scrub(first_line(error))


def _readable(text: str) -> str:
    """Return text that libpq reads: a normalized URL, or a libpq string as it is."""
    is_libpq = not text or ("=" in text and "://" not in text)
    return text if is_libpq else store_url(text)
