"""Counts the recorded settlements of remote workers, and writes the counts as a local worker would.

For a lease lent before the server's last restart, neither task nor times are known. The run time of a lent job is
counted from the reply to its claim, so it includes the network and the time before its start.
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
from stowhand.remote.server.wake_broadcast import NAME
from stowhand.worker.heartbeat_thread import HeartbeatThread
from stowhand.worker.reports import WRITE_INTERVAL_SECONDS, ThroughputCounter, ThroughputWriter

MAX_LEASES = 100_000
"""Leases whose tasks and times are remembered."""
LAST_WRITE_TIMEOUT_SECONDS = 1.0
"""The time limit of the last write."""


class LentThroughput:
    """Counter of one server. ``is_kept``: False for a user's table, of which nothing is counted."""

    def __init__(self, heartbeats: HeartbeatThread, clock: Clock, events: Events, *, is_kept: bool) -> None:
        self._heartbeats = heartbeats
        self._clock = clock
        self._is_kept = is_kept
        self._counter = ThroughputCounter(clock.monotonic)
        self._writer = ThroughputWriter(NAME, self._counter, events)
        self._lent: OrderedDict[Pair, tuple[str, datetime, datetime, float]] = OrderedDict()
        """By unfinished lease: task, due time, time of the claim, and time of the reply."""
        self._is_due = False
        """Whether something was counted since the last write."""
        events.on(JobsReset, lambda event: self.reset(event.jobs))

    def lent(self, claims: Iterable[Claim[Any]]) -> None:
        """Note records that have just been claimed."""
        if not self._is_kept:
            return
        now = self._clock.monotonic()
        for claim in claims:
            job = claim.record
            self._lent[claim.lease.pair] = (claim.task, job.run_at, job.started_at, now)
            self._counter.hear(job.started_at, now)
        while len(self._lent) > MAX_LEASES:
            self._lent.popitem(last=False)

    def settled(self, leases: Iterable[Lease], replies: Iterable[RecordedSettlement]) -> None:
        """Count what was recorded, only once even if a client repeats it."""
        if not self._is_kept:
            return
        now = self._clock.monotonic()
        for lease, reply in zip(leases, replies, strict=True):
            if reply.settlement is None:
                continue
            ended = reply.settlement.ended.value
            if (lent_lease := self._lent.pop(lease.pair, None)) is not None:
                task, due, claimed, answered_at = lent_lease
                self._counter.add(task, ended, due, claimed, now - answered_at)
            elif reply.verdict is not Verdict.ALREADY_SETTLED:
                self._counter.add(OTHER_TASKS, ended, None, None, None)
            self._is_due = True

    def reset(self, jobs: Sequence[ResetJob]) -> None:
        """Count jobs that were reset after their worker was lost."""
        if self._is_kept and jobs:
            self._counter.count_resets(jobs)
            self._is_due = True

    async def run(self) -> None:
        """Write the counts every ten seconds, until cancelled."""
        while True:
            await self._clock.sleep(WRITE_INTERVAL_SECONDS)
            await self.write()

    async def close(self) -> None:
        """Write what is left, unless the store takes too long."""
        self._writer.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITE_TIMEOUT_SECONDS):
                await self.write()

    async def write(self) -> None:
        """Write what has been counted. An error is reported, and the figures are written with the next ones."""
        if not self._is_due:
            return
        self._is_due = False
        try:
            await self._heartbeats.call(lambda heartbeats: self._writer.tick(heartbeats, self._clock.monotonic()))
        except StoreError:  # the heartbeats cannot be called at all: health shows it
            self._is_due = True
