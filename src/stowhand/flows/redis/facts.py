"""What is looked at when a store of Redis opens: is the server new enough, and what would make it lose jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import redis.asyncio
from redis import exceptions as redis_errors

from stowhand.errors import ConfigurationError
from stowhand.flows.redis.dialing import Client

OLDEST = (6, 2)


class ServerFacts(msgspec.Struct, frozen=True):
    """One server; of a cluster the oldest version, and the findings of all primaries."""

    version: str
    """For people, as ``Valkey 9.1.2``; empty if it may not be asked."""
    findings: list[str]
    """Sentences: what might lose jobs there, and what to do."""


async def look_at_server(client: Client, *, clustered: bool) -> ServerFacts:
    """Raises ConfigurationError for a server that is too old or no cluster where one was named, and what the driver
    raises when it does not answer.
    """
    if isinstance(client, redis.asyncio.RedisCluster):
        await client.ping()  # only now are its nodes known
        facts = [await _look(client, {"target_nodes": node}) for node in client.get_primaries()]
        oldest = min(facts, key=lambda each: _numbers(each.version))
        found = dict.fromkeys(finding for each in facts for finding in each.findings)
        return ServerFacts(oldest.version, list(found))
    return await _look(client, {}, alone=not clustered)


async def _look(client: Client, target: dict[str, Any], *, alone: bool = False) -> ServerFacts:
    """One server. ``alone``: it must not be a node of a cluster."""
    try:
        info = _one(await client.execute_command("INFO", **target))
    except (redis_errors.NoPermissionError, redis_errors.ResponseError) as error:
        if not _is_refusal(error):
            raise
        return ServerFacts(
            "", ["INFO is not permitted there: its version, eviction and persistence were not looked at"]
        )
    version = _version(info)
    if alone and int(info.get("cluster_enabled", 0)) == 1:
        raise ConfigurationError(
            "this server is a node of a cluster: write the address as redis+cluster://host:port, and give the flow a"
            " hash_tag"
        )
    return ServerFacts(version, [*_evicting(info), *await _forgetting(client, target, info)])


def _version(info: Mapping[str, Any]) -> str:
    """Raises ConfigurationError. Valkey calls itself by its own name, and says what Redis it is alike."""
    alike = str(info.get("redis_version", ""))
    name, number = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", alike)
    version = f"{name} {number}"
    if _numbers(alike) < OLDEST:
        raise ConfigurationError(
            f"{version} is too old: flows need 6.2 or newer, which has BLMOVE; upgrade the server (or use Valkey)"
        )
    return version


def _evicting(info: Mapping[str, Any]) -> list[str]:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if int(info.get("maxmemory", 0)) == 0 or policy == "noeviction":
        return []
    finding = (
        f"maxmemory is set and maxmemory-policy is {policy}: when memory is short the server removes keys, jobs and"
        " locks among them; set maxmemory-policy noeviction"
    )
    return [finding]


async def _forgetting(client: Client, target: dict[str, Any], info: Mapping[str, Any]) -> list[str]:
    """What a crash of the server, or of its machine, loses of what was confirmed."""
    appending = int(info.get("aof_enabled", 0)) == 1
    name = "appendfsync" if appending else "save"
    try:
        value = _one(await client.execute_command("CONFIG GET", name, **target)).get(name, "")
    except (redis_errors.NoPermissionError, redis_errors.ResponseError) as error:
        if not _is_refusal(error):
            raise
        return [f"CONFIG is not permitted there: its setting '{name}', so what a crash loses, was not looked at"]
    return [_loss(appending, str(value))] if (appending, value) != (True, "always") else []


def _loss(appending: bool, value: str) -> str:
    """``value``: of appendfsync if ``appending``, else of save."""
    if not appending and not value:
        return (
            "nothing is kept on disk (appendonly no, no save): a restart of the server loses every job;"
            " set appendonly yes and appendfsync always"
        )
    if not appending:
        lost = f"only snapshots are kept (save {value}): a crash loses all that came after the last one"
    elif value == "everysec":
        lost = "appendfsync is everysec: a crash of its machine loses about the last second of what was confirmed"
    else:
        lost = f"appendfsync is {value}: a crash of its machine loses up to half a minute of what was confirmed"
    return f"{lost}; with appendonly yes and appendfsync always it loses nothing"


def _one(reply: Any) -> Mapping[str, Any]:
    """A cluster's client answers by node."""
    if isinstance(reply, dict) and len(reply) == 1:
        (only,) = reply.values()
        if isinstance(only, dict):
            return only
    return reply if isinstance(reply, dict) else {}


def _is_refusal(error: Exception) -> bool:
    """A login without the permission, or a service that hides this command."""
    text = str(error).lower()
    return isinstance(error, redis_errors.NoPermissionError) or "unknown command" in text


def _numbers(version: str) -> tuple[int, ...]:
    """Of ``7.2.4``, or of ``Valkey 9.1.2``; what is not known is new."""
    words = version.rpartition(" ")[2].split(".")
    return tuple(int(word) for word in words if word.isdigit()) or (999,)
