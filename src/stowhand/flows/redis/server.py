"""Server for the parts of a flow: repeats calls after temporary errors, and runs the scripts of ``lua/``.

A script is called by the digest of its text. A server that does not know it (restarted, failed over, flushed) receives
the text. So no script is loaded in advance, and each node of a cluster receives only the scripts that it runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

import msgspec
import redis.asyncio
from redis import exceptions as redis_errors

from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError
from stowhand.flows.redis.address import Address
from stowhand.flows.redis.dialer import Client, Dialer
from stowhand.flows.redis.error_translation import repeated
from stowhand.flows.redis.layout import Keys

T = TypeVar("T")
MIN_VERSION = (6, 2)
_INCLUDE_PATTERN = re.compile(r"^-- with: (.+)$", re.MULTILINE)


class Server:
    """Server with its own connections. Every method raises what ``translated`` raises."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.dialer = Dialer(address)
        self.clock = SystemClock()

    @property
    def client(self) -> Client:
        """Client for calls of the running event loop."""
        return self.dialer.shared_client()

    async def ask(self, action: Callable[[], Awaitable[T]]) -> T:
        """Await ``action`` and return its result. It is repeated even if the server may have executed it."""
        return await repeated(action, self.address, self.clock, unanswered=True)

    async def command(self, *words: Any) -> Any:
        """Return the reply to one command. It is repeated even if the server may have executed it."""
        return await self.ask(lambda: self.client.execute_command(*words))

    async def run(self, name: str, keys: Sequence[str], *args: Any, unanswered: bool = False) -> Any:
        """Execute a script. ``unanswered``: repeat it even if the server may have executed it."""
        return await repeated(lambda: self.run_once(name, keys, args), self.address, self.clock, unanswered=unanswered)

    async def run_once(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Execute a script; raise what the driver raises. The first key selects the node of a cluster."""
        script = SCRIPTS[name]
        try:
            return await self.client.evalsha(script.sha, len(keys), *keys, *args)
        except redis_errors.NoScriptError:
            return await self.client.eval(script.text, len(keys), *keys, *args)


async def take_queues(keys: Keys, server: Server) -> None:
    """Mark every queue of the flow as its own. Raise ConfigurationError if one belongs to another flow.

    The priority layout needs no marks. In the classic layout an id in a list does not name its flow, and a worker of
    another flow would treat it as a deleted job.
    """
    if keys.is_lasting:
        return
    queues = [queue.name for queue in keys.shape.queues]
    marks = [keys.flow(name) for name in queues]
    taken = await server.run("own", marks[:1], keys.shape.name, *marks, unanswered=True)
    if taken:
        number, owner = taken
        raise ConfigurationError(
            f"{server.address}: queue {queues[number - 1]!r} belongs to flow {owner!r}: in the classic layout two flows"
            f" that share a queue lose each other's jobs. Give flow {keys.shape.name!r} a queue of another name,"
            f" another database, or both layout='priority'; if there is no flow {owner!r} any more:"
            f" DEL {marks[number - 1]}"
        )


class Script(msgspec.Struct, frozen=True):
    """A Lua script with its shared files, and the digest of its text."""

    name: str
    text: str
    sha: str


def _load() -> dict[str, Script]:
    folder = resources.files(__package__) / "lua"
    texts = {
        file.name.removesuffix(".lua"): file.read_text() for file in folder.iterdir() if file.name.endswith(".lua")
    }
    return {name: _script(name, texts) for name in texts if not name.startswith("_")}


def _script(name: str, texts: dict[str, str]) -> Script:
    """Return a script. Its line ``-- with: a b`` includes the shared files ``_a.lua`` and ``_b.lua`` before it."""
    match = _INCLUDE_PATTERN.search(texts[name])
    includes = [texts[f"_{include}"] for include in match[1].split()] if match else []
    text = "\n".join((*includes, texts[name]))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


SCRIPTS: dict[str, Script] = _load()
"""Scripts by name."""


async def check_server(client: Client) -> list[str]:
    """Check the settings of a server, or of all primaries of a cluster.

    Return a sentence for each setting that may lose jobs, with its correction. Raise ConfigurationError for a server
    that is too old or is a node of a cluster, and what the driver raises.
    """
    if not isinstance(client, redis.asyncio.RedisCluster):
        return await _look(client, {}, alone=True)
    await client.ping()  # the client learns the nodes with its first call
    warnings: list[str] = []
    for node in client.get_primaries():
        warnings += await _look(client, {"target_nodes": node}, alone=False)
    return list(dict.fromkeys(warnings))


async def _look(client: Client, target: dict[str, Any], *, alone: bool) -> list[str]:
    """Check one server. ``alone``: it must not be a node of a cluster."""
    info = await _info(client, target)
    if info is None:
        return ["INFO is not permitted there: its version, eviction and persistence were not checked"]
    _check_version(info)
    if alone and int(info.get("cluster_enabled", 0)) == 1:
        raise ConfigurationError(
            "this server is a node of a cluster: write the address as redis+cluster://host:port, and set the flow's"
            " hash_tag"
        )
    findings = []
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if int(info.get("maxmemory", 0)) > 0 and policy != "noeviction":
        findings.append(
            f"maxmemory is set and maxmemory-policy is {policy}: when memory is short the server removes keys, jobs and"
            " locks among them; set maxmemory-policy noeviction"
        )
    if int(info.get("aof_enabled", 0)) == 0:
        findings.append(
            "appendonly is no: a crash of the server loses every job since its last snapshot, if it makes any; set"
            " appendonly yes, and appendfsync always if no confirmed job may be lost"
        )
    return findings


def _check_version(info: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an old version. Valkey reports a compatible Redis version; unknown ones are new."""
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(word) for word in version.split(".") if word.isdigit())
    if numbers and numbers < MIN_VERSION:
        raise ConfigurationError(
            f"Redis {version} is too old: flows need 6.2 or newer, which has BLMOVE; upgrade the server (or use Valkey)"
        )


async def _info(client: Client, target: dict[str, Any]) -> Mapping[str, Any] | None:
    """Return the reply to INFO; ``None`` if the login lacks the permission or a service hides this command."""
    try:
        reply = await client.execute_command("INFO", **target)
    except redis_errors.ResponseError as error:
        if isinstance(error, redis_errors.NoPermissionError) or "unknown command" in str(error).lower():
            return None
        raise
    if not isinstance(reply, dict):
        return {}
    first = next(iter(reply.values()), None)
    return first if len(reply) == 1 and isinstance(first, dict) else reply  # a cluster's client returns replies by node
