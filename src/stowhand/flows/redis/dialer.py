"""Clients of one Redis server: one per event loop for normal calls, and one for each blocking call.

The driver does not repeat calls. Every reply is text. Bytes that are not UTF-8 (values of other applications) become
lone surrogates, and are written back as the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, TypeAlias

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from stowhand.flows.redis.address import Address
from stowhand.fork import call_in_children, replace_sockets

CONNECT_TIMEOUT_SECONDS = 5.0
CALL_TIMEOUT_SECONDS = 5.0
"""Timeout for a reply. A blocking call has its own duration in addition."""

MAX_CONCURRENT_CALLS = 20
"""Concurrent calls of one loop, each on a connection of its own; further calls wait."""
_MAX_CONNECTIONS = 2**31 - 1
"""Unlimited: the number of concurrent calls is limited here and by the callers, not by the driver."""

Client: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster


class _DeadlineClient:
    """Client with its own timeout for replies. The driver's ``socket_timeout`` loses a cancellation on Python 3.11."""

    deadline: float
    """Seconds."""

    call_limit: AbstractAsyncContextManager[Any] = nullcontext()
    """Limits the number of concurrent calls."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            async with self.call_limit, asyncio.timeout(self.deadline):
                return await super().execute_command(*args, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            if _is_demoted(error) and (pool := getattr(self, "connection_pool", None)) is not None:
                await pool.disconnect(inuse_connections=False)
            raise

    async def initialize(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(self.deadline):
            return await super().initialize(*args, **options)  # type: ignore[misc]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        pipe = super().pipeline(*args, **options)  # type: ignore[misc]
        execute = pipe.execute

        async def in_time(*args: Any, **options: Any) -> Any:
            async with self.call_limit, asyncio.timeout(self.deadline):
                return await execute(*args, **options)

        pipe.execute = in_time
        return pipe


def _is_demoted(error: redis.ResponseError) -> bool:
    """Return whether the server has become a replica.

    Its address may lead to the new primary, but open connections still lead to the old one. Servers before version 7
    report an error inside a script only as text.
    """
    return isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in str(error)


class _OneServer(_DeadlineClient, redis.asyncio.Redis):  # type: ignore[misc]
    """Client of one server, or of the primary that sentinels name."""


class _Cluster(_DeadlineClient, redis.asyncio.RedisCluster):  # type: ignore[misc]
    """Client of all nodes of a cluster."""


def _connections(client: Client) -> list[Any]:
    if isinstance(client, redis.asyncio.RedisCluster):
        nodes = client.nodes_manager.nodes_cache.values()
        return [connection for node in nodes for connection in node._connections]  # noqa: SLF001
    pool: Any = client.connection_pool
    return [*pool._available_connections, *pool._in_use_connections]  # noqa: SLF001


class Dialer:
    """Makes the clients of one store, and closes them. Nothing is connected before it is used."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._calls: dict[asyncio.AbstractEventLoop, tuple[Client, AsyncGenerator[None, None]]] = {}
        self._open: list[Client] = []
        self._sentinels: list[redis.asyncio.Redis] = []
        call_in_children(self)

    def shared_client(self) -> Client:
        """Return the client for calls of the running loop; each call borrows a connection of it.

        A connection belongs to the loop that it was made on, and is closed at the latest when ``asyncio.run`` ends.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._calls:
            for closed_loop in [known for known in self._calls if known.is_closed()]:
                self._open.remove(self._calls.pop(closed_loop)[0])
            client = self._client(CALL_TIMEOUT_SECONDS, asyncio.Semaphore(MAX_CONCURRENT_CALLS))
            self._calls[loop] = client, _closed_with_the_loop(client)
        return self._calls[loop][0]

    def blocking_client(self, max_seconds: float) -> Client:
        """Return a separate client for a call that blocks for up to ``max_seconds``.

        Canceling the call closes its connection. Other calls are not affected, and the next one connects again.
        """
        return self._client(max_seconds + CALL_TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Close every connection. Calls that still wait for a reply fail."""
        for closed_loop in [known for known in self._calls if known.is_closed()]:
            self._open.remove(self._calls.pop(closed_loop)[0])
        clients = [*self._open, *self._sentinels]
        self._open = []
        self._calls = {}
        self._sentinels = []
        for client in clients:
            await client.aclose()

    def forked(self) -> None:
        """Drop the connections of the parent process after a fork; the next call in the child connects."""
        clients = [*self._open, *self._sentinels]
        connections = [connection for client in clients for connection in _connections(client)]
        writers = [connection._writer for connection in connections if connection._writer is not None]  # noqa: SLF001
        replace_sockets([writer.get_extra_info("socket").fileno() for writer in writers])
        self._calls = {}
        self._open = []
        self._sentinels = []

    def _client(self, deadline: float, call_limit: AbstractAsyncContextManager[Any] | None = None) -> Client:
        client = self._new(self._options() | {"retry": Retry(NoBackoff(), 0)})
        client.deadline = deadline
        client.call_limit = call_limit or nullcontext()
        self._open.append(client)
        return client

    def _new(self, options: dict[str, Any]) -> _OneServer | _Cluster:
        address = self._address
        match address.kind:
            case "socket":
                return _OneServer(unix_socket_path=address.path, db=address.db, **options)
            case "cluster":
                return _Cluster(startup_nodes=[ClusterNode(host, port) for host, port in address.hosts], **options)
            case "sentinel":
                sentinel = Sentinel(address.hosts, sentinel_kwargs=options | self._sentinel_login(), **options)
                self._sentinels += sentinel.sentinels
                primary: _OneServer = sentinel.master_for(address.service, _OneServer, db=address.db)
                return primary
        ((host, port),) = address.hosts
        return _OneServer(host=host, port=port, db=address.db, **options)

    def _options(self) -> dict[str, Any]:
        """Return the options of the driver's clients."""
        tls = {"ssl": True, **self._address.tls_options} if self._address.tls else {}
        return {
            "username": self._address.username,
            "password": self._address.password,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "socket_timeout": None,  # see _DeadlineClient
            "decode_responses": True,
            "encoding_errors": "surrogateescape",
            "protocol": 2,
            "max_connections": _MAX_CONNECTIONS,
            **tls,
        }

    def _sentinel_login(self) -> dict[str, Any]:
        """Return the login for the sentinels, which never receive the primary's password."""
        return {"username": self._address.sentinel_username, "password": self._address.sentinel_password}


def _closed_with_the_loop(client: Client) -> AsyncGenerator[None, None]:
    """Return a started asynchronous generator that closes the client.

    ``asyncio.run`` closes started generators while its loop still runs.
    """

    async def close_client() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await client.aclose()

    generator = close_client()
    with suppress(StopIteration):  # runs up to its yield: nothing is awaited before that
        generator.__anext__().send(None)
    return generator
