"""Failed and lost jobs of a flow in Redis, put back into their queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.flows.redis.looking import Looking
from stowhand.flows.redis.naming import Naming, Spot
from stowhand.flows.redis.queues import bases_of
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.values import KEY, STATE, Found, children_again, key_list, readable, state_of
from stowhand.flows.view import Stage
from stowhand.protocols.flow_shape import FlowQueue
from stowhand.protocols.queue_store import Answer, Done

_WHY = {
    "changed": "it has changed just now; look again",
    "orphan": "the job that waited for it is gone",
    "parent failed": "its parent has failed; retry the parent",
    "gathered": "the job that waited for it has gone on with what there was; create that one anew",
    "gathering": "the job that waits for it is at work just now; try again",
}


class Retrying:
    """For the jobs of one flow, children included."""

    def __init__(self, naming: Naming, looking: Looking, server: Server) -> None:
        self._naming, self._keys, self._looking = naming, naming.keys, looking
        self._server = server
        self._life = 0 if naming.keys.lasting else round(naming.keys.shape.key_life * 1000)

    async def retry(self, job_id: str) -> Answer:
        """To the end of the queue in which it failed or was lost, with all its retries and its life renewed."""
        spot = self._naming.spot(job_id)
        found = None if spot is None else await self._looking.find(spot)
        if spot is None or found is None:
            return Answer(job_id, Done.MISSING, "there is no such job, or it has expired")
        stage, name = state_of(self._keys.shape, found)
        if stage not in (Stage.FAILED, Stage.CANCELED, Stage.LOST):
            return Answer(job_id, Done.REFUSED, f"it has not failed: it is {stage}")
        queue = self._queue_of(spot, name)
        if queue is None:
            return Answer(
                job_id, Done.REFUSED, f"it failed in {name!r}, which is no queue of this flow that it can be in"
            )
        if queue.parent is not None and not isinstance(readable(found.raw.get("parent")), str):
            return Answer(job_id, Done.REFUSED, "it is not known which job waits for it: not ours has created it")
        return await self._send(spot, queue, found, is_lost=stage is Stage.LOST)

    def _queue_of(self, spot: Spot, name: object) -> FlowQueue | None:
        if spot.child is not None:
            return spot.child if name == spot.child.name else None
        try:
            queue = self._keys.shape.find_queue(name) if isinstance(name, str) else None
        except ConfigurationError:
            return None
        return None if queue is None or queue.parent is not None else queue

    async def _send(self, spot: Spot, queue: FlowQueue, found: Found, *, is_lost: bool) -> Answer:
        known = found.raw
        bases = bases_of(self._keys, queue)
        rank = readable(known.get("priority"))
        base = bases[max(1, min(rank, len(bases))) - 1 if type(rank) is int else 0]
        job: dict[str, Any] = {
            "failed": known.get("failed"),
            "failed_queue": known.get("failedQueue"),
            "state": known.get(STATE),
            "lost": is_lost,
            "queue": queue.name,
            "waiting": f"{base}:waiting",
            "root": self._keys.root(queue.name),
            "bases": bases,
            "life": self._life,
            "kept": [*self._lookups(spot, known), *self._children(known)],
            "prefix": self._keys.prefix,
        }
        if queue.declared.children_must_succeed:
            job["again"] = children_again(queue)
        key = readable(known.get(KEY))
        if spot.child is None and isinstance(key, str):
            job["holders"] = self._keys.key(key)
        if queue.parent is not None:
            job["parent"] = self._parent(queue.parent, readable(known["parent"]))
        text = msgspec.json.encode(job).decode()
        result = await self._server.run("retry", (spot.hash,), text, spot.listed)
        if result == "retried":
            return Answer(spot.job_id, Done.DONE)
        return Answer(spot.job_id, Done.REFUSED, _WHY[result])

    def _lookups(self, spot: Spot, known: dict[str, str]) -> Sequence[str]:
        """Where it can be found; in the layout of ours the job itself tells."""
        return [] if spot.child is not None or self._keys.lasting else self._naming.lookups(known)

    def _children(self, known: dict[str, str]) -> Sequence[str]:
        """The hashes of its children: what it gathers must live as long as itself."""
        return [
            key
            for queue in self._keys.shape.all_queues()
            if queue.is_parent
            for key in key_list(known.get(f"children:{queue.name}:jobs")) or ()
            if self._naming.is_child(key)
        ]

    def _parent(self, queue: str, listed: str) -> dict[str, str]:
        above = self._keys.shape.find_queue(queue)
        return {
            "hash": f"{self._keys.hashes(above)}{listed}",
            "lock": self._keys.lock(queue, listed),
            "jobs": f"children:{queue}:jobs",
            "open": f"children:{queue}:open",
            "results": f"children:{queue}:results",
        }
