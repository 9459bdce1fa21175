"""Where a server listens: the address, the socket, the certificate; every error says what to do."""

from __future__ import annotations

import errno
import ipaddress
import resource
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from stowhand.errors import ConfigurationError, StowhandError

BACKLOG = 128
"""Connections that the system queues until they are accepted."""
FILES = 4 * BACKLOG
"""Open files beside connections: the store's, the program's own, and connections that are about to be refused."""


def is_loopback(host: str) -> bool:
    """Can only this machine reach every address of this name? Raises ConfigurationError for an unknown name."""
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for _, address in _addresses(host, 0))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on the first address of the name. Raises StowhandError when the port is in use."""
    family, address = _addresses(host, port)[0]
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise _bind_error(error, host, port) from None
    return made


def connection_limit(connections: int) -> int:
    """How many of these connections the process can open, beside ``FILES`` files of its own.

    Raises the system's limit of open files if it may. Without this bound asyncio, once out of files, logs some thousand
    tracebacks a second, and the store cannot connect either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    if soft < connections + FILES:
        soft = connections + FILES if hard == resource.RLIM_INFINITY else min(connections + FILES, hard)
        with suppress(OSError, ValueError):  # another limit of the system forbids it
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(connections, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES, 1))


def url_of(scheme: str, sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Raises ConfigurationError for a certificate that cannot be used."""
    if cert is None:
        if key is not None:
            raise ConfigurationError("--tls-key: given without --tls-cert; give both")
        return
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise ConfigurationError(f"{option} {path}: there is no such file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"--tls-cert {cert}: it cannot be used with its key ({error}); give a PEM certificate (with its chain),"
            " and with --tls-key its PEM key, without a passphrase"
        ) from None


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"--host {host}: no address of this machine ({error}); say for example 127.0.0.1"
        ) from None
    return [(family, str(address[0])) for family, _, _, _, address in found]


def _bind_error(error: OSError, host: str, port: int) -> StowhandError:
    if error.errno == errno.EADDRINUSE:
        return StowhandError(f"port {port} on {host} is in use; is another server running? --port names another one")
    if error.errno == errno.EACCES:
        return StowhandError(f"port {port}: ports below 1024 are the administrator's; --port names another one")
    if error.errno == errno.EADDRNOTAVAIL:
        return StowhandError(f"--host {host}: this machine does not have that address")
    return StowhandError(f"{host}:{port}: {error.strerror or error}")
