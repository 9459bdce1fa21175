"""Reading a flow's jobs in Redis: by a lookup attribute, by their ids, or those that have failed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from redis import exceptions as redis_errors

from stowhand.flows.redis.naming import Naming, Spot
from stowhand.flows.redis.queues import bases_of
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.values import Found, decoded
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import FlowQueue

PAGE = 200
"""Hashes read in one round trip."""
CHILD_KEYS_LIMIT = 64 * 1024 * 1024
"""Bytes of the list of a parent's children."""
CHECKED = 1000
"""Children whose end is checked in one round trip."""


_keys: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])


class Looking:
    """At the jobs of one flow."""

    def __init__(self, naming: Naming, server: Server) -> None:
        self._naming, self._keys = naming, naming.keys
        self._server = server
        places = {
            queue.name: {"root": self._keys.root(queue.name), "bases": bases_of(self._keys, queue)}
            for queue in naming.keys.shape.all_queues()
        }
        self._places = msgspec.json.encode(places).decode()

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

    async def find(self, spot: Spot) -> Found | None:
        """Its hash, and where the lists have it, in one moment; ``None``: there is no such job."""
        classic = "" if self._keys.lasting else "1"
        reply = await self._server.run("view", (spot.hash,), spot.listed, self._places, classic, unanswered=True)
        flat, queue, state, ready = reply
        raw = dict(zip(flat[::2], flat[1::2], strict=True))
        return Found(raw, queue, state, float(ready) / 1000 if ready else None) if raw else None

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

    async def ends(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """Of each of these children what its end says, and no more; empty: it is gone."""
        names = ("done", "failed", "failedErrorMsg", "parent")
        found: list[dict[str, str]] = []
        for start in range(0, len(keys), CHECKED):
            page = [("HMGET", key, *names) for key in keys[start : start + CHECKED]]
            replies = [reply or (None,) * len(names) for reply in await self._pipelined(page)]
            found += [{n: text for n, text in zip(names, row, strict=True) if text is not None} for row in replies]
        return found

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
        """Ids of failed jobs, in id order, after ``after``; children among them. As our workers have recorded them."""
        shape = self._keys.shape
        queues = list(shape.all_queues()) if queue is None else [shape.find_queue(queue)]
        found = [job_id for each in queues for job_id in await self._failed_in(each, after, limit)]
        return sorted(found)[:limit]

    async def _failed_in(self, queue: FlowQueue, after: str | None, limit: int) -> list[str]:
        """A job that is not kept any more is passed over; the sweep removes it."""
        found: list[str] = []
        begin = "-" if after is None else self._naming.listed_after(queue, after)
        while begin is not None and len(found) < limit:
            words = ("ZRANGEBYLEX", f"{self._keys.root(queue.name)}:failed", begin, "+", "LIMIT", 0, PAGE)
            listed = await self._server.ask(partial(self._server.client.execute_command, *words))
            hashes = [f"{self._keys.hashes(queue)}{one}" for one in listed]
            states = await self._pipelined([("HMGET", key, "failed") for key in hashes])
            found += [
                self._naming.shown(queue, one) for one, state in zip(listed, states, strict=True) if state and state[0]
            ]
            begin = f"({listed[-1]}" if len(listed) == PAGE else None
        return found

    async def _pipelined(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """The reply to each; ``None`` where the key is something else than a hash."""

        async def attempt() -> list[Any]:
            async with self._server.client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return [_hash_or_none(reply) for reply in await pipe.execute(raise_on_error=False)]

        return await self._server.ask(attempt) if commands else []


def _hash_or_none(reply: Any) -> Any:
    """``None`` for a key of another application that is not a hash."""
    if isinstance(reply, redis_errors.ResponseError):
        if "WRONGTYPE" in str(reply):
            return None
        raise reply
    return reply
