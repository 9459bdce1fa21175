"""Clients of one Redis: for a loop's calls, and for a call that waits. Nothing is repeated by the driver.

Every answer is text. Bytes that are not UTF-8 (values of other applications) become lone surrogates, and the same bytes
again when they are written.
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
"""Seconds."""
CALL_TIMEOUT_SECONDS = 5.0
"""Seconds for the answer to a call; a call that waits has them on top of its own time."""

MAX_CONCURRENT_CALLS = 20
"""Calls of one loop at once, each on a connection of its own; more wait."""
_MAX_CONNECTIONS = 2**31 - 1
"""Connections: how many calls there are at once is decided here, and by who makes them."""

Client: TypeAlias = redis.asyncio.Redis | redis.asyncio.RedisCluster


class _DeadlineClient:
    """Every answer by a deadline of ours. The driver's own (``socket_timeout``) loses a cancellation on Python 3.11."""

    deadline: float
    """Seconds."""

    gate: AbstractAsyncContextManager[Any] = nullcontext()
    """So many calls at once."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            async with self.gate, asyncio.timeout(self.deadline):
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
            async with self.gate, asyncio.timeout(self.deadline):
                return await execute(*args, **options)

        pipe.execute = in_time
        return pipe


def _is_demoted(error: redis.ResponseError) -> bool:
    """It is a replica now. Its address may lead to the new primary, but connections that are open lead nowhere else.

    An error inside a script is only a text to servers before 7.
    """
    return isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in str(error)


class _OneServer(_DeadlineClient, redis.asyncio.Redis):  # type: ignore[misc]
    """One server, or the primary that sentinels name."""


class _Cluster(_DeadlineClient, redis.asyncio.RedisCluster):  # type: ignore[misc]
    """All nodes."""


def _connections(client: Client) -> list[Any]:
    if isinstance(client, redis.asyncio.RedisCluster):
        return [one for node in client.nodes_manager.nodes_cache.values() for one in node._connections]  # noqa: SLF001
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

    def calls(self) -> Client:
        """The client of the running loop's calls: one, of which each call borrows a connection.

        A connection belongs to the loop that it was made on, and is closed at the latest when ``asyncio.run`` ends.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._calls:
            for ended in [one for one in self._calls if one.is_closed()]:
                self._open.remove(self._calls.pop(ended)[0])
            client = self._client(CALL_TIMEOUT_SECONDS, asyncio.Semaphore(MAX_CONCURRENT_CALLS))
            self._calls[loop] = client, _closed_with_the_loop(client)
        return self._calls[loop][0]

    def blocking_call(self, longest: float) -> Client:
        """A client of its own for a call that waits up to ``longest`` seconds.

        A call that is cancelled takes its connection with it, and no other call: the next one has a new connection.
        """
        return self._client(longest + CALL_TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Close every connection. What still waits for an answer fails."""
        for ended in [one for one in self._calls if one.is_closed()]:
            self._open.remove(self._calls.pop(ended)[0])
        clients, self._open, self._calls = [*self._open, *self._sentinels], [], {}
        self._sentinels = []
        for client in clients:
            await client.aclose()

    def forked(self) -> None:
        """In the child: what is open is the parent's; the next call connects."""
        connections = [one for client in (*self._open, *self._sentinels) for one in _connections(client)]
        writers = [one._writer for one in connections if one._writer is not None]  # noqa: SLF001
        replace_sockets([one.get_extra_info("socket").fileno() for one in writers])
        self._calls, self._open, self._sentinels = {}, [], []

    def _client(self, deadline: float, gate: AbstractAsyncContextManager[Any] | None = None) -> Client:
        client = self._new(self._options() | {"retry": Retry(NoBackoff(), 0)})
        client.deadline, client.gate = deadline, gate or nullcontext()
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
                sentinel = Sentinel(address.hosts, sentinel_kwargs=options | self._of_sentinels(), **options)
                self._sentinels += sentinel.sentinels
                primary: _OneServer = sentinel.master_for(address.service, _OneServer, db=address.db)
                return primary
        ((host, port),) = address.hosts
        return _OneServer(host=host, port=port, db=address.db, **options)

    def _options(self) -> dict[str, Any]:
        """The driver repeats nothing: whether a call may be repeated, only its caller knows."""
        tls = {"ssl": True, **self._address.tls_options} if self._address.tls else {}
        return {
            "username": self._address.username,
            "password": self._address.password,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "socket_timeout": None,  # see _InTime
            "decode_responses": True,
            "encoding_errors": "surrogateescape",
            "protocol": 2,
            "max_connections": _MAX_CONNECTIONS,
            **tls,
        }

    def _of_sentinels(self) -> dict[str, Any]:
        """The sentinels' own login: they are asked for an address, and never get the primary's password."""
        return {"username": self._address.sentinel_username, "password": self._address.sentinel_password}


def _closed_with_the_loop(client: Client) -> AsyncGenerator[None, None]:
    """An asynchronous generator that has begun: ``asyncio.run`` ends those that are open, while its loop still runs."""

    async def until_the_end() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await client.aclose()

    open_one = until_the_end()
    with suppress(StopIteration):  # to its yield: nothing is awaited before that
        open_one.__anext__().send(None)
    return open_one
