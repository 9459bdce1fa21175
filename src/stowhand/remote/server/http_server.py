"""A server over one store: socket, TLS, its background tasks, and a bounded stop.

async with running(store, options, events) as server:
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
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, LendingStarted, LendingStopping
from stowhand.jobs.lifecycle import LONGEST_SLACK, slack
from stowhand.jobs.struct import Suggesting
from stowhand.protocols.queue_store import AnyStore
from stowhand.remote.server.authenticator import Authenticator, Proxies
from stowhand.remote.server.bodies import HEADER_BYTES
from stowhand.remote.server.health import Health
from stowhand.remote.server.http_app import HttpApp
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.store_server import Declared, StoreServer, as_it_is
from stowhand.remote.server.tokens import DEFAULT, TokenFile
from stowhand.remote.server.wake_broadcast import NAME, WakeBroadcast
from stowhand.worker.resetter import Resetter, ResetterOptions

if TYPE_CHECKING:
    from stowhand.observe.exposition import LendingMetrics

KEEP_ALIVE = 75
"""Seconds between two requests; workers beat more often."""
PORT = 8470
CONNECTIONS = 1000
"""Open at a time. One more is answered 503."""
BACKLOG = 128
"""Connections that the system queues until they are accepted."""
FILES = 4 * BACKLOG
"""Open files beside connections: the store's, the program's own, and connections that are about to be refused."""
RESET_EVERY = 5.0


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=Suggesting):
    """How a store is lent."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any free one."""
    tokens: Path = Path(DEFAULT)
    """The file of worker tokens."""
    tokens_required: bool = False
    """The file was named explicitly: refuse to start until a token has been made."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """``None``: the key is in the file of the certificate."""
    grace: float = 5.0
    """Seconds that requests have to end when the server stops; long polls end at once."""
    trust_from: tuple[str, ...] = ()
    """Networks of proxies, whose ``X-Forwarded-For`` is believed."""
    declared: Declared = as_it_is
    """Fills in what the tasks of an App declare, for the jobs that are enqueued here."""


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the program has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """A running server. Made by ``running`` and ``serving``."""

    def __init__(
        self, server: Server, sock: socket.socket, options: ServerOptions, on_stop: Callable[[], None]
    ) -> None:
        self._server = server
        self._grace = options.grace
        self._on_stop = on_stop
        self._stop_requests = 0
        self.url = url_of("https" if options.tls_cert else "http", sock)
        """With the actual port."""
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
        ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()

    async def close(self) -> None:
        """Stop, unless it has been stopped, and wait for open requests, at most the grace. Harmless when repeated."""
        if not self._stop_requests:
            self.stop()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({self._serving}, timeout=self._grace + 2)

    def run(self, routine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what runs as long as the server does: its end, or its error, is the end of the server."""
        task = asyncio.create_task(routine, name=f"stowhand serving {routine}")
        self._tasks.append(task)
        return task


@asynccontextmanager
async def running(
    store: AnyStore[Any],
    options: ServerOptions,
    events: Events,
    metrics: LendingMetrics | None = None,
    show: Callable[[Health], AbstractContextManager[object]] = nullcontext,
) -> AsyncIterator[Serving]:
    """Lend an open store for the length of the block. ``show``: shows the server's health meanwhile.

    Raises ConfigurationError for invalid options (a public address without tokens, a certificate without its key), and
    ConfigurationError when the port is in use.
    """
    clock = SystemClock()
    file = TokenFile(options.tokens)
    _check_tokens(options, file)
    shared_store, wake_broadcast = SharedStore(store), WakeBroadcast(store, events, clock)
    authenticator = Authenticator(file, events, clock, required=options.tokens_required)
    resetter = _resetter(shared_store, events, clock)
    store_server = StoreServer(
        shared_store,
        wake_broadcast,
        Proofs(file.secret()),
        clock,
        authenticator.still,
        options.declared,
        resetter.expect,
        events,
    )
    health = Health(shared_store, wake_broadcast, events, clock)
    app = HttpApp(store_server, authenticator, health, events, metrics, Proxies(options.trust_from))

    def on_stop() -> None:
        events.emit(LendingStopping(options.grace))
        wake_broadcast.end_polls()

    async with serving(app, options, on_stop) as server:
        wake_broadcast.start()
        resetting, counting = server.run(resetter.run()), server.run(store_server.throughput.run())
        health.watch(resetting)
        events.emit(LendingStarted(server.url, shared_store.name, not authenticator.wants_tokens, str(options.tokens)))
        try:
            with show(health):
                yield server
        finally:
            await server.close()
            await wake_broadcast.stop()
            resetter.stop()
            counting.cancel()
            await asyncio.wait({resetting, counting}, timeout=options.grace)
            await store_server.close()


@asynccontextmanager
async def serving(app: Any, options: ServerOptions, on_stop: Callable[[], None]) -> AsyncIterator[Serving]:
    """Serve an ASGI application for the length of the block.

    ``on_stop``: called when it begins to stop, to end the replies that go on until somebody ends them.
    Raises ConfigurationError for a certificate that cannot be used, and when the port is in use.
    """
    check_tls(options.tls_cert, options.tls_key)
    sock = listen(options.host, options.port)
    server = Serving(Server(_config(app, options)), sock, options, on_stop)
    try:
        yield server
    finally:
        await server.close()
        sock.close()


def _resetter(shared_store: SharedStore, events: Events, clock: Clock) -> Resetter:
    """The server needs its own resetter: the remote workers may all be gone at once."""
    terms = shared_store.store.terms
    options = ResetterOptions(
        name=NAME, interval=RESET_EVERY, slack=LONGEST_SLACK if terms is None else slack(terms.lease), prompt=True
    )
    return Resetter(shared_store.store, options, clock=clock, events=events)


def _config(app: Any, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # what happens is emitted as events
        access_log=False,
        server_header=False,
        proxy_headers=False,  # it would let every program here, or whom FORWARDED_ALLOW_IPS names, choose its address
        limit_concurrency=connection_limit(CONNECTIONS) + 1,  # it refuses the connection that reaches this number
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.grace)),
        h11_max_incomplete_event_size=HEADER_BYTES,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )


def _check_tokens(options: ServerOptions, file: TokenFile) -> None:
    """Refuse options that would open the store to the network without tokens."""
    make = f"stowhand tokens make --name NAME --tokens {options.tokens}"
    if options.tokens_required and not file.exists():
        raise ConfigurationError(f"{options.tokens}: no tokens have been made yet; make one: {make}")
    if not file.exists() and not is_loopback(options.host):
        raise ConfigurationError(
            f"--host {options.host}: without tokens a store is lent to programs of this machine only."
            f" Make a token first: {make}; or leave out --host"
        )


def is_loopback(host: str) -> bool:
    """Can only this machine reach every address of this name? Raises ConfigurationError for an unknown name."""
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for _, address in _addresses(host, 0))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on the first address of the name. Raises ConfigurationError when the port is in use."""
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


def _bind_error(error: OSError, host: str, port: int) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(f"port {port} on {host} is in use; is another server running? Else give another port")
    if error.errno == errno.EACCES:
        return ConfigurationError(f"port {port}: ports below 1024 are the administrator's; --port names another one")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigurationError(f"--host {host}: this machine does not have that address")
    return ConfigurationError(f"{host}:{port}: {error.strerror or error}")
