"""A Redis or Valkey as the parts of a flow use it: calls are tried a few times; transitions are scripts, in ``lua/``.

A script is called by the digest of its text; a server that does not know it (restarted, failed over, flushed) is sent
the text. So nothing has to be loaded first, and every node of a cluster learns what it is asked for.
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
    """With connections of its owner's own. Every method raises what ``translated`` raises."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.dialer = Dialer(address)
        self.clock = SystemClock()

    @property
    def client(self) -> Client:
        """Of the running loop's calls."""
        return self.dialer.calls()

    async def ask(self, action: Callable[[], Awaitable[T]]) -> T:
        """What ``action`` gives, which is repeated even if it may have been done."""
        return await repeated(action, self.address, self.clock, unanswered=True)

    async def command(self, *words: Any) -> Any:
        """The reply to one command, which is repeated even if it may have been done."""
        return await self.ask(lambda: self.client.execute_command(*words))

    async def run(self, name: str, keys: Sequence[str], *args: Any, unanswered: bool = False) -> Any:
        """Execute a script. ``unanswered``: it is repeated even if it may have been done."""
        return await repeated(lambda: self.run_once(name, keys, args), self.address, self.clock, unanswered=unanswered)

    async def run_once(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Execute a script; raises what the driver raises. The first key says which node of a cluster."""
        script = SCRIPTS[name]
        try:
            return await self.client.evalsha(script.sha, len(keys), *keys, *args)
        except redis_errors.NoScriptError:
            return await self.client.eval(script.text, len(keys), *keys, *args)


async def take_queues(keys: Keys, server: Server) -> None:
    """Mark every queue of the flow as its own. Raises ConfigurationError where one is another flow's.

    Only in the classic layout: there an id in a list does not name its flow, and a worker of another flow would take it
    for a deleted job.
    """
    if keys.is_lasting:
        return
    queues = [queue.name for queue in keys.shape.queues]
    marks = [keys.flow(name) for name in queues]
    taken = await server.run("own", marks[:1], keys.shape.name, *marks, unanswered=True)
    if taken:
        place, owner = taken
        raise ConfigurationError(
            f"{server.address}: queue {queues[place - 1]!r} belongs to flow {owner!r}: in the classic layout two flows"
            f" that share a queue lose each other's jobs. Give flow {keys.shape.name!r} a queue of another name,"
            f" another database, or both layout='priority'; if there is no flow {owner!r} any more:"
            f" DEL {marks[place - 1]}"
        )


class Script(msgspec.Struct, frozen=True):
    """One of them."""

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
    """``-- with: a b`` in a script puts the shared files ``_a.lua`` and ``_b.lua`` before it."""
    named = _INCLUDE_PATTERN.search(texts[name])
    parts = [texts[f"_{part}"] for part in named[1].split()] if named else []
    text = "\n".join((*parts, texts[name]))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


SCRIPTS: dict[str, Script] = _load()
"""By name."""


async def check_server(client: Client) -> list[str]:
    """Sentences: what might lose jobs there, and what to do; of a cluster those of all primaries.

    Raises ConfigurationError for a server that is too old or a node of a cluster, and what the driver raises.
    """
    if not isinstance(client, redis.asyncio.RedisCluster):
        return await _look(client, {}, alone=True)
    await client.ping()  # only now are its nodes known
    found = [await _look(client, {"target_nodes": node}, alone=False) for node in client.get_primaries()]
    return list(dict.fromkeys(finding for findings in found for finding in findings))


async def _look(client: Client, target: dict[str, Any], *, alone: bool) -> list[str]:
    """One server. ``alone``: it must not be a node of a cluster."""
    info = await _info(client, target)
    if info is None:
        return ["INFO is not permitted there: its version, eviction and persistence were not looked at"]
    _check_version(info)
    if alone and int(info.get("cluster_enabled", 0)) == 1:
        raise ConfigurationError(
            "this server is a node of a cluster: write the address as redis+cluster://host:port, and give the flow a"
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
    """Raises ConfigurationError. Valkey says what Redis it is alike; a version that is not known is new."""
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(word) for word in version.split(".") if word.isdigit())
    if numbers and numbers < MIN_VERSION:
        raise ConfigurationError(
            f"Redis {version} is too old: flows need 6.2 or newer, which has BLMOVE; upgrade the server (or use Valkey)"
        )


async def _info(client: Client, target: dict[str, Any]) -> Mapping[str, Any] | None:
    """The reply to INFO; ``None``: the login lacks the permission, or a service hides this command."""
    try:
        reply = await client.execute_command("INFO", **target)
    except redis_errors.ResponseError as error:
        if isinstance(error, redis_errors.NoPermissionError) or "unknown command" in str(error).lower():
            return None
        raise
    if not isinstance(reply, dict):
        return {}
    first = next(iter(reply.values()), None)
    return first if len(reply) == 1 and isinstance(first, dict) else reply  # a cluster's client answers by node
