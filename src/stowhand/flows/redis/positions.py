"""Where a flow's jobs stand in Redis: how many in which queue, and who is next. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stowhand.flows.engine import Position, QueueCount
from stowhand.flows.redis.naming import Naming
from stowhand.flows.redis.queues import bases_of
from stowhand.flows.redis.server import Server
from stowhand.protocols.flow_shape import FlowQueue


class Positions:
    """Of the jobs of one flow."""

    def __init__(self, naming: Naming, server: Server) -> None:
        self._naming, self._keys = naming, naming.keys
        self._server = server

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
        found = iter(await self._ask("counts", self._keys.shape.entry, args))
        return [
            QueueCount(
                queue=queue.name,
                priority=rank,
                waiting=next(found),
                processing=next(found),
                delayed=next(found),
                parked=next(found),
                failed=next(found),
                paused=bool(next(found)),
            )
            for queue, rank in places
        ]

    async def positions(self, queue: FlowQueue, limit: int) -> list[Position]:
        """Up to ``limit`` of each state: those that wait in the order in which they will be served."""
        bases = bases_of(self._keys, queue)
        *ranks, apart = await self._ask("positions", queue, (limit, *bases))
        delayed = sorted(
            (float(score), job_id, rank)
            for rank, (_, _, _, some, _) in enumerate(ranks, 1)
            for job_id, score in zip(*[iter(some)] * 2, strict=True)
        )
        waiting = list(_waiting(ranks, apart))
        return [
            *(self._position(queue, *each, "waiting") for each in waiting[:limit]),
            *(self._position(queue, *each, "processing") for each in _numbered(ranks, 2)[:limit]),
            *(
                self._position(queue, job_id, rank, place, "delayed", ready / 1000)
                for place, (ready, job_id, rank) in enumerate(delayed[:limit], 1)
            ),
            *(self._position(queue, *each, "parked") for each in _numbered(ranks, 4)[:limit]),
        ]

    def _position(
        self, queue: FlowQueue, listed: str, rank: int, position: int, state: str, ready_at: float | None = None
    ) -> Position:
        return Position(
            job_id=self._naming.shown(queue, listed),
            queue=queue.name,
            priority=rank,
            state=state,
            position=position,
            ready_at=ready_at,
        )

    async def _ask(self, script: str, queue: FlowQueue, args: Sequence[Any]) -> Any:
        return await self._server.run(script, (self._keys.root(queue.name),), *args, unanswered=True)


def _waiting(ranks: Sequence[Any], apart: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(id, priority, position): one priority after the other, then those that run apart."""
    before = 0
    for rank, (length, ids, *_) in enumerate(ranks, 1):
        yield from ((job_id, rank, before + place) for place, job_id in enumerate(ids, 1))
        before += length
    yield from ((job_id, 1, before + place) for place, job_id in enumerate(apart, 1))


def _numbered(ranks: Sequence[Any], kind: int) -> list[tuple[str, int, int]]:
    """(id, priority, position) of what stands at this place of each answer."""
    ids = [(job_id, rank) for rank, found in enumerate(ranks, 1) for job_id in found[kind]]
    return [(job_id, rank, place) for place, (job_id, rank) in enumerate(ids, 1)]
