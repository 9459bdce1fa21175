"""Lent stores for tests: one real HTTP server in a thread, and under each path of it another store.

with SharedServer() as server:
    url = server.lend(store)             opened in the server's loop
    …
    server.withdraw(url)
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from stowhand.clock import SystemClock
from stowhand.events import Events, RemoteCallAudited
from stowhand.protocols.queue_store import AnyStore
from stowhand.remote.server.authenticator import Authenticator
from stowhand.remote.server.claims import Claims
from stowhand.remote.server.health import Health
from stowhand.remote.server.http_app import HttpApp
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.remote_throughput import RemoteThroughput
from stowhand.remote.server.shared_store import QUEUE, SharedStore
from stowhand.remote.server.store_server import StoreServer, unchanged
from stowhand.remote.server.tokens import TokenFile
from stowhand.remote.server.wake_broadcast import WakeBroadcast
from stowhand.worker.heartbeat_thread import HeartbeatThread

T = TypeVar("T")
SECRET = b"the secret of every server of one test run, so that a restart is no other server"


class ServedStore:
    """One store, served."""

    def __init__(self, store: AnyStore[Any], tokens: Path | None) -> None:
        events, clock = Events(), SystemClock()
        self.audit: list[RemoteCallAudited] = []
        events.on(RemoteCallAudited, self.audit.append)
        authenticator = Authenticator(TokenFile(tokens or Path("no-tokens-here.json")), events, clock)
        shared_store = SharedStore(store)
        self._store = store
        self.broadcast = WakeBroadcast(store, events, clock)
        self._heartbeats = HeartbeatThread("stowhand lending heartbeats", store.heartbeats)
        self._throughput = RemoteThroughput(self._heartbeats, clock, events, is_kept=shared_store.kind == QUEUE)
        proofs = Proofs(SECRET)
        claims = Claims(
            shared_store, self.broadcast, self._heartbeats, proofs, authenticator.is_valid, self._throughput.add_claims
        )
        server = StoreServer(
            shared_store, self._heartbeats, proofs, claims, self._throughput, unchanged, lambda lease: None
        )
        self.app: ASGIApp = HttpApp(server, authenticator, Health(shared_store, self.broadcast, events, clock), events)

    async def write_throughput(self) -> None:
        await self._throughput.write()

    async def open(self) -> None:
        await self._store.open()
        self.broadcast.start()

    async def close(self) -> None:
        await self.broadcast.stop()
        await self._throughput.close()
        await self._heartbeats.close()
        await self._store.close()


class SharedServer:
    """A server on a port of its own. Use it as a context manager."""

    def __init__(self, port: int = 0) -> None:
        self._houses: dict[str, ServedStore] = {}
        self._count = 0
        self.seen: list[tuple[str, str]] = []
        """Method and path of every request, without the house's number."""
        # With its protocol named: asyncio turns Nagle's algorithm off only then, and each reply would take 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._route,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="shared server", daemon=True)

    def __enter__(self) -> SharedServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for number in list(self._houses):
            self._withdraw(number)
        self._server.should_exit = True
        self._thread.join(60)
        self._loop.close()

    def lend(self, store: AnyStore[Any], tokens: Path | None = None) -> str:
        """Serve this store; the URL under which."""
        self._count += 1
        house = ServedStore(store, tokens)
        self.do(house.open())
        self._houses[str(self._count)] = house
        return f"http://127.0.0.1:{self.port}/{self._count}"

    def house(self, url: str) -> ServedStore:
        """What serves the store of this URL."""
        return self._houses[url.rpartition("/")[2]]

    def withdraw(self, url: str) -> None:
        """Serve it no more."""
        self._withdraw(url.rpartition("/")[2])

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    def _withdraw(self, number: str) -> None:
        self.do(self._houses.pop(number).close())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve(sockets=[self._socket]))

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, number, path = scope["path"].split("/", 2)
        self.seen.append((scope["method"], f"/{path}"))
        scope["path"] = f"/{path}"
        scope["raw_path"] = f"/{path}".encode()
        await self._houses[number].app(scope, receive, send)
