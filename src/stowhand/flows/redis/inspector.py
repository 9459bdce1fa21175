"""Reads a flow in Redis: jobs by a lookup attribute or by their ids, failed jobs, counts and positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from redis import exceptions as redis_errors

from stowhand.flows.children import jobs_at
from stowhand.flows.engine import Position, QueueCount
from stowhand.flows.redis.layout import JobLocation, Keys
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.values import StoredJob, decoded
from stowhand.jobs import strict_json
from stowhand.protocols.flow_shape import FlowQueue

PAGE_SIZE = 200
"""Hashes read in one round trip."""
MAX_CHILD_KEYS_BYTES = 64 * 1024 * 1024
"""Bytes of the list of a parent's children."""
ENDS_PAGE_SIZE = 1000
"""Children whose end is checked in one round trip."""
_ListedJob = tuple[str, int, float | None]
"""A job's id in lists, its priority, and when it is ready (epoch seconds)."""
_keys: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])


class Inspector:
    """Reads the jobs of one flow. Nothing is changed."""

    def __init__(self, keys: Keys, server: Server) -> None:
        self._keys, self._server = keys, server
        places = {
            queue.name: {"root": keys.root(queue.name), "bases": keys.bases(queue)} for queue in keys.shape.all_queues()
        }
        self._places = msgspec.json.encode(places).decode()

    # -- jobs ------------------------------------------------------------------------------------

    async def ids(self, attribute: str, value: str) -> list[str]:
        """Of the jobs with that value of a lookup attribute, oldest first; some may have expired."""
        found = await self._server.command("LRANGE", self._keys.lookup(attribute, value), 0, -1)
        return list(dict.fromkeys(found))

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> list[dict[str, Any] | None]:
        """Everything known of each; ``None`` for one that is not there. A value that is no JSON is ``None`` too.

        ``resolve_children``: the lists of children's keys become lists of what is known of each child; a child that
        is not there is left out.
        """
        locations = [self._keys.location(job_id) for job_id in job_ids]
        found = iter(await self.hashes([location.hash for location in locations if location is not None]))
        raw = [next(found) if location is not None else {} for location in locations]
        jobs = [
            {**decoded(fields), "id": job_id} if fields else None for job_id, fields in zip(job_ids, raw, strict=True)
        ]
        if resolve_children:
            await self._resolve([job for job in jobs if job is not None])
        return jobs

    async def find(self, job_id: str) -> tuple[JobLocation, StoredJob] | None:
        """Its hash, and where the lists have it, in one moment; ``None``: there is no such job."""
        location = self._keys.location(job_id)
        if location is None:
            return None
        classic = "" if self._keys.is_lasting else "1"
        reply = await self._server.run(
            "view", (location.hash,), location.listed, self._places, classic, unanswered=True
        )
        flat, queue, state, ready = reply
        raw = dict(zip(flat[::2], flat[1::2], strict=True))
        return (location, StoredJob(raw, queue, state, float(ready) / 1000 if ready else None)) if raw else None

    async def children(self, keys: Sequence[str]) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """Of each child, by its hash's key: its fields as they are, and as people read them with its ``id``."""
        found = await self.hashes(keys)
        return [
            (raw, {**decoded(raw), "id": self._keys.public_id_of_hash(key) or key})
            for key, raw in zip(keys, found, strict=True)
        ]

    async def child_keys(self, key: str, queue: str) -> list[str]:
        """Of the children that the job with this hash has made in a queue."""
        (reply,) = await self._pipelined([("HMGET", key, jobs_at(queue))], PAGE_SIZE)
        text = (reply or [None])[0]
        keys = None if text is None else strict_json.decode_with(_keys, text, limit=MAX_CHILD_KEYS_BYTES)
        return [name for name in keys or () if self._keys.is_child(name)]

    async def ends(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """Of each of these children what its end says, and no more; empty: it is gone."""
        names = ("done", "failed", "failedErrorMsg", "parent")
        rows = await self._pipelined([("HMGET", key, *names) for key in keys], ENDS_PAGE_SIZE)
        return [{name: text for name, text in zip(names, row or (), strict=False) if text is not None} for row in rows]

    async def hashes(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """The fields of each; none where there is no such hash."""
        return [reply or {} for reply in await self._pipelined([("HGETALL", key) for key in keys], PAGE_SIZE)]

    async def _resolve(self, jobs: Sequence[dict[str, Any]]) -> None:
        """One level: children of a flow have no children."""
        fields = [jobs_at(queue.name) for queue in self._keys.shape.all_queues() if queue.is_parent]
        for job in jobs:
            for field in fields:
                if isinstance(job.get(field), list):
                    keys = [key for key in job[field] if self._keys.is_child(key)]
                    job[field] = [child for raw, child in await self.children(keys) if raw]

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
        begin = "-" if after is None else self._keys.listed_after(queue, after)
        while begin is not None and len(found) < limit:
            ids = f"{self._keys.root(queue.name)}:failed"
            listed = await self._server.command("ZRANGEBYLEX", ids, begin, "+", "LIMIT", 0, PAGE_SIZE)
            hashes = [f"{self._keys.hashes(queue)}{one}" for one in listed]
            states = await self._pipelined([("HMGET", key, "failed") for key in hashes], PAGE_SIZE)
            found += [
                self._keys.public_id(queue, one)
                for one, state in zip(listed, states, strict=True)
                if state and state[0]
            ]
            begin = f"({listed[-1]}" if len(listed) == PAGE_SIZE else None
        return found

    async def _pipelined(self, commands: Sequence[tuple[str, ...]], at_once: int) -> list[Any]:
        """The reply to each; ``None`` where the key is something else than a hash."""
        replies: list[Any] = []
        for start in range(0, len(commands), at_once):
            page = commands[start : start + at_once]
            replies += await self._server.ask(partial(self._send, page))
        return replies

    async def _send(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        async with self._server.client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return [_hash_or_none(reply) for reply in await pipe.execute(raise_on_error=False)]

    # -- counts and positions --------------------------------------------------------------------

    async def counts(self) -> list[QueueCount]:
        """Every queue at every priority, in one moment. Those that run apart wait at the first priority."""
        places = [
            (queue, rank) for queue in self._keys.shape.all_queues() for rank in range(1, queue.declared.priorities + 1)
        ]
        args = [
            word
            for queue, rank in places
            for word in (self._keys.root(queue.name), "1" if rank == 1 else "", self._keys.base(queue.name, rank))
        ]
        rows = await self._server.run("counts", (self._keys.root(self._keys.shape.entry.name),), *args, unanswered=True)
        return [
            QueueCount(
                queue=queue.name,
                priority=rank,
                waiting=waiting,
                processing=processing,
                delayed=delayed,
                parked=parked,
                failed=failed,
                paused=bool(paused),
            )
            for (queue, rank), (waiting, processing, delayed, parked, failed, paused) in zip(places, rows, strict=True)
        ]

    async def positions(self, queue: FlowQueue, limit: int) -> list[Position]:
        """Up to ``limit`` of each state: those that wait in the order in which they will be served."""
        keys, bases = (self._keys.root(queue.name),), self._keys.bases(queue)
        *ranks, apart = await self._server.run("positions", keys, limit, *bases, unanswered=True)
        return [
            Position(
                job_id=self._keys.public_id(queue, listed),
                queue=queue.name,
                priority=rank,
                state=state,
                position=position,
                ready_at=ready_at,
            )
            for state, places in _places_by_state(ranks, apart)
            for position, (listed, rank, ready_at) in enumerate(places[:limit], 1)
        ]


def _places_by_state(ranks: Sequence[Any], apart: Sequence[str]) -> Iterator[tuple[str, list[_ListedJob]]]:
    """Each state with its jobs, in the order of service. ``ranks``: as ``positions.lua`` gives them."""
    waiting, processing, delayed, parked = (
        [(each, rank) for rank, row in enumerate(ranks, 1) for each in row[place]] for place in range(4)
    )
    yield "waiting", [(listed, rank, None) for listed, rank in (*waiting, *((listed, 1) for listed in apart))]
    yield "processing", [(listed, rank, None) for listed, rank in processing]
    ready = sorted((float(score), listed, rank) for (listed, score), rank in delayed)
    yield "delayed", [(listed, rank, score / 1000) for score, listed, rank in ready]
    yield "parked", [(listed, rank, None) for listed, rank in parked]


def _hash_or_none(reply: Any) -> Any:
    """``None`` for a key of another application that is not a hash."""
    if isinstance(reply, redis_errors.ResponseError):
        if "WRONGTYPE" in str(reply):
            return None
        raise reply
    return reply
