"""Heartbeats of one queue on their own connections, for the event loop of the heartbeat thread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from stowhand.flows.redis.layout import QueueLocation
from stowhand.flows.redis.server import Server
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Pulse, RefusedChange

PAGE_SIZE = 1000
MAX_PAGES_PER_SWEEP = 20
"""Pages of one list that one sweep reads."""
LOOK_SECONDS_PER_PROCESS, MAX_LOOK_SECONDS = 0.5, 10.0
"""Seconds until the next sweep, for each process that has requested one in the same second; and the maximum."""


class RedisHeartbeats:
    """Heartbeats of a worker: one call at a time, on one loop.

    Every method raises StoreUnreachable, and may be repeated. Leases expire on the server. The only slack after that is
    that the sweep resets a job when it sees it without a lease for the second time. So a lease must last several beats.

    ``queue``: the queue whose jobs the worker holds. ``others``: the flow's other queues, which are swept too, since
    workers of the original implementation do not sweep. ``lock``: milliseconds that a lock lives where it outlives its
    lease, else 0.
    """

    def __init__(self, server: Server, queue: QueueLocation, others: Sequence[QueueLocation], lock: int) -> None:
        self._server = server
        self._queue = queue
        self._others = others
        self._lock = lock
        self._begin = dict.fromkeys((queue, *others), 0)
        """Position in each queue's list from which the next sweep continues."""
        self._next_look = float("-inf")

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew the leases for ``lease`` seconds from now. A job whose hash does not exist is lost."""
        pairs_by_mark: dict[str, set[tuple[str, str]]] = {"K": set(), "C": set(), "L": set()}
        for page in _pages(leases):
            pairs = [(held.job_id, held.token) for held in page]
            marks = await self._run("beat", max(1, round(lease * 1000)), self._lock, *chain(*pairs))
            for pair, mark in zip(pairs, marks, strict=True):
                pairs_by_mark[mark].add(pair)
        return Pulse(lost=frozenset(pairs_by_mark["L"]), canceled=frozenset(pairs_by_mark["C"]))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return the jobs to the front of the queue without using an attempt. No lease is ever busy."""
        for page in reversed(_pages(leases)):
            fields = [(held.job_id, held.token, held.epoch) for held in page]
            await self._run("release", *chain(*fields))
        return []

    async def abandon(self, token: str) -> bool:
        """Return the jobs that this token claimed to the queue. The token can claim no more jobs."""
        await self._run("abandon", token)
        return True

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset jobs that two sweeps have seen without a lease.

        The processes of a flow share one sweep a second: the more of them request it, the less often each one does.
        """
        now = self._server.clock.monotonic()
        if now < self._next_look:
            return []
        reset_jobs, request_count = await self._sweep(self._queue)
        if request_count == 0:
            for queue in self._others:
                reset_jobs += (await self._sweep(queue))[0]
        if not reset_jobs:  # otherwise the caller calls again at once, since there may be more
            self._next_look = now + min(request_count * LOOK_SECONDS_PER_PROCESS, MAX_LOOK_SECONDS)
        return reset_jobs

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Return ``None``: only two sweeps of the locks find the jobs of lost workers."""
        return None

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Reset all jobs that this worker holds."""
        return resets_of(self._queue, await self._run("reset", "worker", worker), worker)

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Reset the job of this lease."""
        return resets_of(self._queue, await self._run("reset", "lease", lease.job_id, lease.token), None)

    def refused(self) -> Sequence[RefusedChange]:
        """Return nothing: Redis has no rules of an application that could refuse a change."""
        return ()

    async def check(self) -> None:
        """Do nothing: there is no schema that could change."""

    async def check_writable(self) -> None:
        """Do nothing: a claim is a script that writes, so it fails itself where writing is refused."""

    async def maintain(self) -> None:
        """Do nothing: keys expire by themselves."""

    async def close(self) -> None:
        """Close the connections."""
        await self._server.dialer.close()

    async def _sweep(self, queue: QueueLocation) -> tuple[list[ResetJob], int]:
        """Sweep page after page until jobs are reset. Return them, and how many sweeps this second already had."""
        when = ""
        swept: list[str] = []
        request_count = 0
        for _ in range(MAX_PAGES_PER_SWEEP):
            args = (queue.text, self._begin[queue], when)
            begin, request_count, *swept = await self._server.run("sweep", (queue.root,), *args)
            if request_count:
                break
            self._begin[queue] = max(begin, 0)
            when = "now"  # all pages of the list belong to one sweep
            if swept or begin < 0:
                break
        return resets_of(queue, swept, None), request_count

    async def _run(self, name: str, *args: object) -> Any:
        return await self._server.run(name, (self._queue.root,), self._queue.text, *args)


def _pages(leases: Sequence[Lease]) -> list[Sequence[Lease]]:
    return [leases[first : first + PAGE_SIZE] for first in range(0, len(leases), PAGE_SIZE)]


def resets_of(queue: QueueLocation, swept: Sequence[str], worker: str | None) -> list[ResetJob]:
    """Convert a script's flat reply (id, state, id, state, …) into reset jobs."""
    pairs = zip(swept[::2], swept[1::2], strict=True)
    return [ResetJob(job_id, queue.name, State(state), worker) for job_id, state in pairs]
