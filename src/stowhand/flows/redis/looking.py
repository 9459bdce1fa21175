"""Reading a flow's jobs in Redis: found by a lookup attribute, by their ids, or because they have failed."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec
import redis.asyncio
from redis import exceptions as redis_errors

from stowhand.flows.redis.dialing import Client
from stowhand.flows.redis.naming import Naming
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.values import decoded, has_ended, has_failed, readable
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import FlowQueue

PAGE = 200
"""Hashes read in one round trip."""
CHILD_KEYS_LIMIT = 64 * 1024 * 1024
"""Bytes of the list of a parent's children."""
SCANNED = 1000
"""Keys that the server looks at in one step of a scan."""


_keys: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])


class Looking:
    """At the jobs of one flow."""

    def __init__(self, naming: Naming, server: Server) -> None:
        self._naming, self._keys = naming, naming.keys
        self._server = server

    # -- jobs ------------------------------------------------------------------------------------

    async def ids(self, attribute: str, value: str) -> list[str]:
        """Of the jobs with that value of a lookup attribute, oldest first; some may have expired."""
        words = ("LRANGE", self._keys.lookup(attribute, value), 0, -1)
        return list(dict.fromkeys(await self._server.ask(lambda: self._server.client.execute_command(*words))))

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> list[dict[str, Any] | None]:
        """Everything known of each; ``None`` for one that is not there. A value that is no JSON is ``None`` too.

        ``resolve_children``: the lists of children's keys become lists of what is known of each child; a child that
        is not there is left out.
        """
        spots = [self._naming.spot(job_id) for job_id in job_ids]
        found = iter(await self.hashes([spot.hash for spot in spots if spot is not None]))
        raw = [next(found) if spot is not None else {} for spot in spots]
        jobs = [
            {**decoded(fields), "id": job_id} if fields else None for job_id, fields in zip(job_ids, raw, strict=True)
        ]
        if resolve_children:
            await self._resolve([job for job in jobs if job is not None])
        return jobs

    async def children(self, keys: Sequence[str]) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """Of each child, by its hash's key: its fields as they are, and as people read them with its ``id``."""
        found = await self.hashes(keys)
        return [(raw, self._child(key, raw)) for key, raw in zip(keys, found, strict=True)]

    async def child_keys(self, key: str, queue: str) -> list[str]:
        """Of the children that the job with this hash has made in a queue."""
        (reply,) = await self._pipelined([("HMGET", key, f"children:{queue}:jobs")])
        text = (reply or [None])[0]
        keys = None if text is None else strict_json.decode_with(_keys, text, limit=CHILD_KEYS_LIMIT)
        return [name for name in keys or () if self._naming.is_child(name)]

    async def have_ended(self, keys: Sequence[str]) -> bool:
        """All of these children; no more than that is read of them."""
        for start in range(0, len(keys), SCANNED):
            page = [("HMGET", key, "done", "failed", "parent") for key in keys[start : start + SCANNED]]
            for done, failed, parent in [reply or (None, None, None) for reply in await self._pipelined(page)]:
                known = {"done": done, "failed": failed, "parent": parent}
                if not has_ended({name: text for name, text in known.items() if text is not None}):
                    return False
        return True

    async def hashes(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """The fields of each; none where there is no such hash."""
        found: list[dict[str, str]] = []
        for start in range(0, len(keys), PAGE):
            replies = await self._pipelined([("HGETALL", key) for key in keys[start : start + PAGE]])
            found += [reply or {} for reply in replies]
        return found

    async def _resolve(self, jobs: Sequence[dict[str, Any]]) -> None:
        """One level: children of a flow have no children."""
        fields = [f"children:{queue.name}:jobs" for queue in self._keys.shape.all_queues() if queue.is_parent]
        lists = [(job, field) for job in jobs for field in fields if isinstance(job.get(field), list)]
        keys = [[key for key in job[field] if self._naming.is_child(key)] for job, field in lists]
        found = iter(await self.children([key for some in keys for key in some]))
        for (job, field), some in zip(lists, keys, strict=True):
            job[field] = [child for raw, child in (next(found) for _ in some) if raw]

    def _child(self, key: str, raw: dict[str, str]) -> dict[str, Any]:
        return {**decoded(raw), "id": self._naming.shown_of_hash(key) or key}

    # -- failed ----------------------------------------------------------------------------------

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> list[str]:
        """Ids of failed jobs, in id order, from behind ``after``; children among them. Looks at every key there is."""
        found: set[str] = set()
        async for keys in self._scan(None if queue is None else self._keys.shape.find_queue(queue)):
            shown = {key: job_id for key in keys if (job_id := self._naming.shown_of_hash(key)) is not None}
            behind = [key for key, job_id in shown.items() if after is None or job_id > after]
            replies = await self._pipelined([("HMGET", key, "failed", "failedQueue") for key in behind])
            for key, reply in zip(behind, replies, strict=True):
                if reply and has_failed({"failed": reply[0] or ""}) and queue in (None, readable(reply[1])):
                    found.add(shown[key])
            found = set(heapq.nsmallest(limit, found))
        return sorted(found)

    async def _scan(self, queue: FlowQueue | None) -> AsyncIterator[list[str]]:
        """Keys of hashes, some of them twice, that may be jobs of this queue; ``None``: of any."""
        begin = f"{self._keys.prefix}job:" if queue is None and self._naming.children else self._naming.hashes
        if queue is not None and queue.parent is not None:
            begin = self._naming.hashes_of(queue)
        cursor = 0
        while True:
            cursor, keys = await self._server.ask(partial(_scan_step, self._server.client, begin, cursor))
            yield list(dict.fromkeys(keys))
            if not cursor:
                return

    async def _pipelined(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """The reply to each; ``None`` where the key is something else than a hash."""

        async def attempt() -> list[Any]:
            async with self._server.client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return [_hash_or_none(reply) for reply in await pipe.execute(raise_on_error=False)]

        return await self._server.ask(attempt) if commands else []


async def _scan_step(client: Client, begin: str, cursor: int) -> tuple[int, list[str]]:
    """Where to go on (0: nowhere), and some hashes whose keys begin so; of a cluster on the node that has them."""
    pattern = re.sub(r"([\\*?\[\]^])", r"\\\1", begin) + "*"
    target: dict[str, Any] = {}
    if isinstance(client, redis.asyncio.RedisCluster):
        await client.initialize()
        target["target_nodes"] = client.get_node_from_key(begin)
    after, keys = await client.execute_command(
        "SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED, "TYPE", "hash", **target
    )
    return int(next(iter(after.values())) if target else after), keys  # a cluster's client answers by node


def _hash_or_none(reply: Any) -> Any:
    """``None`` for a key of another application that is not a hash."""
    if isinstance(reply, redis_errors.ResponseError):
        if "WRONGTYPE" in str(reply):
            return None
        raise reply
    return reply
