"""Throughput of remote workers: the server counts their recorded settlements, and writes the counts as a worker would.

For a lease from before the server's last restart, neither task nor times are known. The run time of a remote job
begins with the reply to its claim, so it includes the network and the wait for a slot.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from stowhand.clock import Clock
from stowhand.errors import StoreError
from stowhand.events import Events, JobsReset
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.protocols.store import Claim, RecordedSettlement, Verdict
from stowhand.protocols.throughput import OTHER_TASKS
from stowhand.remote.server.wake_broadcast import LENDER_NAME
from stowhand.worker.heartbeat_thread import HeartbeatThread
from stowhand.worker.reports import WRITE_INTERVAL_SECONDS, ThroughputCounter, ThroughputWriter

MAX_LEASES = 100_000
"""Number of leases whose tasks and times are remembered."""
LAST_WRITE_TIMEOUT_SECONDS = 1.0


class RemoteThroughput:
    """Counter of one server. ``is_kept``: False for a user's table, for which nothing is counted."""

    def __init__(self, heartbeats: HeartbeatThread, clock: Clock, events: Events, *, is_kept: bool) -> None:
        self._heartbeats = heartbeats
        self._clock = clock
        self._is_kept = is_kept
        self._counter = ThroughputCounter(clock.monotonic)
        self._writer = ThroughputWriter(LENDER_NAME, self._counter, events)
        self._held: OrderedDict[Pair, tuple[str, datetime, datetime, float]] = OrderedDict()
        """Task, due time, time of the claim, and time of the reply, by lease that has not ended."""
        self._has_news = False
        """Whether something was counted since the last write."""
        events.on(JobsReset, lambda event: self.count_resets(event.jobs))

    def add_claims(self, claims: Iterable[Claim[Any]]) -> None:
        """Remember the leases of new claims."""
        if not self._is_kept:
            return
        now = self._clock.monotonic()
        for claim in claims:
            job = claim.record
            self._held[claim.lease.pair] = (claim.task, job.run_at, job.started_at, now)
            self._counter.sync_clock(job.started_at, now)
        while len(self._held) > MAX_LEASES:
            self._held.popitem(last=False)

    def count_settlements(self, leases: Iterable[Lease], replies: Iterable[RecordedSettlement]) -> None:
        """Count recorded settlements. One that a client repeats is counted once."""
        if not self._is_kept:
            return
        now = self._clock.monotonic()
        for lease, reply in zip(leases, replies, strict=True):
            if reply.settlement is None:
                continue
            ended = reply.settlement.ended.value
            if (held := self._held.pop(lease.pair, None)) is not None:
                task, due_at, claimed_at, answered_at = held
                self._counter.add(task, ended, due_at, claimed_at, now - answered_at)
            elif reply.verdict is not Verdict.ALREADY_SETTLED:
                self._counter.add(OTHER_TASKS, ended, None, None, None)
            self._has_news = True

    def count_resets(self, jobs: Sequence[ResetJob]) -> None:
        """Count jobs that were reset after their worker was lost."""
        if self._is_kept and jobs:
            self._counter.count_resets(jobs)
            self._has_news = True

    async def run(self) -> None:
        """Write the counts every ten seconds, until cancelled."""
        while True:
            await self._clock.sleep(WRITE_INTERVAL_SECONDS)
            await self.write()

    async def close(self) -> None:
        """Write the last counts, unless the store takes too long."""
        self._writer.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITE_TIMEOUT_SECONDS):
                await self.write()

    async def write(self) -> None:
        """Write the counts. After an error, which is reported, they are written with the next ones."""
        if not self._has_news:
            return
        self._has_news = False
        try:
            await self._heartbeats.call(lambda heartbeats: self._writer.tick(heartbeats, self._clock.monotonic()))
        except StoreError:  # the heartbeats could not be called: the health page shows it
            self._has_news = True
