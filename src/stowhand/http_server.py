"""An HTTP server for an ASGI application: its socket, TLS, its connections, and a bounded stop.

async with serving(app, options, on_stop) as server:
    print(server.url)
    await server.until_stopped()
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from stowhand.errors import ConfigurationError
from stowhand.jobs.option_struct import SuggestingMeta

KEEP_ALIVE_SECONDS = 75
"""Maximum time between two requests of a connection. Heartbeats are more frequent."""
MAX_CONNECTIONS = 1000
"""Maximum number of open connections. Further ones receive 503."""
MAX_PENDING_CONNECTIONS = 128
"""Maximum number of connections that the system queues until they are accepted."""
RESERVED_FILES = 4 * MAX_PENDING_CONNECTIONS
"""Number of open files besides connections: those of the store and the program, and connections being refused."""
INCOMPLETE_HEAD_BYTES = 32 * 1024
"""Maximum size of the incomplete head of a request."""


class HttpServerOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Address, TLS and shutdown of a server."""

    host: str = "127.0.0.1"
    port: int
    """0 chooses a free port."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """``None`` if the key is in the file of the certificate."""
    grace: float = 5.0
    """Seconds for requests to finish when the server stops. Long polls end at once."""


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the program has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """A running server, created by ``serving``."""

    def __init__(
        self, server: Server, sock: socket.socket, options: HttpServerOptions, on_stop: Callable[[], None]
    ) -> None:
        self._server = server
        self._grace = options.grace
        self._on_stop = on_stop
        self._stop_requests = 0
        self.url = url_of("https" if options.tls_cert else "http", sock)
        """The URL with the actual port."""
        self._tasks: list[asyncio.Task[None]] = []
        self._serving = self.run(server.serve(sockets=[sock]))

    def stop(self) -> None:
        """First call: let requests end, for at most the grace. Second call: stop now. Called on the event loop."""
        self._stop_requests += 1
        if self._stop_requests == 1:
            self._on_stop()
        self._server.should_exit = True
        self._server.force_exit = self._stop_requests > 1

    async def until_stopped(self) -> None:
        """Return when the server has stopped. Raises the error that ended it."""
        finished, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()

    async def close(self) -> None:
        """Stop, unless it has been stopped, and wait for open requests, at most the grace. Harmless when repeated."""
        if not self._stop_requests:
            self.stop()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({self._serving}, timeout=self._grace + 2)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a background task. The server ends when the task ends or raises."""
        task = asyncio.create_task(coroutine, name=f"stowhand serving {coroutine}")
        self._tasks.append(task)
        return task


@asynccontextmanager
async def serving(app: Any, options: HttpServerOptions, on_stop: Callable[[], None]) -> AsyncIterator[Serving]:
    """Serve an ASGI application within the block.

    ``on_stop`` is called when the server starts to stop, to end streaming replies. Raises ConfigurationError for a
    certificate that cannot be used, and if the port is in use.
    """
    check_tls(options.tls_cert, options.tls_key)
    sock = listen(options.host, options.port)
    server = Serving(Server(_config(app, options)), sock, options, on_stop)
    try:
        yield server
    finally:
        await server.close()
        sock.close()


def _config(app: Any, options: HttpServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the server emits events instead
        access_log=False,
        server_header=False,
        proxy_headers=False,  # otherwise local programs and FORWARDED_ALLOW_IPS could forge client addresses
        limit_concurrency=connection_limit(MAX_CONNECTIONS) + 1,  # uvicorn refuses the connection with this number
        backlog=MAX_PENDING_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(options.grace)),
        h11_max_incomplete_event_size=INCOMPLETE_HEAD_BYTES,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )


def is_loopback(host: str) -> bool:
    """Return whether all addresses of a name are loopback. Raises ConfigurationError for an unknown name."""
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for _, address in _addresses(host, 0))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on the first address of a name. Raises ConfigurationError if the port is in use."""
    family, address = _addresses(host, port)[0]
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(MAX_PENDING_CONNECTIONS)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _bind_error(error, host, port) from None
    return sock


def connection_limit(connections: int) -> int:
    """Return how many of these connections the process can open, besides ``RESERVED_FILES`` other files.

    Raises the system's limit of open files if permitted. Without this limit, asyncio logs thousands of tracebacks a
    second when the process has no more files, and the store cannot connect.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    required = connections + RESERVED_FILES
    if soft < required:
        soft = required if hard == resource.RLIM_INFINITY else min(required, hard)
        with suppress(OSError, ValueError):  # another limit of the system forbids it
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(connections, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES, 1))


def url_of(scheme: str, sock: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Raise ConfigurationError for a certificate that cannot be used."""
    if cert is None:
        if key is not None:
            raise ConfigurationError("--tls-key: --tls-cert is missing; use both")
        return
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise ConfigurationError(f"{option} {path}: no such file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"--tls-cert {cert}: the certificate cannot be used with its key ({error}); use a PEM certificate (with"
            " its chain), and with --tls-key its PEM key, without a passphrase"
        ) from None


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"--host {host}: not an address of this machine ({error}); use for example 127.0.0.1"
        ) from None
    return [(family, str(address[0])) for family, _, _, _, address in addresses]


def _bind_error(error: OSError, host: str, port: int) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(f"port {port} on {host} is in use; stop the other server, or use another port")
    if error.errno == errno.EACCES:
        return ConfigurationError(f"port {port}: access denied; ports below 1024 need root; use another port")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigurationError(f"--host {host}: not an address of this machine; use for example 127.0.0.1")
    return ConfigurationError(f"{host}:{port}: {error.strerror or error}")
