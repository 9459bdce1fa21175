"""A server over one store: socket, TLS, its background tasks, and a bounded stop.

async with running(store, options, events) as server:
    print(server.url)
    await server.until_stopped()
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, LendingStarted, LendingStopping
from stowhand.jobs.lifecycle import LONGEST_SLACK, slack
from stowhand.protocols.queue_store import AnyStore
from stowhand.remote.server.addresses import BACKLOG, check_tls, connection_limit, is_loopback, listen, url_of
from stowhand.remote.server.authenticator import Authenticator
from stowhand.remote.server.bodies import HEADER_BYTES
from stowhand.remote.server.health import Health
from stowhand.remote.server.http_app import HttpApp, ServerMetrics
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.shared_store import SharedStore
from stowhand.remote.server.slow_requests import CONNECTIONS, READ_TIMEOUT, bounded, check_uvicorn
from stowhand.remote.server.store_server import Declared, StoreServer, as_it_is
from stowhand.remote.server.token_file import DEFAULT, TokenFile
from stowhand.remote.server.wake_broadcast import NAME, WakeBroadcast
from stowhand.worker.resetter import Resetter, ResetterOptions

KEEP_ALIVE = 75
"""Seconds between two requests; workers beat more often."""
PORT = 8470
TICK = 1.0
RESET_EVERY = 5.0


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
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
    read_timeout: float = READ_TIMEOUT
    """Seconds in which a request must arrive completely."""
    connections: int = CONNECTIONS
    declared: Declared = as_it_is
    """Fills in what the tasks of an App declare, for the jobs that are enqueued here."""


class HttpServer:
    """A running server. Made by ``running``."""

    def __init__(self, server: _Server, url: str, wake_broadcast: WakeBroadcast, events: Events, grace: float) -> None:
        self._server = server
        self._wake_broadcast = wake_broadcast
        self._events = events
        self._grace = grace
        self._stop_requests = 0
        self.url = url
        """With the actual port."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """First call: let requests end, for at most the grace. Second call: stop now. Called on the event loop."""
        self._stop_requests += 1
        if self._stop_requests == 1:
            self._events.emit(LendingStopping(self._grace))
            self._wake_broadcast.end_polls()
        self._server.shut_down(now=self._stop_requests > 1)

    async def until_stopped(self) -> None:
        """Return when the server has stopped. Raises the error that ended it."""
        await asyncio.shield(self.done)


@asynccontextmanager
async def running(
    store: AnyStore[Any], options: ServerOptions, events: Events, metrics: ServerMetrics | None = None
) -> AsyncIterator[HttpServer]:
    """Lend an open store for the length of the block.

    Raises ConfigurationError for invalid options (a public address without tokens, a certificate without its key), and
    StowhandError when the port is in use.
    """
    clock = SystemClock()
    file = TokenFile(options.tokens)
    _check(options, file)
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
    )
    health = Health(shared_store, wake_broadcast, events, clock)
    app = HttpApp(store_server, authenticator, health, events, metrics)
    sock = listen(options.host, options.port)
    url = url_of("https" if options.tls_cert else "http", sock)
    server = _Server(_config(app, options))
    lending = HttpServer(server, url, wake_broadcast, events, options.grace)
    wake_broadcast.start()
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="stowhand lending")
    resetting = asyncio.create_task(resetter.run(), name="stowhand lending resetter")
    for task in (serving, resetting):
        task.add_done_callback(lambda task: _pass_on(task, lending.done))
    health.watch(resetting)
    try:
        await server.listening(serving)
        events.emit(LendingStarted(url, shared_store.name, not authenticator.wants_tokens, str(options.tokens)))
        yield lending
    finally:
        if not serving.done():
            lending.stop()
        with suppress(asyncio.CancelledError, Exception):
            await asyncio.shield(asyncio.wait({serving}, timeout=options.grace + 2))
        await wake_broadcast.stop()
        resetter.stop()
        await asyncio.wait({resetting}, timeout=options.grace)
        await store_server.close()
        sock.close()


def _resetter(shared_store: SharedStore, events: Events, clock: Clock) -> Resetter:
    """The server needs its own resetter: the remote workers may all be gone at once."""
    terms = shared_store.store.terms
    options = ResetterOptions(
        name=NAME, interval=RESET_EVERY, slack=LONGEST_SLACK if terms is None else slack(terms.lease), prompt=True
    )
    return Resetter(shared_store.store, options, clock=clock, events=events)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the program has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._up, self._stopping = asyncio.Event(), asyncio.Event()

    def shut_down(self, *, now: bool) -> None:
        """Accept no more connections; ``now``: do not wait for open requests."""
        self.should_exit = True
        self.force_exit = now
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def main_loop(self) -> None:
        """Tick once a second, and at once after ``shut_down``; uvicorn's own loop ticks ten times a second."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), TICK)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def listening(self, serving: asyncio.Task[None]) -> None:
        """Return when connections are accepted."""
        up = asyncio.ensure_future(self._up.wait())
        await asyncio.wait((serving, up), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if serving.done():
            await serving


def _config(app: HttpApp, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded(connection_limit(options.connections), options.read_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # what happens is emitted as events
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.grace)),
        h11_max_incomplete_event_size=HEADER_BYTES,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )


def _check(options: ServerOptions, file: TokenFile) -> None:
    """Refuse options that would open the store to the network without tokens, and a uvicorn without our limits."""
    check_uvicorn()
    check_tls(options.tls_cert, options.tls_key)
    make = f"stowhand tokens make --name NAME --tokens {options.tokens}"
    if options.tokens_required and not file.exists():
        raise ConfigurationError(f"{options.tokens}: no tokens have been made yet; make one: {make}")
    if not file.exists() and not is_loopback(options.host):
        raise ConfigurationError(
            f"--host {options.host}: without tokens a store is lent to programs of this machine only."
            f" Make a token first: {make}; or leave out --host"
        )


def _pass_on(task: asyncio.Task[None], done: asyncio.Future[None]) -> None:
    if done.done():
        return
    if not task.cancelled() and (error := task.exception()) is not None:
        done.set_exception(error)
        done.exception()  # marks it as retrieved: asyncio warns otherwise where nothing awaits ``done``
    else:
        done.set_result(None)
