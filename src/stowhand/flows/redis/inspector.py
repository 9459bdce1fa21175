"""Inspector of a flow in Redis: jobs by lookup attribute or id, failed jobs, counts and positions."""

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
"""Children whose outcome is read in one round trip."""
_ListedJob = tuple[str, int, float | None]
"""A job's id in lists, its priority, and when it is ready (epoch seconds)."""
_keys: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])


class Inspector:
    """Reader of the jobs of one flow. It changes nothing."""

    def __init__(self, keys: Keys, server: Server) -> None:
        self._keys = keys
        self._server = server
        locations = {
            queue.name: {"root": keys.root(queue.name), "bases": keys.bases(queue)} for queue in keys.shape.all_queues()
        }
        self._places = msgspec.json.encode(locations).decode()

    # -- jobs ------------------------------------------------------------------------------------

    async def ids(self, attribute: str, value: str) -> list[str]:
        """Return the ids of jobs with that value of a lookup attribute, oldest first; some may have expired."""
        ids = await self._server.command("LRANGE", self._keys.lookup(attribute, value), 0, -1)
        return list(dict.fromkeys(ids))

    async def read(self, job_ids: Sequence[str], *, resolve_children: bool) -> list[dict[str, Any] | None]:
        """Return the attributes of each job; ``None`` if it does not exist. A value that is not JSON is ``None`` too.

        ``resolve_children``: replace the lists of children's keys by lists of the children's attributes. Children that
        do not exist are omitted.
        """
        locations = [self._keys.location(job_id) for job_id in job_ids]
        hashes = iter(await self.hashes([location.hash for location in locations if location is not None]))
        raw = [next(hashes) if location is not None else {} for location in locations]
        jobs = [
            {**decoded(fields), "id": job_id} if fields else None for job_id, fields in zip(job_ids, raw, strict=True)
        ]
        if resolve_children:
            await self._resolve([job for job in jobs if job is not None])
        return jobs

    async def find(self, job_id: str) -> tuple[JobLocation, StoredJob] | None:
        """Read a job's hash and its position in the lists, atomically. Return ``None`` if the job does not exist."""
        location = self._keys.location(job_id)
        if location is None:
            return None
        classic = "" if self._keys.is_lasting else "1"
        reply = await self._server.run(
            "view", (location.hash,), location.listed, self._places, classic, unanswered=True
        )
        flat, queue, state, ready = reply
        raw = dict(zip(flat[::2], flat[1::2], strict=True))
        if not raw:
            return None
        return location, StoredJob(raw, queue, state, float(ready) / 1000 if ready else None)

    async def children(self, keys: Sequence[str]) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """Return for each key of a child's hash the stored fields, and the decoded attributes with the child's id."""
        hashes = await self.hashes(keys)
        return [
            (raw, {**decoded(raw), "id": self._keys.public_id_of_hash(key) or key})
            for key, raw in zip(keys, hashes, strict=True)
        ]

    async def child_keys(self, key: str, queue: str) -> list[str]:
        """Return the keys of the children that the job with this hash has created in a queue."""
        (reply,) = await self._pipelined([("HMGET", key, jobs_at(queue))], PAGE_SIZE)
        text = (reply or [None])[0]
        keys = None if text is None else strict_json.decode_with(_keys, text, limit=MAX_CHILD_KEYS_BYTES)
        return [name for name in keys or () if self._keys.is_child(name)]

    async def ends(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """Return the fields of each child that tell its outcome; empty if its hash does not exist."""
        names = ("done", "failed", "failedErrorMsg", "parent")
        rows = await self._pipelined([("HMGET", key, *names) for key in keys], ENDS_PAGE_SIZE)
        return [{name: text for name, text in zip(names, row or (), strict=False) if text is not None} for row in rows]

    async def hashes(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """Return the fields of each hash; empty if it does not exist."""
        return [reply or {} for reply in await self._pipelined([("HGETALL", key) for key in keys], PAGE_SIZE)]

    async def _resolve(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Replace keys of children by their attributes. One level is enough: children have no children."""
        fields = [jobs_at(queue.name) for queue in self._keys.shape.all_queues() if queue.is_parent]
        for job in jobs:
            for field in fields:
                if isinstance(job.get(field), list):
                    keys = [key for key in job[field] if self._keys.is_child(key)]
                    job[field] = [child for raw, child in await self.children(keys) if raw]

    # -- failed ----------------------------------------------------------------------------------

    async def failed(self, queue: str | None, *, after: str | None, limit: int) -> list[str]:
        """Return ids of failed jobs and children after the id ``after``, in the order of ids.

        Failures that workers of the original implementation have recorded are missing.
        """
        shape = self._keys.shape
        queues = list(shape.all_queues()) if queue is None else [shape.find_queue(queue)]
        ids = [job_id for flow_queue in queues for job_id in await self._failed_in(flow_queue, after, limit)]
        return sorted(ids)[:limit]

    async def _failed_in(self, queue: FlowQueue, after: str | None, limit: int) -> list[str]:
        """Return a queue's failed jobs. Skip ids whose job has expired: the sweep removes them."""
        failed_ids: list[str] = []
        key = f"{self._keys.root(queue.name)}:failed"
        start = "-" if after is None else self._keys.listed_after(queue, after)
        while start is not None and len(failed_ids) < limit:
            page = await self._server.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, PAGE_SIZE)
            hashes = [f"{self._keys.hashes(queue)}{listed_id}" for listed_id in page]
            states = await self._pipelined([("HMGET", job_hash, "failed") for job_hash in hashes], PAGE_SIZE)
            failed_ids += [
                self._keys.public_id(queue, listed_id)
                for listed_id, state in zip(page, states, strict=True)
                if state and state[0]
            ]
            start = f"({page[-1]}" if len(page) == PAGE_SIZE else None
        return failed_ids

    async def _pipelined(self, commands: Sequence[tuple[str, ...]], at_once: int) -> list[Any]:
        """Return the reply to each command; ``None`` if the key holds something else than a hash."""
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
        """Count the jobs of every queue at every priority, atomically.

        Suspects, which workers run apart from other jobs, count as waiting at the first priority.
        """
        lists = [
            (queue, rank) for queue in self._keys.shape.all_queues() for rank in range(1, queue.declared.priorities + 1)
        ]
        args = [
            arg
            for queue, rank in lists
            for arg in (self._keys.root(queue.name), "1" if rank == 1 else "", self._keys.base(queue.name, rank))
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
            for (queue, rank), (waiting, processing, delayed, parked, failed, paused) in zip(lists, rows, strict=True)
        ]

    async def positions(self, queue: FlowQueue, limit: int) -> list[Position]:
        """Return up to ``limit`` jobs in each state; waiting jobs in the order in which workers will claim them."""
        keys = (self._keys.root(queue.name),)
        bases = self._keys.bases(queue)
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
            for state, jobs in _places_by_state(ranks, apart)
            for position, (listed, rank, ready_at) in enumerate(jobs[:limit], 1)
        ]


def _places_by_state(ranks: Sequence[Any], apart: Sequence[str]) -> Iterator[tuple[str, list[_ListedJob]]]:
    """Yield each state with its jobs in the order of service. ``ranks``: the rows that ``positions.lua`` returns."""
    waiting, processing, delayed, parked = (
        [(entry, rank) for rank, row in enumerate(ranks, 1) for entry in row[column]] for column in range(4)
    )
    yield "waiting", [(listed, rank, None) for listed, rank in (*waiting, *((listed, 1) for listed in apart))]
    yield "processing", [(listed, rank, None) for listed, rank in processing]
    ready = sorted((float(score), listed, rank) for (listed, score), rank in delayed)
    yield "delayed", [(listed, rank, score / 1000) for score, listed, rank in ready]
    yield "parked", [(listed, rank, None) for listed, rank in parked]


def _hash_or_none(reply: Any) -> Any:
    """Return the reply, or ``None`` for a key of another application that is not a hash. Raise any other error."""
    if isinstance(reply, redis_errors.ResponseError):
        if "WRONGTYPE" in str(reply):
            return None
        raise reply
    return reply
