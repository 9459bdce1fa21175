"""Heartbeats on connections of their own, for the loop of the heartbeat's thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stowhand.clock import SystemClock
from stowhand.flows.redis.address import Address
from stowhand.flows.redis.dialing import Dialer
from stowhand.flows.redis.queues import QueueAt
from stowhand.flows.redis.scripts import SCRIPTS, run
from stowhand.flows.redis.trouble import repeated
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.protocols.store import Foreign, Pulse, Refusal

PAGE = 1000
PAGES = 20
"""Of one list, in one sweep."""
CROWD, RAREST = 0.5, 10.0
"""Seconds until the next look for each process that has asked in the same second, and at most."""


class RedisHeartbeats:
    """One call at a time, on one loop. Every method raises StoreUnreachable, and may be repeated.

    Leases expire on the server by themselves, and no slack is granted after that but the second look of the sweep. So a
    lease must live some beats.

    ``queues``: those whose jobs the worker holds; ``others``: the flow's other queues, which are swept too, since
    workers of the original implementation do not sweep. ``lock``: milliseconds that a lock lives that outlives its
    lease, else 0.
    """

    def __init__(
        self, address: Address, queues: Sequence[QueueAt], others: Sequence[QueueAt] = (), lock: int = 0
    ) -> None:
        self._address = address
        self._queues = queues
        self._others = others
        self._lock = lock
        self._dialer = Dialer(address)
        self._begin = dict.fromkeys((*queues, *others), 0)
        """Where in a long list the next sweep goes on."""
        self._clock = SystemClock()
        self._next_look = float("-inf")

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew for ``lease`` seconds from now. A job whose hash is gone is lost."""
        lost: set[tuple[str, str]] = set()
        for queue, mine in (await self._by_queue(leases)).items():
            for page in _pages(mine):
                marks = await self._run("beat", queue, max(1, round(lease * 1000)), self._lock, *_pairs(page))
                lost |= {(one.job_id, one.token) for one, mark in zip(page, marks, strict=True) if mark == "L"}
        return Pulse(lost=frozenset(lost))

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back to the front of the queue, without using an attempt. No lease is ever busy."""
        for queue, mine in (await self._by_queue(leases)).items():
            for page in reversed(_pages(mine)):
                await self._run(
                    "release", queue, *(word for one in page for word in (one.job_id, one.token, one.epoch))
                )
        return []

    async def abandon(self, token: str) -> bool:
        """Hand back what this token claimed; it can claim nothing more."""
        for queue in self._queues:
            await self._run("abandon", queue, token)
        return True

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back what has been seen twice without a lease. One look a second, whichever process takes it.

        The more processes ask for it, the rarer each of them does: some look a second is all that the flow needs.
        """
        now = self._clock.monotonic()
        if now < self._next_look:
            return []
        found: list[ResetJob] = []
        asked = 0
        for queue in self._queues:
            resets, before = await self._sweep(queue)
            found += resets
            asked = max(asked, before)
        if asked == 0:
            found += [reset for queue in self._others for reset in (await self._sweep(queue))[0]]
        if not found:  # else it is called again at once, for there may be more
            self._next_look = now + min(asked * CROWD, RAREST)
        return found

    async def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """Only two looks at the locks can tell."""
        return None

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back all that this worker holds."""
        return [
            reset
            for queue in self._queues
            for reset in resets_of(queue, await self._run("reset", queue, "worker", worker), worker)
        ]

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one."""
        for queue in await self._by_queue([lease]):
            return resets_of(queue, await self._run("reset", queue, "lease", lease.job_id, lease.token), None)
        return []

    def refused(self) -> Sequence[Refusal]:
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
        await self._dialer.close()

    async def _sweep(self, queue: QueueAt) -> tuple[list[ResetJob], int]:
        """Sweep page after page, until jobs were reset; and how many processes asked before in this second."""
        when, swept, asked = "", list[str](), 0
        for _ in range(PAGES):
            begin, asked, *swept = await self._run("sweep", queue, self._begin[queue], when)
            if asked:
                break
            self._begin[queue] = max(begin, 0)
            when = "now"  # the whole list is one look
            if swept or begin < 0:
                break
        return resets_of(queue, swept, None), asked

    async def _by_queue(self, leases: Sequence[Lease]) -> dict[QueueAt, list[Lease]]:
        """Where more than one queue is served, the locks say where each job is; one without a lock is lost anyway."""
        if not leases:
            return {}
        if len(self._queues) == 1:
            return {self._queues[0]: list(leases)}
        names = [queue.keys.lock(queue.name, lease.job_id) for lease in leases for queue in self._queues]

        async def ask() -> Any:
            return await self._dialer.calls().mget(names)

        locks: Iterator[Any] = iter(await repeated(ask, self._address, self._clock, unanswered=True))
        found: dict[QueueAt, list[Lease]] = {}
        for lease in leases:
            held = [queue for queue in self._queues if (next(locks) or "").endswith(f":{lease.token}")]
            found.setdefault(held[0] if held else self._queues[0], []).append(lease)
        return found

    async def _run(self, name: str, queue: QueueAt, *args: object) -> Any:
        async def ask() -> Any:
            return await run(self._dialer.calls(), SCRIPTS[name], (queue.root,), (queue.text, *args))

        return await repeated(ask, self._address, self._clock)


def _pages(leases: list[Lease]) -> list[list[Lease]]:
    return [leases[first : first + PAGE] for first in range(0, len(leases), PAGE)]


def _pairs(leases: Sequence[Lease]) -> list[str]:
    return [text for lease in leases for text in (lease.job_id, lease.token)]


def resets_of(queue: QueueAt, swept: Sequence[str], worker: str | None) -> list[ResetJob]:
    """Makes resets of a script's flat reply: id, state, id, state, …"""
    pairs = zip(swept[::2], swept[1::2], strict=True)
    return [ResetJob(job_id, queue.name, State(state), worker) for job_id, state in pairs]
