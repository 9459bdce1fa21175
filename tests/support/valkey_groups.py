"""Several servers that belong together: a cluster, a primary with its replica, and a sentinel that watches them.

with RedisCluster(find_redis()) as cluster:
    cluster.url                          redis+cluster://127.0.0.1:…,127.0.0.1:…,127.0.0.1:…
with RedisPair(find_redis()) as pair, RedisSentinel(find_redis(), pair) as sentinel:
    sentinel.url                         redis+sentinel://127.0.0.1:…/stow/0
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import redis

from tests.support.valkey import Appending, RedisBinaries, RedisServer

SLOTS = 16_384
SETTLED_SECONDS = 30.0
PATIENCE_MS = 60_000
"""For this long a server may be silent and is not thought to be down: a busy machine may hold it up."""


class _Group:
    """Servers that start and end together."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for server in self.servers:
                opening.enter_context(server)
            self._join()
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _join(self) -> None:
        """Make one of them."""


class RedisCluster(_Group):
    """Three nodes on the loopback that share the slots. No replicas: a node that is down is missed."""

    def __init__(self, binaries: RedisBinaries) -> None:
        super().__init__(
            [RedisServer(binaries, port=0, cluster_enabled="yes", cluster_node_timeout="2000") for _ in range(3)]
        )
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.servers)

    def flush(self) -> None:
        """Empty every node."""
        for node in self.servers:
            node.flush()

    def _join(self) -> None:
        bounds = [SLOTS * number // len(self.servers) for number in range(len(self.servers) + 1)]
        for number, node in enumerate(self.servers):
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        for node in self.servers:
            _wait_until(lambda node=node: self._is_whole(node), "the cluster did not come together")  # type: ignore[misc]
            with node.client() as client:
                client.config_set("cluster-node-timeout", PATIENCE_MS)

    def _is_whole(self, node: RedisServer) -> bool:
        with node.client() as client:
            info = str(client.execute_command("CLUSTER", "INFO"))
        return "cluster_state:ok" in info and f"cluster_size:{len(self.servers)}" in info


class RedisPair(_Group):
    """A primary and its replica, on the loopback."""

    def __init__(self, binaries: RedisBinaries, *, appendonly: Appending = False) -> None:
        # No delay: nobody else will ask for the same copy.
        self.primary, self.replica = (
            RedisServer(binaries, port=0, appendonly=appendonly, repl_diskless_sync_delay="0") for _ in range(2)
        )
        super().__init__([self.primary, self.replica])

    def promote(self) -> None:
        """The replica becomes a primary of its own. Ending the old one first is the test's business."""
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")

    def wait_for_replica(self) -> None:
        """Return when the replica has all that the primary has written so far, for whomever."""
        with self.primary.client() as client, self.replica.client() as copy:
            written = client.info("replication")["master_repl_offset"]
            _wait_until(
                lambda: copy.info("replication")["slave_repl_offset"] >= written,
                "the replica did not catch up",
            )

    def _join(self) -> None:
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", str(self.primary.port))
            _wait_until(
                lambda: client.info("replication").get("master_link_status") == "up",
                "the replica did not follow",
            )


class RedisSentinel(RedisServer):
    """One sentinel that watches a pair; its word alone makes the replica the primary, once it is told to hurry."""

    SERVICE = "stow"

    def __init__(self, binaries: RedisBinaries, pair: RedisPair) -> None:
        super().__init__(binaries, port=0)
        self._watched = pair
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{self.SERVICE}/0"

    def start(self) -> Self:
        """Start, and return when it knows the replica: without one it could promote nobody."""
        super().start()
        with self.client() as client:
            _wait_until(
                lambda: len(client.execute_command("SENTINEL", "REPLICAS", self.SERVICE)) == 1,
                "the sentinel did not find the replica",
            )
            # One that was held up mistrusts itself for half a minute. Before Redis 7 it cannot be told otherwise.
            with contextlib.suppress(redis.ResponseError):
                client.execute_command("SENTINEL", "DEBUG", "TILT-TRIGGER", PATIENCE_MS)
        return self

    def hurry(self) -> None:
        """The primary has been ended: half a second of silence is enough from now on."""
        with self.client() as client:
            client.execute_command("SENTINEL", "SET", self.SERVICE, "down-after-milliseconds", 500)

    def _command(self) -> list[str]:
        """A sentinel needs a file that it may rewrite, and takes everything from there."""
        data, name = self._place.data, self.SERVICE
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            "unixsocketperm 777",
            f"dir {data}",
            f"pidfile {data / 'redis.pid'}",
            "set-proc-title no",
            f"sentinel monitor {name} 127.0.0.1 {self._watched.primary.port} 1",
            f"sentinel down-after-milliseconds {name} {PATIENCE_MS}",
            f"sentinel failover-timeout {name} 5000",
        ]
        file = data / "sentinel.conf"
        if not file.exists():
            file.write_text("\n".join(lines) + "\n")
            self._account.own(file)
        return [str(self._program), str(file), "--sentinel"]


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + SETTLED_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} in {SETTLED_SECONDS:.0f} s")
        time.sleep(0.02)
