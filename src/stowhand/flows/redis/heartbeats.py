"""Heartbeats on connections of their own, for the loop of the heartbeat's thread."""

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
"""Of one list, in one sweep."""
LOOK_SECONDS_PER_PROCESS, MAX_LOOK_SECONDS = 0.5, 10.0
"""Seconds until the next look for each process that has asked in the same second, and at most."""


class RedisHeartbeats:
    """One call at a time, on one loop. Every method raises StoreUnreachable, and may be repeated.

    Leases expire on the server by themselves, and no slack is granted after that but the second look of the sweep. So a
    lease must live some beats.

    ``queue``: the one whose jobs the worker holds; ``others``: the flow's other queues, which are swept too, since
    workers of the original implementation do not sweep. ``lock``: milliseconds that a lock lives that outlives its
    lease, else 0.
    """

    def __init__(self, server: Server, queue: QueueLocation, others: Sequence[QueueLocation], lock: int) -> None:
        self._server = server
        self._queue = queue
        self._others = others
        self._lock = lock
        self._begin = dict.fromkeys((queue, *others), 0)
        """Where in a long list the next sweep goes on."""
        self._next_look = float("-inf")

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now. A job whose hash is gone is lost."""
        found: dict[str, set[tuple[str, str]]] = {"K": set(), "C": set(), "L": set()}
        for page in _pages(leases):
            pairs = [(one.job_id, one.token) for one in page]
            marks = await self._run("beat", max(1, round(lease * 1000)), self._lock, *chain(*pairs))
            for pair, mark in zip(pairs, marks, strict=True):
                found[mark].add(pair)
        return Pulse(lost=frozenset(found["L"]), canceled=frozenset(found["C"]))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back to the front of the queue, without using an attempt. No lease is ever busy."""
        for page in reversed(_pages(leases)):
            await self._run("release", *(word for one in page for word in (one.job_id, one.token, one.epoch)))
        return []

    async def abandon(self, token: str) -> bool:
        """Hand back what this token claimed; it can claim nothing more."""
        await self._run("abandon", token)
        return True

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has been seen twice without a lease. One look a second, whichever process takes it.

        The more processes ask for it, the rarer each of them does: some look a second is all that the flow needs.
        """
        now = self._server.clock.monotonic()
        if now < self._next_look:
            return []
        found, asked = await self._sweep(self._queue)
        if asked == 0:
            found += [reset for queue in self._others for reset in (await self._sweep(queue))[0]]
        if not found:  # else it is called again at once, for there may be more
            self._next_look = now + min(asked * LOOK_SECONDS_PER_PROCESS, MAX_LOOK_SECONDS)
        return found

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Only two looks at the locks can tell."""
        return None

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds."""
        return resets_of(self._queue, await self._run("reset", "worker", worker), worker)

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        return resets_of(self._queue, await self._run("reset", "lease", lease.job_id, lease.token), None)

    def refused(self) -> Sequence[RefusedChange]:
        """Nothing: there are no rules of an application there."""
        return ()

    async def check(self) -> None:
        """There is no schema that could change."""

    async def check_writable(self) -> None:
        """Nothing: a claim is a script that writes, and meets what refuses it."""

    async def maintain(self) -> None:
        """Keys expire by themselves."""

    async def close(self) -> None:
        """Close the connections."""
        await self._server.dialer.close()

    async def _sweep(self, queue: QueueLocation) -> tuple[list[ResetJob], int]:
        """Sweep page after page, until jobs were reset; and how many processes asked before in this second."""
        when, swept, asked = "", list[str](), 0
        for _ in range(MAX_PAGES_PER_SWEEP):
            words = (queue.text, self._begin[queue], when)
            begin, asked, *swept = await self._server.run("sweep", (queue.root,), *words)
            if asked:
                break
            self._begin[queue] = max(begin, 0)
            when = "now"  # the whole list is one look
            if swept or begin < 0:
                break
        return resets_of(queue, swept, None), asked

    async def _run(self, name: str, *args: object) -> Any:
        return await self._server.run(name, (self._queue.root,), self._queue.text, *args)


def _pages(leases: Sequence[Lease]) -> list[Sequence[Lease]]:
    return [leases[first : first + PAGE_SIZE] for first in range(0, len(leases), PAGE_SIZE)]


def resets_of(queue: QueueLocation, swept: Sequence[str], worker: str | None) -> list[ResetJob]:
    """Makes resets of a script's flat reply: id, state, id, state, …"""
    pairs = zip(swept[::2], swept[1::2], strict=True)
    return [ResetJob(job_id, queue.name, State(state), worker) for job_id, state in pairs]
